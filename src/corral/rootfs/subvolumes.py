"""Where the store's directories live: on a btrfs, as subvolumes with quotas; else as plain directories.

Both kinds answer to one set of operations. They block: call them in a worker thread.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from corral.host import btrfs, process

_T = TypeVar("_T")
_COPY_TIMEOUT = 3600.0


class Subvolumes(Protocol):
    """Directories that are made, copied, limited and removed as one. All raise OSError."""

    @property
    def quota(self) -> bool:
        """Whether `limit` is enforced."""

    def create(self, path: Path) -> None:
        """A new, empty one."""

    def copy(self, source: Path, target: Path) -> None:
        """A copy as of now: contents, owners, modes, links, devices, extended attributes."""

    def seal(self, path: Path) -> None:
        """Refuse changes from now on, where that is possible. It cannot be renamed after."""

    def unseal(self, path: Path) -> None:
        """Allow changes of a sealed one again."""

    def limit(self, path: Path, size: int) -> None:
        """At most `size` bytes; set while it is empty, and again at will."""

    def limit_all(self, path: Path, size: int) -> None:
        """At most `size` bytes for all with a limit together; `path`: any directory beside them."""

    def usage(self, path: Path) -> int:
        """Bytes on disk."""

    def usage_of_all(self, path: Path) -> tuple[int, int]:
        """Bytes of all with a limit together that are counted, and that are written and will be."""

    def remove(self, path: Path) -> None:
        """Remove it, whatever is in it. Idempotent."""

    def flush(self, path: Path) -> None:
        """Return when all is on disk."""

    def settle(self, path: Path) -> None:
        """Return when copies, and the names of what was flushed before, are on disk. Waits for nothing else."""

    def sweep(self, path: Path) -> None:
        """Forget what is kept about removed ones."""


class BtrfsSubvolumes:
    """Subvolumes: copies are snapshots, limits are quota groups."""

    quota = True

    def create(self, path: Path) -> None:
        """A new subvolume."""
        btrfs.create_subvolume(path)

    def copy(self, source: Path, target: Path) -> None:
        """A snapshot."""
        btrfs.snapshot(source, target)

    def seal(self, path: Path) -> None:
        """Read-only."""
        btrfs.set_read_only(path)

    def unseal(self, path: Path) -> None:
        """Writable."""
        btrfs.set_read_only(path, read_only=False)

    def limit(self, path: Path, size: int) -> None:
        """By quota group."""
        btrfs.set_limit(path, size)

    def limit_all(self, path: Path, size: int) -> None:
        """By the group above all others."""
        btrfs.limit_all(path, size)

    def usage(self, path: Path) -> int:
        """As billed by the quotas."""
        return btrfs.usage(path)

    def usage_of_all(self, path: Path) -> tuple[int, int]:
        """As billed by the quotas, and as reserved."""
        return btrfs.usage_of_all(path)

    def remove(self, path: Path) -> None:
        """At once; the space comes back in the background."""
        if path.is_dir() and not btrfs.is_subvolume(path):
            remove_trees(path)
        else:
            btrfs.delete_subvolume(path)

    def flush(self, path: Path) -> None:
        """All of the file system."""
        btrfs.sync(path)

    def settle(self, path: Path) -> None:
        """One transaction of the file system."""
        btrfs.commit(path)

    def sweep(self, path: Path) -> None:
        """Quota groups whose members were still on their way out when their sandbox was removed."""
        btrfs.sweep_groups(path)


class PlainSubvolumes:
    """Directories of any file system: copies take as long as their content, and nothing limits their size."""

    quota = False

    def create(self, path: Path) -> None:
        """A directory."""
        path.mkdir(mode=0o711)

    def copy(self, source: Path, target: Path) -> None:
        """File by file, sharing blocks where the file system can."""
        argv = ["cp", "--archive", "--reflink=auto", "--no-target-directory", "--", str(source), str(target)]
        _await(process.run(argv, timeout=_COPY_TIMEOUT, check=True))

    def seal(self, path: Path) -> None:
        """Not possible: layers are only ever mounted read-only."""

    def unseal(self, path: Path) -> None:
        """It always was."""

    def limit(self, path: Path, size: int) -> None:
        """Not possible."""

    def limit_all(self, path: Path, size: int) -> None:
        """Not possible."""

    def usage_of_all(self, path: Path) -> tuple[int, int]:
        """Not known."""
        return 0, 0

    def usage(self, path: Path) -> int:
        """By walking it."""
        argv = ["du", "--summarize", "--one-file-system", "--block-size=1", "--", str(path)]
        done = _await(process.run(argv, timeout=_COPY_TIMEOUT))
        return int(done.stdout.split()[0]) if done.stdout.strip() else 0

    def remove(self, path: Path) -> None:
        """File by file."""
        remove_trees(path)

    def flush(self, path: Path) -> None:
        """All file systems of the host: nothing narrower is offered."""
        os.sync()

    def settle(self, path: Path) -> None:
        """The same."""
        os.sync()

    def sweep(self, path: Path) -> None:
        """Nothing is kept."""


def remove_trees(*paths: Path) -> None:
    """Remove directories, whatever is in them. Idempotent."""
    # rm walks by descriptor and without recursion: no depth and no name of the guest's can stop it.
    argv = ["rm", "--recursive", "--force", "--one-file-system", "--", *map(str, paths)]
    _await(process.run(argv, timeout=_COPY_TIMEOUT, check=True))


def free_bytes(path: Path) -> int:
    """Bytes that may still be written on the file system of `path`."""
    return shutil.disk_usage(path).free


def _await(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, from a loop of its own in a thread of its own: the caller's may be running one."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def runner() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=runner, name="store-program")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
