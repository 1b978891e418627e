"""The networks of all sandboxes of this installation.

A network's two namespaces are kept by pins (bind mounts of their files) below the run directory:

    <run dir>/sandboxes/<id>/net.ns   the sandbox's side, which the runtime joins
    <run dir>/sandboxes/<id>/gw.ns    the gateway's side
    <run dir>/sandboxes/<id>/sys      a sysfs that shows the sandbox's devices only

Pins outlive the daemon, and nothing else does: there is no state to lose. `gw.ns` is pinned last, so a
network with it is complete, and one without is made anew. A pin costs 0.2 ms, and 1 µs of every later copy
of the mount namespace (a container's start makes one or two).

Ready pairs that no sandbox has yet are held by descriptors only: after `kill -9` the kernel frees them.
"""

import asyncio
import contextlib
import os
import queue
import socket
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from corral.engine.ports import Listener
from corral.errors import HostError, NotFound
from corral.host import mounts, namespaces, syscalls
from corral.host.turns import Turns
from corral.model.ids import SandboxId, is_id
from corral.network.pair import SANDBOX_ADDRESS, Pair, make_pair, restore_sandbox_side
from corral.network.probe import probe
from corral.network.sockets import open_listeners, open_ports, open_socket

_T = TypeVar("_T")
# The kernel makes namespaces one at a time: more threads only wait for each other.
_WORKERS = 2
_SANDBOX_PIN = "net.ns"
_GATEWAY_PIN = "gw.ns"
_SYSFS = "sys"
_CONNECT_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"


class Networks:
    """Makes, finds and removes sandboxes' networks. Calls for one sandbox must not overlap.

    `spares`: how many ready pairs to keep (405 KiB of kernel memory each); the first use fills them.
    Raises HostError where the kernel refuses, NotFound for a sandbox without a network.
    """

    def __init__(self, run_dir: Path, spares: int = 0) -> None:
        self._base = run_dir / "sandboxes"
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="networks")
        self._turns = Turns(self._workers, _WORKERS)
        self._spares: queue.SimpleQueue[Pair] = queue.SimpleQueue()
        self._wanted_spares = spares

    async def create(self, sandbox: SandboxId, *, sysfs: bool = False) -> None:
        """Make the network, or complete a half made one; with its `sysfs`. Idempotent; for a sandbox that does not run."""

        def make() -> None:
            self._create(sandbox)
            if sysfs:
                self._mount_sysfs(sandbox)

        await self._run(make)
        if self._spares.qsize() < self._wanted_spares:
            self._workers.submit(self._refill)

    async def listen(self, sandbox: SandboxId, tls_ports: Iterable[int]) -> tuple[Listener, ...]:
        """New listening sockets at the gateway's side; the former ones must be closed. The caller owns them."""
        return await self._run(
            lambda: self._with_gateway(sandbox, lambda fd: open_listeners(fd, tls_ports)), _close_listeners
        )

    async def open_ports(self, sandbox: SandboxId, ports: Iterable[int]) -> tuple[Listener, ...]:
        """Listening sockets for further TLS ports, beside those of `listen`. The caller owns them."""
        return await self._run(
            lambda: self._with_gateway(sandbox, lambda fd: open_ports(fd, ports)), _close_listeners
        )

    async def probe(self, sandbox: SandboxId, served: Container[int]) -> None:
        """Try from the sandbox's side what it reaches, with `served` ports listened at, before anything runs there."""

        def work() -> None:
            with _opened(self.sandbox_netns(sandbox)) as fd:
                probe(fd, served)

        await self._run(work)

    async def connect(self, sandbox: SandboxId, port: int, *, inside: bool) -> socket.socket | None:
        """A connected stream socket to a port of the sandbox; None where nothing listens. The caller owns it.

        `inside`: from the sandbox's own side, which reaches what listens on its loopback; else from the gateway's side, as
        for a sandbox with a network stack of its own, whose loopback nothing outside reaches.
        """
        if not inside:
            return await self._dial(sandbox, self._gateway_pin(sandbox), (str(SANDBOX_ADDRESS), port))
        return await self._dial(sandbox, self.sandbox_netns(sandbox), (_LOOPBACK, port))

    async def _dial(self, sandbox: SandboxId, pin: Path, address: tuple[str, int]) -> socket.socket | None:
        def make() -> socket.socket:
            if not mounts.is_mounted(pin):
                raise NotFound(f"sandbox {sandbox} has no network", "start the sandbox again")
            with _opened(pin) as fd:
                return open_socket(fd)

        sock = await self._run(make, socket.socket.close)
        try:
            # The socket belongs to the namespace that it was made in: connecting it needs to enter nothing.
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError:
            sock.close()
            return None
        except BaseException:
            sock.close()
            raise
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def sandbox_netns(self, sandbox: SandboxId) -> Path:
        """The file by which a runtime joins the sandbox's side."""
        return self._base / sandbox / _SANDBOX_PIN

    def sysfs(self, sandbox: SandboxId) -> Path:
        """Where `create` mounts a sysfs of the sandbox's side, to be bound read-only into it.

        Inside a user namespace, sysfs cannot be mounted for a network namespace that the host made, and the
        host's own would show the host's devices.
        """
        return self._base / sandbox / _SYSFS

    async def remove(self, sandbox: SandboxId) -> None:
        """Let go of the network. Idempotent; what still runs in it keeps it until its end, unreachable."""
        await self._run(lambda: self._remove(sandbox))

    async def known(self) -> set[SandboxId]:
        """Sandboxes of which a network, or a part of one, is there."""
        return await self._run(self._known)

    async def close(self) -> None:
        """Free the spare pairs and the threads. Networks stay."""
        self._wanted_spares = 0
        await asyncio.to_thread(self._workers.shutdown)
        while (spare := self._take_spare()) is not None:
            spare.close()

    async def _run(self, work: Callable[[], _T], undo: Callable[[_T], object] | None = None) -> _T:
        # A cancelled `create` must have ended before a `remove` begins.
        return await self._turns.call(_translated(work), undo)

    def _create(self, sandbox: SandboxId) -> None:
        if mounts.is_mounted(self._gateway_pin(sandbox)) and self._restore(sandbox):
            return
        self._remove(sandbox)
        place = self._base / sandbox
        # Others pass through to the sandbox's root, which its shifted ids must reach.
        place.mkdir(0o711, parents=True, exist_ok=True)
        pair = self._take_spare() or make_pair()
        try:
            namespaces.pin_netns(pair.sandbox, place / _SANDBOX_PIN)
            namespaces.pin_netns(pair.gateway, place / _GATEWAY_PIN)
        finally:
            pair.close()

    def _restore(self, sandbox: SandboxId) -> bool:
        """Whether the pinned network could be made ready for another start."""
        try:
            with _opened(self.sandbox_netns(sandbox)) as fd:
                restore_sandbox_side(fd)
        except OSError:
            return False  # not what it was: made anew
        return True

    def _refill(self) -> None:
        while self._spares.qsize() < self._wanted_spares:
            try:
                self._spares.put(make_pair())
            except OSError:
                return  # the next create meets the same refusal, and reports it

    def _take_spare(self) -> Pair | None:
        try:
            return self._spares.get_nowait()
        except queue.Empty:
            return None

    def _with_gateway(self, sandbox: SandboxId, work: Callable[[int], _T]) -> _T:
        pin = self._gateway_pin(sandbox)
        if not mounts.is_mounted(pin):
            raise NotFound(f"sandbox {sandbox} has no network", "start the sandbox again")
        with _opened(pin) as fd:
            return work(fd)

    def _mount_sysfs(self, sandbox: SandboxId) -> None:
        target = self.sysfs(sandbox)
        if mounts.is_mounted(target):
            return
        target.mkdir(0o711, exist_ok=True)
        with _opened(self.sandbox_netns(sandbox)) as fd:
            mount = namespaces.run_in_netns(fd, _detached_sysfs)
        try:
            mounts.attach(mount, target)
        finally:
            os.close(mount)

    def _remove(self, sandbox: SandboxId) -> None:
        place = self._base / sandbox
        sysfs = self.sysfs(sandbox)
        mounts.unmount(sysfs)
        with contextlib.suppress(FileNotFoundError):
            sysfs.rmdir()
        namespaces.unpin(self._gateway_pin(sandbox))
        namespaces.unpin(place / _SANDBOX_PIN)
        # The directory is shared with the sandbox's other parts; the last one out removes it.
        with contextlib.suppress(OSError):
            place.rmdir()

    def _known(self) -> set[SandboxId]:
        if not self._base.is_dir():
            return set()
        parts = (_SANDBOX_PIN, _GATEWAY_PIN, _SYSFS)
        return {
            SandboxId(place.name)
            for place in self._base.iterdir()
            if is_id(place.name) and any((place / part).exists() for part in parts)
        }

    def _gateway_pin(self, sandbox: SandboxId) -> Path:
        return self._base / sandbox / _GATEWAY_PIN


def _translated(work: Callable[[], _T]) -> Callable[[], _T]:
    def translated() -> _T:
        try:
            return work()
        except OSError as error:
            raise HostError(f"the kernel refused a step of the sandbox's network: {error}") from error

    return translated


def _close_listeners(listeners: Iterable[Listener]) -> None:
    for listener in listeners:
        listener.sock.close()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _detached_sysfs() -> int:
    """A sysfs of the calling thread's network namespace."""
    context = syscalls.fsopen("sysfs")
    try:
        syscalls.fsconfig_create(context)
        attributes = (
            syscalls.MOUNT_ATTR_RDONLY
            | syscalls.MOUNT_ATTR_NOSUID
            | syscalls.MOUNT_ATTR_NODEV
            | syscalls.MOUNT_ATTR_NOEXEC
        )
        return syscalls.fsmount(context, attributes)
    finally:
        os.close(context)
