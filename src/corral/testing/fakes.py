"""Fakes of the engine's ports: they keep state as the real ones do, and can be told to fail at a step."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import replace

from corral.engine.ports import (
    Attachment,
    DriverStatus,
    GuestFiles,
    ImportedImage,
    Listener,
    ModelPrice,
    OpenedSecret,
    Progress,
    Saved,
    VolumeFiles,
)
from corral.errors import Conflict, HostError
from corral.model.build import RegistryLogin
from corral.model.capacity import Amounts, Resource, Room
from corral.model.egress import EgressPolicy
from corral.model.grants import Grant, TenantModels
from corral.model.ids import ImageId, LayerDigest, ProcessId, SandboxId, VolumeId
from corral.model.leak import Leak
from corral.model.process import ProcessInfo, Stream
from corral.model.route import Route
from corral.model.sandbox import GIB, Isolation, SandboxSpec, Stats
from corral.model.secrets import Secret
from corral.model.template import Template
from corral.model.volume import Volume

_HEADER = struct.Struct("<BBHI")
_HELLO, _WELCOME, _READY = 1, 65, 66


class FakeGuestLink:
    """A guest that answers hello and starts nothing."""

    def __init__(self) -> None:
        self._out: asyncio.Queue[bytes] = asyncio.Queue()
        self.saved: dict[ProcessId, ProcessInfo] = {}
        self.sent: list[bytes] = []

    async def send(self, frame: bytes) -> None:
        """Take a frame; hello is answered."""
        self.sent.append(frame)
        kind, _, _, nonce = _HEADER.unpack_from(frame)
        if kind == _HELLO:
            body = struct.pack("<HHI", 1, 0, 0)
            self._out.put_nowait(
                _HEADER.pack(_WELCOME, 0, len(body), nonce) + body + _HEADER.pack(_READY, 0, 0, nonce)
            )

    async def receive(self) -> bytes:
        """What the guest said."""
        return await self._out.get()

    def end(self) -> None:
        """The guest is gone."""
        self._out.put_nowait(b"")

    def read_spool(self, process: ProcessId, stream: Stream, offset: int, size: int) -> bytes:
        """Nothing: no process runs."""
        return b""

    def free_spool(self, process: ProcessId, stream: Stream, upto: int) -> None:
        """Nothing to free."""

    def remove_spool(self, process: ProcessId) -> None:
        """Nothing to remove."""

    def save_process(self, info: ProcessInfo) -> None:
        """Keep it."""
        self.saved[info.id] = info

    def saved_processes(self) -> list[ProcessInfo]:
        """What was kept."""
        return [info for _, info in sorted(self.saved.items())]

    def forget_process(self, process: ProcessId) -> None:
        """Drop it."""
        self.saved.pop(process, None)

    def close(self) -> None:
        """Nothing to let go of."""


class FakeMachine:
    """A host with as much as is said: 16 GiB of memory and 8 cores at first."""

    def __init__(self) -> None:
        self.total: Amounts = {
            Resource.MEMORY: 16.0 * GIB,
            Resource.CPUS: 8.0,
            Resource.PIDS: 32768.0,
            Resource.HANDLES: 100_000.0,
            Resource.DISK: 1024.0 * GIB,
        }
        self.free = dict(self.total)
        self.waiting: float | None = None
        self.dirty = 0.0

    def room(self) -> Room:
        """As said."""
        return Room(dict(self.total), dict(self.free))

    def unwritten(self) -> float:
        """As said."""
        return self.dirty

    def waiting_percent(self) -> float | None:
        """As said."""
        return self.waiting


class FakeDriver:
    """Sandboxes that are words in a table. `fail_at` names methods that raise HostError."""

    name = "fake"

    def __init__(self) -> None:
        self.state: dict[SandboxId, DriverStatus] = {}
        self.links: dict[SandboxId, FakeGuestLink] = {}
        self.ends: dict[SandboxId, asyncio.Event] = {}
        self.saved: set[ImageId] = set()
        self.leaks: list[bytes] = []
        self.busy: dict[SandboxId, tuple[int, int]] = {}
        self.disk: dict[SandboxId, int] = {}
        self.left_free = 0
        self.fail_at: set[str] = set()
        self.calls: list[str] = []

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail_at:
            raise HostError(f"{name} was told to fail")

    def runtimes(self) -> dict[Isolation, tuple[str, ...]]:
        """One."""
        return {Isolation.CONTAINER: ("fake",)}

    async def prepare(self, spec: SandboxSpec, template: Template) -> None:
        """Disk and network are there."""
        self.state.setdefault(spec.id, DriverStatus.STOPPED)
        self._step("prepare")

    async def listen(self, spec: SandboxSpec, only: Set[int] | None = None) -> tuple[Listener, ...]:
        """No sockets."""
        self._step("listen")
        return ()

    def saves_memory(self, runtime: str) -> bool:
        """It can."""
        return True

    async def hold(self, sandbox: SandboxId) -> None:
        """Held."""
        self._step("hold")
        self.state[sandbox] = DriverStatus.PAUSED

    async def save(self, sandbox: SandboxId, image: ImageId, token: Secret, *, own: bool) -> int:
        """An image of no size."""
        self._step("save")
        self.saved.add(image)
        return 0

    async def scan(
        self,
        layer: LayerDigest,
        image: ImageId | None,
        needles: Mapping[bytes, str],
        tokens: Mapping[bytes, str],
        *,
        redact: bool,
    ) -> list[Leak]:
        """What `leaks` says, as far as it is looked for."""
        self._step("scan")
        searched = {**needles, **tokens}
        return [Leak("/leak", searched[word], redact) for word in self.leaks if word in searched]

    async def images(self) -> set[ImageId]:
        """All that were saved."""
        return set(self.saved)

    async def remove_image(self, image: ImageId) -> None:
        """It is gone."""
        self.saved.discard(image)

    async def probe(self, spec: SandboxSpec, served: Set[int]) -> None:
        """All is well."""
        self._step("probe")

    async def start(self, spec: SandboxSpec, template: Template, saved: Saved | None = None) -> None:
        """It runs."""
        self._step("start")
        self.state[spec.id] = DriverStatus.RUNNING
        self.links[spec.id] = FakeGuestLink()
        self.ends[spec.id] = asyncio.Event()

    async def rename(self, spec: SandboxSpec) -> None:
        """It has the name."""
        self._step("rename")

    async def announce(self, spec: SandboxSpec, files: Mapping[str, bytes]) -> None:
        """It says so."""
        self._step("announce")

    async def status(self, sandbox: SandboxId) -> DriverStatus:
        """What the table says."""
        return self.state.get(sandbox, DriverStatus.ABSENT)

    async def wait(self, sandbox: SandboxId) -> str:
        """Until `end` is called."""
        await self.ends[sandbox].wait()
        return ""

    def end(self, sandbox: SandboxId) -> None:
        """Its first process ends by itself."""
        self.state[sandbox] = DriverStatus.STOPPED
        self.ends[sandbox].set()

    async def stop(self, sandbox: SandboxId, grace: float) -> None:
        """Only the disk is left."""
        self._step("stop")
        if sandbox in self.state:
            self.state[sandbox] = DriverStatus.STOPPED

    async def pause(self, sandbox: SandboxId) -> None:
        """Frozen."""
        self._step("pause")
        self.state[sandbox] = DriverStatus.PAUSED

    async def resume(self, sandbox: SandboxId) -> None:
        """Thawed."""
        self._step("resume")
        self.state[sandbox] = DriverStatus.RUNNING

    async def remove(self, sandbox: SandboxId) -> None:
        """Nothing is left."""
        self._step("remove")
        self.state.pop(sandbox, None)

    async def tidy_files(self) -> None:
        """Files are none of its business."""

    async def known(self) -> set[SandboxId]:
        """All in the table."""
        return set(self.state)

    async def stats(self, sandbox: SandboxId) -> Stats:
        """Zeros."""
        return Stats()

    async def leave_free(self, size: int) -> None:
        """Remembered."""
        self.left_free = size

    async def written(self, sandboxes: Sequence[SandboxId]) -> dict[SandboxId, int]:
        """As said in `disk`."""
        return {sandbox: self.disk.get(sandbox, 0) for sandbox in sandboxes}

    def vitals(self, sandbox: SandboxId) -> tuple[int, int]:
        """As said in `busy`."""
        return self.busy.get(sandbox, (0, 0))

    def oom_kills(self, sandbox: SandboxId) -> int:
        """None."""
        return 0

    async def guest(self, sandbox: SandboxId) -> FakeGuestLink:
        """The link of a running one."""
        self._step("guest")
        if self.state.get(sandbox) is not DriverStatus.RUNNING:
            raise Conflict("it does not run")
        return self.links.setdefault(sandbox, FakeGuestLink())

    async def dial(self, spec: SandboxSpec, port: int) -> socket.socket | None:
        """Nothing listens."""
        return None

    def files(self, spec: SandboxSpec) -> GuestFiles:
        """It has none."""
        raise Conflict("a fake sandbox has no files")

    async def commit(self, sandbox: SandboxId) -> LayerDigest:
        """A digest made of its id."""
        self._step("commit")
        return LayerDigest("sha256:" + (sandbox * 4)[:64])


class FakeVolumeDisk:
    """Directories that are sizes in a table. `fail_at` names methods that raise HostError."""

    def __init__(self) -> None:
        self.sizes: dict[VolumeId, int] = {}
        self.used = 0
        self.fail_at: set[str] = set()

    def _step(self, name: str) -> None:
        if name in self.fail_at:
            raise HostError(f"{name} was told to fail")

    async def create(self, volume: Volume, uid_base: int) -> None:
        """It is there, then it may fail."""
        self.sizes[volume.id] = volume.size
        self._step("create")

    async def remove(self, volume: VolumeId) -> None:
        """It is gone."""
        self._step("remove")
        self.sizes.pop(volume, None)

    async def tidy(self) -> None:
        """Nothing is left."""

    async def known(self) -> set[VolumeId]:
        """All in the table."""
        return set(self.sizes)

    async def usage(self, volume: VolumeId) -> int:
        """As said in `used`."""
        return self.used

    def files(self, volume: VolumeId, uid_base: int) -> VolumeFiles:
        """It has none."""
        raise Conflict("a fake volume has no files")


class FakeGateway:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.attached: dict[SandboxId, Attachment] = {}
        self.secrets: list[OpenedSecret] = []
        self.prices: list[ModelPrice] = []
        self.models: list[TenantModels] = []
        self.fail_at: set[str] = set()

    async def attach(self, attachment: Attachment, listeners: Sequence[Listener] | None) -> None:
        """Serve it."""
        if "attach" in self.fail_at:
            raise HostError("attach was told to fail")
        self.attached[attachment.sandbox] = attachment

    async def detach(self, sandbox: SandboxId) -> None:
        """Serve it no more."""
        self.attached.pop(sandbox, None)

    def ports(self, sandbox: SandboxId) -> frozenset[int]:
        """The usual ones."""
        return frozenset({53, 80, 443})

    async def set_policy(
        self,
        sandbox: SandboxId,
        egress: EgressPolicy,
        listeners: Sequence[Listener],
        route: Route | None = None,
    ) -> None:
        """Change it, if it is served."""
        if sandbox in self.attached:
            former = self.attached[sandbox]
            self.attached[sandbox] = replace(former, egress=egress, route=route or former.route)

    async def regrant(self, grant: Grant) -> None:
        """Replace the grant of what is served."""
        found = self.attached.get(grant.sandbox)
        if found is not None:
            self.attached[grant.sandbox] = replace(found, grant=grant)

    async def recall(self, sandbox: SandboxId | None) -> None:
        """Nothing is leased."""

    async def set_secrets(self, secrets: Sequence[OpenedSecret]) -> None:
        """Replace all."""
        self.secrets = list(secrets)

    async def set_models(self, tenants: Sequence[TenantModels]) -> None:
        """Replace all."""
        self.models = list(tenants)

    async def set_prices(self, prices: Sequence[ModelPrice]) -> None:
        """Replace all."""
        self.prices = list(prices)


class FakeLayers:
    """A store with one base layer."""

    BASE = LayerDigest("sha256:" + "b" * 64)

    def __init__(self) -> None:
        self.kept: set[LayerDigest] = set()
        """What the last prune was to keep."""
        self.steps: dict[str, LayerDigest] = {}

    async def base(self, progress: Progress) -> tuple[LayerDigest, ...]:
        """The layer."""
        return (self.BASE,)

    async def image(
        self, reference: str, progress: Progress, login: RegistryLogin | None = None
    ) -> ImportedImage:
        """One layer and no configuration."""
        return ImportedImage((self.BASE,), {}, "", "", "sha256:" + "d" * 64)

    async def export(self, template: Template) -> AsyncIterator[bytes]:
        """No bytes."""
        yield b""

    async def import_archive(self, data: AsyncIterator[bytes], progress: Progress) -> ImportedImage:
        """As `image`."""
        return await self.image("archive", progress)

    async def size(self, layer: LayerDigest) -> int:
        """One byte."""
        return 1

    async def flush(self) -> None:
        """There is no disk."""

    async def known(self, key: str) -> LayerDigest | None:
        """What was remembered."""
        return self.steps.get(key)

    async def remember(self, key: str, layer: LayerDigest) -> None:
        """Remember it."""
        self.steps[key] = layer

    async def forget(self, keep: Set[LayerDigest]) -> int:
        """Forget all but those to keep."""
        gone = [key for key, layer in self.steps.items() if layer not in keep]
        for key in gone:
            del self.steps[key]
        return len(gone)

    async def flatten(self, layers: Sequence[LayerDigest]) -> tuple[LayerDigest, ...]:
        """The base and one more."""
        return (layers[0], LayerDigest("sha256:" + "f" * 64))

    async def unused(self, keep: set[LayerDigest]) -> set[LayerDigest]:
        """None."""
        return set()

    async def prune(self, keep: set[LayerDigest]) -> int:
        """Nothing goes; what was to stay is noted."""
        self.kept = keep
        return 0
