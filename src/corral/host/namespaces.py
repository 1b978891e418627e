"""User namespaces as id mappings, and work inside a network namespace or one of host names.

A user namespace is needed only as a mapping to give to `mount_setattr`. A thread cannot make one in a
process with several threads (EINVAL), and forking such a process without exec can deadlock in the child: so
a small program makes it, the daemon writes its maps and keeps a descriptor, and the program ends. Measured:
4 ms, once per mapping.

A network namespace, in contrast, belongs to a thread. A thread that entered one must never be reused for
other work: `run_in_netns` starts one for each call.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from corral.errors import InternalError, Unsupported
from corral.host import mounts, process, syscalls

ID_RANGE = 65536
_MAX_ID = 2**32 - 2

_T = TypeVar("_T")
# Descriptors of id mappings by (first, base, size): never closed, there is one per tenant and per source of
# layers.
_mappings: dict[tuple[int, int, int], int] = {}
# A hundred sandboxes of one tenant that start at once need one mapping, made once.
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def userns_fd(uid_base: int, size: int = ID_RANGE, *, first: int = 0) -> int:
    """A user namespace that maps ids `first`… on disk to `uid_base`… on the host, `size` of them, uids and
    gids alike.

    The descriptor stays the cache's: do not close it. Raises Unsupported where user namespaces are switched
    off.
    """
    if not (uid_base > 0 and first >= 0 and size > 0 and max(uid_base, first) + size <= _MAX_ID):
        raise InternalError(f"the id range {first} → {uid_base} of {size} is not valid")
    key = (first, uid_base, size)
    if key not in _mappings:
        async with _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if key not in _mappings:
                _mappings[key] = await _make_userns(f"{first} {uid_base} {size}\n")
    return _mappings[key]


async def _make_userns(mapping: str) -> int:
    async with process.stream(["unshare", "--user", "cat"], timeout=20) as holder:
        try:
            await holder.write(b".")
            answer = await holder.read(1)
        except BrokenPipeError:
            answer = b""
        if not answer:  # the echo of the byte shows that the namespace exists
            reason = (await holder.wait()).last_line
            raise Unsupported(
                f"cannot make a user namespace: {reason}",
                "set the sysctls user.max_user_namespaces above 0 and kernel.unprivileged_userns_clone to 1",
            )
        folder = Path("/proc") / str(holder.pid)
        for name in ("uid_map", "gid_map"):
            (folder / name).write_text(mapping)
        return os.open(folder / "ns" / "user", os.O_RDONLY | os.O_CLOEXEC)


_BOUND = (
    syscalls.MOUNT_ATTR_RDONLY
    | syscalls.MOUNT_ATTR_NOSUID
    | syscalls.MOUNT_ATTR_NODEV
    | syscalls.MOUNT_ATTR_NOEXEC
)


class _NamespaceThread(threading.Thread, Generic[_T]):
    """Enters (or makes) a namespace, does one thing and ends."""

    def __init__(self, enter: Callable[[], None], work: Callable[[], _T]) -> None:
        super().__init__(name="netns", daemon=True)
        self._enter = enter
        self._work = work
        self._results: list[_T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._enter()
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again by result(), in the caller's thread
            self._error = error

    def result(self) -> _T:
        self.start()
        self.join()
        if self._error is not None:
            raise self._error
        return self._results[0]


def run_in_netns(fd: int, work: Callable[[], _T]) -> _T:
    """The result of `work`, called in a thread of its own inside a network namespace. Blocks the calling
    thread.

    Sockets that `work` opens stay in that namespace. Raises what `work` raises, OSError if it cannot be
    entered.
    """
    return _NamespaceThread(lambda: syscalls.setns(fd, syscalls.CLONE_NEWNET), work).result()


def run_in_new_netns(work: Callable[[], _T]) -> _T:
    """The same in a new, empty network namespace, which lasts as long as a descriptor, socket or pin of it.
    `work` gets its descriptor by `own_netns_fd`."""
    return _NamespaceThread(lambda: syscalls.unshare(syscalls.CLONE_NEWNET), work).result()


def own_netns_fd() -> int:
    """A new descriptor of the calling thread's network namespace; the caller closes it."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def set_hostname(pidfd: int, name: str) -> None:
    """Set the host name that the process of `pidfd` and its like see. Raises OSError."""
    thread = _NamespaceThread(
        lambda: syscalls.setns(pidfd, syscalls.CLONE_NEWUTS), lambda: socket.sethostname(name)
    )
    thread.result()


def bind_inside(pidfd: int, source: Path, target: str) -> None:
    """Mount a file of the host's, read-only, over a file that the process of `pidfd` and its like see: for paths that nobody
    in there can have changed yet. Raises OSError."""
    view = syscalls.open_tree(syscalls.AT_FDCWD, str(source), syscalls.OPEN_TREE_CLONE)

    def enter() -> None:
        # The root directory becomes that of the namespace, for this thread alone.
        syscalls.unshare(syscalls.CLONE_FS)
        syscalls.setns(pidfd, syscalls.CLONE_NEWNS)

    try:
        syscalls.mount_setattr(view, set_flags=_BOUND)
        _NamespaceThread(enter, lambda: syscalls.move_mount(view, "", syscalls.AT_FDCWD, target)).result()
    finally:
        os.close(view)


def pin_netns(fd: int, path: Path) -> None:
    """Keep a network namespace alive, and found by `path`, until `unpin`. A former pin there is replaced."""
    unpin(path)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o600))
    try:
        syscalls.mount(f"/proc/self/fd/{fd}", str(path), None, syscalls.MS_BIND)
    except OSError:
        path.unlink()
        raise


def unpin(path: Path) -> None:
    """Let go of a pinned namespace. Idempotent."""
    mounts.unmount(path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
