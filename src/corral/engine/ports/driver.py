"""One way to isolate, and the machine below it."""

import socket
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from corral.engine.ports.guest import GuestFiles, GuestLink
from corral.model.capacity import Room
from corral.model.ids import ImageId, LayerDigest, SandboxId
from corral.model.leak import Leak
from corral.model.listeners import ListenerKind
from corral.model.sandbox import Isolation, SandboxSpec, Stats
from corral.model.secrets import Secret
from corral.model.template import Template


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket (listening, for streams). The socket is the sandbox's identity: whoever connects is the sandbox."""

    kind: ListenerKind
    port: int
    sock: socket.socket


class DriverStatus(StrEnum):
    """What a driver sees of a sandbox. ABSENT: it holds nothing. STOPPED: disk only."""

    ABSENT = "absent"
    STOPPED = "stopped"
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Saved:
    """What a sandbox goes on from, and the token that its processes are to have."""

    image: ImageId
    token: Secret


class Driver(Protocol):
    """One way to isolate. The engine serialises calls per sandbox, except `guest`, `files`, `stats` and `wait`."""

    name: str

    def runtimes(self) -> dict[Isolation, tuple[str, ...]]:
        """Usable runtimes on this host by the isolation that they give, the preferred one first."""

    async def prepare(self, spec: SandboxSpec, template: Template) -> None:
        """Make or complete the root filesystem and the network. Idempotent. Raises DiskFull, Unsupported."""

    async def listen(self, spec: SandboxSpec, only: Set[int] | None = None) -> tuple[Listener, ...]:
        """Listening sockets in the gateway namespace of a prepared sandbox, new ones at each call (the former must be
        closed by then): all that its egress policy needs, or those of the TLS ports `only`. The caller owns them."""

    async def probe(self, spec: SandboxSpec, served: Set[int]) -> None:
        """Try what a prepared sandbox would reach, from its own network, while its sockets of `listen` are open; `served` are
        their ports. Raises HostError where anything but the gateway would be reached, or the gateway would not (G-5).
        """

    async def start(self, spec: SandboxSpec, template: Template, saved: "Saved | None" = None) -> None:
        """Start PID 1 of a prepared sandbox, or let it go on from what was `saved`. On failure nothing of it runs. Raises
        NotFound and Conflict for an image that is not there, or cannot be read any more."""

    async def status(self, sandbox: SandboxId) -> DriverStatus:
        """What is there now, asked of the kernel, not of memory."""

    async def wait(self, sandbox: SandboxId) -> str:
        """Return when PID 1 has ended, with the reason if known (`oom` or empty)."""

    async def rename(self, spec: SandboxSpec) -> None:
        """Let a running sandbox have the name of `spec`: its host name, and the files that say it."""

    async def announce(self, spec: SandboxSpec, files: Mapping[str, bytes]) -> None:
        """Let files below `/run`, which memory holds, say this in a running sandbox: root's, and readable for all. Commands
        that are started afterwards find them. Each is of a few hundred bytes. Raises Conflict if it does not run, and what
        `GuestFiles.write` raises."""

    async def stop(self, sandbox: SandboxId, grace: float) -> None:
        """TERM, after `grace` seconds KILL, then free all but the disk. Idempotent. Also for paused sandboxes."""

    async def pause(self, sandbox: SandboxId) -> None:
        """Freeze all processes."""

    async def resume(self, sandbox: SandboxId) -> None:
        """Thaw."""

    def saves_memory(self, runtime: str) -> bool:
        """Whether `hold` and `save` work with a runtime."""

    async def hold(self, sandbox: SandboxId) -> None:
        """Let its processes stand still, so that its memory can be saved; `resume` lets them go on. They may run on for a
        moment before, if it was paused. Raises Unsupported where its runtime cannot."""

    async def save(self, sandbox: SandboxId, image: ImageId, token: Secret, *, own: bool) -> int:
        """Write the memory of a held sandbox to an image, with `token` taken out; its size in bytes. The sandbox stays
        held, so that its files can be committed as they are now. `own`: only this sandbox will go on from it. An image
        is there whole or not at all. Raises DiskFull."""

    async def scan(
        self,
        layer: LayerDigest,
        image: ImageId | None,
        needles: Mapping[bytes, str],
        tokens: Mapping[bytes, str],
        *,
        redact: bool,
    ) -> list[Leak]:
        """Look in a layer and an image that nothing uses yet for byte strings, which say what they are. With `redact`,
        they are overwritten where that is possible. `tokens` in the image are so in any case, and not reported. Takes as
        long as to read all of it."""

    async def images(self) -> set[ImageId]:
        """All machine images, and what is left of half made ones."""

    async def remove_image(self, image: ImageId) -> None:
        """Idempotent."""

    async def remove(self, sandbox: SandboxId) -> None:
        """Kill and free everything. Idempotent, also for what is half made or unknown."""

    async def tidy_files(self) -> None:
        """Remove what a daemon that was killed has left of writes in the files of sandboxes. Called before any of them is used."""

    async def known(self) -> set[SandboxId]:
        """Every sandbox of this installation of which the driver holds anything."""

    async def stats(self, sandbox: SandboxId) -> Stats:
        """What it uses now."""

    async def written(self, sandboxes: Sequence[SandboxId]) -> dict[SandboxId, int]:
        """Bytes of disk that running sandboxes take, what they have written and is not on the disk yet included: as of now,
        which `stats` tells only some time later. Takes as long as the disk needs for one change; those that it cannot tell of
        are left out."""

    async def leave_free(self, size: int) -> None:
        """Let all that sandboxes may write from now on leave `size` bytes of the host's disk: further writes fail in the
        sandbox. Holds until it is called again, and is nothing where their disk cannot be bounded together."""

    def vitals(self, sandbox: SandboxId) -> tuple[int, int]:
        """CPU microseconds and bytes of the network since its start: quick, for a running sandbox. Raises OSError."""

    def oom_kills(self, sandbox: SandboxId) -> int:
        """How many of its processes the kernel has killed for want of memory; 0 where it does not tell. At once."""

    async def guest(self, sandbox: SandboxId) -> GuestLink:
        """The link to PID 1 of a running sandbox."""

    async def dial(self, spec: SandboxSpec, port: int) -> socket.socket | None:
        """A connected, non-blocking stream socket to a TCP port of a running sandbox, the caller's; None where nothing
        listens there, on all addresses or on the loopback."""

    def files(self, spec: SandboxSpec) -> GuestFiles:
        """Its files, while it is running or stopped."""

    async def commit(self, sandbox: SandboxId) -> LayerDigest:
        """Its changes over its template as a new layer. It must be stopped or paused."""


class Machine(Protocol):
    """The host as a whole."""

    def room(self) -> Room:
        """What it has and what of it is free now; at once."""

    def unwritten(self) -> float:
        """Bytes of files that are in memory only, and will take disk soon; at once."""

    def waiting_percent(self) -> float | None:
        """Share of the last ten seconds in which some process waited for memory; None where the kernel does not tell."""
