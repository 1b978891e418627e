"""What the engine needs of the world, and what it may assume of it.

Implementations raise only errors of `corral.errors`. All methods may be called concurrently unless said. "Idempotent"
means: calling again after success, or after a crash in the middle, succeeds and leaves the same result.
"""

import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from corral.model.approval import Approval, ApprovalId, Permission, Status
from corral.model.audit import AuditCheck, AuditEntry, AuditItem
from corral.model.binding import Binding
from corral.model.budget import (
    Balance,
    Outcome,
    Rate,
    RateRefusal,
    Rates,
    Refusal,
    Reservation,
    Settlement,
    Window,
)
from corral.model.capacity import Room
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy, RepoGrant
from corral.model.grants import Grant
from corral.model.ids import GrantId, ImageId, LayerDigest, ProcessId, SandboxId, TemplateId, TenantId
from corral.model.leak import Leak
from corral.model.pool import Pool
from corral.model.process import ProcessInfo, Stream
from corral.model.push import PushReport, PushToInspect
from corral.model.receipt import Past, Work
from corral.model.sandbox import Isolation, Sandbox, SandboxSpec, Stats
from corral.model.secrets import ApiKeyInfo, Provider, Secret, SecretForm, SecretInfo
from corral.model.template import Template
from corral.model.usage import UsageTotal
from corral.policy.building import Directory
from corral.policy.copying import Item, Placed

Progress = Callable[[str], None]
"""Told one line of what long work is doing now."""


class ListenerKind(StrEnum):
    """What a listening socket in a sandbox's gateway namespace serves."""

    DNS_UDP = "dns-udp"
    DNS_TCP = "dns-tcp"
    HTTP = "http"
    TLS = "tls"


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


class GuestLink(Protocol):
    """The connection to a sandbox's PID 1, which starts processes and keeps their output in spool files.

    The link survives the daemon: opened again, it goes on with the same guest. All that comes from it is hostile.
    One task may receive; sending is atomic per frame.
    """

    async def send(self, frame: bytes) -> None:
        """Deliver one frame of at most 4,096 bytes; wait while the guest is slow. Raises Conflict if the guest is gone."""

    async def receive(self) -> bytes:
        """Some bytes from the guest, as they come; empty once it is gone for good."""

    def read_spool(self, process: ProcessId, stream: Stream, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a process's output from `offset`; fewer or none where there are no more. Never blocks
        on what the guest does; what the guest replaced by something else than a regular file reads as empty."""

    def free_spool(self, process: ProcessId, stream: Stream, upto: int) -> None:
        """Give back the disk space of the first `upto` bytes, whose offsets stay valid but read as zeros."""

    def remove_spool(self, process: ProcessId) -> None:
        """Remove all that is kept of a process's output. Idempotent."""

    def save_process(self, info: ProcessInfo) -> None:
        """Keep `info` where the guest cannot reach it, so that it is known after a restart of the daemon."""

    def saved_processes(self) -> list[ProcessInfo]:
        """What `save_process` kept, in the order of ids."""

    def forget_process(self, process: ProcessId) -> None:
        """Drop what `save_process` kept. Idempotent."""

    def close(self) -> None:
        """Let go of the link; the guest goes on."""


class EntryKind(StrEnum):
    """The type of a file."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as its sandbox sees it: ids are the guest's; `mtime` in seconds since 1970; `target` of a symlink;
    `metadata` that was attached when it was written, or since, inside."""

    path: str
    name: str
    kind: EntryKind
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


class WatchEventKind(StrEnum):
    """What happened below a watched directory."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change; `path` is absolute in the guest."""

    kind: WatchEventKind
    path: str


class Watch(Protocol):
    """Changes as they come. Each is told once: to the one who iterates, or to a drain, which may be called meanwhile."""

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        """Changes, as they come."""

    async def __anext__(self) -> WatchEvent:
        """The next one."""

    async def drain(self) -> list[WatchEvent]:
        """All changes that were made before the call and were not told yet; does not wait for others."""


class GuestFiles(Protocol):
    """A sandbox's files, from the host. Paths are absolute in the guest and resolved inside its root: no symlink, `..`,
    FIFO or device of the guest reaches the host or blocks. New files and directories belong to `user` (a name of the
    guest's /etc/passwd, or uid[:gid]). Raises NotFound, Conflict (wrong type, not empty), Forbidden (special file),
    DiskFull, InvalidInput.
    """

    async def stat(self, path: str) -> Entry:
        """The entry itself (a symlink is not followed)."""

    async def list(self, path: str, depth: int = 1) -> list[Entry]:
        """Entries below a directory in order of path, at most 100,000."""

    def read(self, path: str, offset: int = 0, size: int | None = None) -> AsyncIterator[bytes]:
        """The bytes of a regular file (symlinks followed inside the root) in chunks of at most 256 KiB."""

    async def write(
        self,
        path: str,
        data: AsyncIterator[bytes],
        user: str,
        mode: int = 0o644,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Replace or create a regular file at once (temporary file and rename), parents created. A failed write changes
        nothing. The new file has `metadata` (at most 4 KiB in all) and no other; where the file system keeps none, none."""

    async def make_dir(self, path: str, user: str, mode: int = 0o755) -> bool:
        """Create a directory and its parents; False if it was there."""

    async def move(self, source: str, target: str) -> Entry:
        """Rename within the sandbox."""

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all below it."""

    def watch(self, path: str, *, recursive: bool) -> AbstractAsyncContextManager[Watch]:
        """Changes below a directory from now on, until closed. Entering returns once the watch is in place."""


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

    async def start(self, spec: SandboxSpec, template: Template, saved: "Saved | None" = None) -> None:
        """Start PID 1 of a prepared sandbox, or let it go on from what was `saved`. On failure nothing of it runs. Raises
        NotFound and Conflict for an image that is not there, or cannot be read any more."""

    async def status(self, sandbox: SandboxId) -> DriverStatus:
        """What is there now, asked of the kernel, not of memory."""

    async def wait(self, sandbox: SandboxId) -> str:
        """Return when PID 1 has ended, with the reason if known (`oom` or empty)."""

    async def rename(self, spec: SandboxSpec) -> None:
        """Let a running sandbox have the name of `spec`: its host name, and the files that say it."""

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

    async def known(self) -> set[SandboxId]:
        """Every sandbox of this installation of which the driver holds anything."""

    async def stats(self, sandbox: SandboxId) -> Stats:
        """What it uses now."""

    def vitals(self, sandbox: SandboxId) -> tuple[int, int]:
        """CPU microseconds and bytes of the network since its start: quick, for a running sandbox. Raises OSError."""

    def oom_kills(self, sandbox: SandboxId) -> int:
        """How many of its processes the kernel has killed for want of memory; 0 where it does not tell. At once."""

    async def guest(self, sandbox: SandboxId) -> GuestLink:
        """The link to PID 1 of a running sandbox."""

    async def dial(self, spec: SandboxSpec, port: int) -> socket.socket | None:
        """A connected, non-blocking stream socket to a TCP port of a running sandbox, the caller's; None where nothing
        listens there. What listens on the loopback of a sandbox with a kernel of its own is not reached."""

    def files(self, spec: SandboxSpec) -> GuestFiles:
        """Its files, while it is running or stopped."""

    async def commit(self, sandbox: SandboxId) -> LayerDigest:
        """Its changes over its template as a new layer. It must be stopped or paused."""


class Layers(Protocol):
    """The content-addressed store of layers, and the ways to fill it."""

    async def base(self, progress: Progress) -> tuple[LayerDigest, ...]:
        """Layers of the `base` image of this version of Corral, built where they are missing."""

    async def image(self, reference: str, progress: Progress) -> "ImportedImage":
        """Layers and configuration of an OCI image pulled from a registry. Raises InvalidInput, UpstreamFailed."""

    def export(self, template: Template) -> AsyncIterator[bytes]:
        """A template as an OCI image archive, a tar. What fails, fails before the first bytes. Raises DiskFull,
        InvalidInput."""

    async def import_archive(self, data: AsyncIterator[bytes], progress: Progress) -> "ImportedImage":
        """Layers and configuration of an image's archive: an OCI layout, or what `docker save` writes. Raises InvalidInput,
        UpstreamFailed (it is damaged), TooLarge, Unsupported, DiskFull."""

    async def size(self, layer: LayerDigest) -> int:
        """Bytes of a layer."""

    async def known(self, key: str) -> LayerDigest | None:
        """The layer that was remembered by `key`, if the store still has it. It counts as used now."""

    async def remember(self, key: str, layer: LayerDigest) -> None:
        """Find `layer` by `key` (64 hexadecimal digits: the hash of what it is made from) from now on. It is kept for as
        long as the store keeps steps of builds, also where no template has it."""

    async def forget(self, keep: Set[LayerDigest]) -> int:
        """Forget all remembered layers but those in `keep`; how many. `prune` then removes them."""

    async def flatten(self, layers: Sequence[LayerDigest]) -> tuple[LayerDigest, ...]:
        """A shorter stack with the same tree. Takes as long as to look at all of it, and to copy what the layers that go
        hold. Raises Unsupported, DiskFull."""

    async def unused(self, keep: set[LayerDigest]) -> set[LayerDigest]:
        """What `prune` would remove, as long as no remembered layer grows too old."""

    async def prune(self, keep: set[LayerDigest]) -> int:
        """Remove layers that are neither in `keep` nor remembered; bytes freed."""


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """An archive that was uploaded. `size`: bytes of all its files; `skipped` entries that no image may hold."""

    id: str
    entries: int
    size: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Placing:
    """Where files go in an image. `target` is absolute; `directory`: a file goes below it by its name. `directories` are
    made before, where they are missing. `owner` is `user[:group]` of the image, empty for root. `mode` is set on all.
    `unpack`: archives among the files are unpacked below the target."""

    target: str
    directory: bool = False
    owner: str = ""
    mode: int | None = None
    unpack: bool = False
    directories: tuple[Directory, ...] = ()


class Archives(Protocol):
    """Contexts of builds: archives that a tenant uploaded, kept for a day after their last use. All of them are hostile,
    and so are the layers that they are copied into: nothing of either reaches the host.
    """

    async def save(self, tenant: TenantId, data: AsyncIterator[bytes]) -> ArchiveInfo:
        """Keep a tar archive (plain, gzip, zstd, bzip2, xz). Raises InvalidInput, TooLarge, DiskFull; then nothing is kept."""

    async def pack(
        self, tenant: TenantId, layers: Sequence[LayerDigest], sources: Sequence[str]
    ) -> ArchiveInfo:
        """What `sources` (clean paths, patterns) match in a stack of layers, lowest first, as an archive. Raises NotFound."""

    async def has(self, tenant: TenantId, archive: str) -> bool:
        """Whether it is there; it then stays for another day."""

    async def items(self, tenant: TenantId, archive: str) -> Mapping[str, Item]:
        """What an archive holds, by path. Raises NotFound, InvalidInput for what is no id."""

    async def place(
        self,
        tenant: TenantId,
        archive: str,
        placed: Sequence[Placed],
        below: Sequence[LayerDigest],
        placing: Placing,
    ) -> LayerDigest | None:
        """A layer on top of those `below` with files of an archive (none: empty `archive` and `placed`, for directories
        alone); None where nothing changed. Raises InvalidInput for an owner that the image lacks, Conflict, DiskFull."""


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """What an image made from a template keeps of its configuration where images have no place for it."""

    sudo: bool
    start_command: tuple[str, ...]
    ready_command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImportedImage:
    """An OCI image as layers, lowest first, and the parts of its configuration that Corral honours."""

    layers: tuple[LayerDigest, ...]
    env: dict[str, str]
    user: str
    workdir: str
    digest: str
    kept: KeptConfig | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """What the gateway must know of a sandbox before it answers it."""

    sandbox: SandboxId
    tenant: TenantId
    name: str
    grant: Grant
    egress: EgressPolicy
    seed: Secret
    """What the sandbox's placeholders are made of."""
    repos: tuple[RepoGrant, ...] = ()
    push: PushPolicy = field(default_factory=PushPolicy)


@dataclass(frozen=True, slots=True)
class OpenedSecret:
    """A secret as the vault holds it (`value` is of its form) or, once presented, as the gateway needs it.

    `account` is what a subscription's API wants to be told beside the key.
    """

    tenant: TenantId
    name: str
    provider: Provider
    base_url: str
    value: Secret
    binding: Binding | None = None
    form: SecretForm = SecretForm.VALUE
    account: str = ""


class SecretSource(Protocol):
    """Where the key comes from, for a form of secret that does not hold it."""

    async def present(self, secret: OpenedSecret, *, anew: bool) -> OpenedSecret:
        """The secret with the key that is good now as its value. Quick where nothing changed; `anew` asks again.
        Raises CorralError where there is no key that is good.
        """


class Ledger(Protocol):
    """Where the gateway's calls are reserved and settled."""

    async def apply(self, entries: Sequence[Reservation | Settlement]) -> list[Refusal | RateRefusal | None]:
        """All of them at once, in order; None for what was done. Raises CorralError if nothing was."""

    async def abandon(self, holder: str) -> None:
        """A gateway process is gone, and all that it said was passed on: settle what it had under way."""


class Inspector(Protocol):
    """Reads pushes before they go upstream."""

    def spool(self) -> int:
        """A descriptor of a new file without a name, for a push; the caller closes it. Raises DiskFull."""

    async def inspect(self, tenant: TenantId, sandbox: SandboxId, push: PushToInspect, fd: int) -> PushReport:
        """What the pack in `fd` brings. Raises Forbidden for one that is not what it should be, other errors where it
        cannot be read now. A cancelled call leaves nothing."""


class Gateway(Protocol):
    """The unprivileged process that sandboxes talk to. Restarted by its owner; until it is back, sandboxes have no network."""

    async def attach(self, attachment: Attachment, listeners: Sequence[Listener] | None) -> None:
        """Serve a sandbox on these sockets, of which the gateway gets duplicates; replaces a former attachment, whose
        connections are cut. None: on the sockets of the former attachment; raises Conflict where there was none."""

    async def detach(self, sandbox: SandboxId) -> None:
        """Stop serving it and cut its open connections. Idempotent."""

    def ports(self, sandbox: SandboxId) -> frozenset[int]:
        """The ports on which a sandbox is served."""

    async def set_policy(
        self, sandbox: SandboxId, egress: EgressPolicy, listeners: Sequence[Listener]
    ) -> None:
        """Change what an attached sandbox may reach, from its next request on, and serve it on further sockets. Its
        connections go on, but for those to what it may no longer reach. Nothing happens to one that is not attached."""

    async def regrant(self, grant: Grant) -> None:
        """Replace a sandbox's grant; what it no longer covers is cut within a second. Idempotent."""

    async def set_secrets(self, secrets: Sequence[OpenedSecret]) -> None:
        """Replace all secrets that the gateway holds; calls that use one which is gone are cut."""

    async def set_prices(self, prices: "Sequence[ModelPrice]") -> None:
        """Replace all operator's prices."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who owns things. `uid_base` is the first host uid of the 65,536 that its sandboxes map to."""

    id: TenantId
    uid_base: int


class Store(Protocol):
    """State that survives. Each method is one transaction; a name or id is unique per tenant."""

    async def tenant(self, tenant: TenantId) -> Tenant:
        """The tenant, made with a free range on first use."""

    async def add_sandbox(self, sandbox: Sandbox, grant: Grant) -> None:
        """Insert. Raises Conflict, naming the holder, if the name is taken."""

    async def claim_sandbox(self, sandbox: Sandbox, grant: Grant) -> None:
        """Make a spare of a warm pool this sandbox: all of its row but id and template changes, and its grant is replaced.
        Raises Conflict if the name is taken."""

    async def put_pool(self, pool: Pool) -> None:
        """Add a warm pool, or replace the tenant's one of the same template and isolation."""

    async def remove_pool(self, tenant: TenantId, template: str, isolation: Isolation) -> None:
        """Idempotent."""

    async def pools(self) -> list[Pool]:
        """All tenants' warm pools."""

    async def set_state(self, sandbox: Sandbox) -> None:
        """Update state, reason, exit code and time."""

    async def set_states(self, sandboxes: Sequence[Sandbox]) -> None:
        """The same for several at once: all, or none."""

    async def set_spec(self, spec: SandboxSpec) -> None:
        """Update what may change of a spec: time to live and egress policy."""

    async def remove_sandbox(self, sandbox: SandboxId) -> bool:
        """Remove it, its grant and its caps; whether a template that was kept for it alone went with it. Its usage
        stays. Idempotent."""

    async def sandboxes(self, tenant: TenantId | None = None) -> list[Sandbox]:
        """All, oldest first, of one tenant or of all."""

    async def grant_of(self, sandbox: SandboxId) -> Grant:
        """The sandbox's grant. Raises NotFound."""

    async def grants(self, tenant: TenantId) -> list[Grant]:
        """Those of all of a tenant's sandboxes."""

    async def set_grant(self, grant: Grant) -> None:
        """Replace a sandbox's grant; on return the change survives a power cut. Raises NotFound."""

    async def add_template(self, template: Template) -> None:
        """Insert; a template of the same tenant and name is replaced (its sandboxes keep the old one's layers)."""

    async def add_hidden_template(self, template: Template) -> None:
        """Insert one that is not offered: for a sandbox that is about to be made, and forgotten with it."""

    async def forget_templates(self) -> None:
        """Forget all that are neither offered nor used by a sandbox."""

    async def templates(self, tenant: TenantId | None = None) -> list[Template]:
        """All current ones, oldest first."""

    async def template(self, template: TemplateId) -> Template:
        """By id, also a replaced or removed one that a sandbox still uses. Raises NotFound."""

    async def remove_template(self, template: TemplateId) -> None:
        """No longer offered; forgotten once no sandbox uses it. Idempotent."""

    async def layers_in_use(self) -> set[LayerDigest]:
        """Layers of current templates and of sandboxes."""

    async def put_secret(self, secret: OpenedSecret, now: datetime) -> SecretInfo:
        """Add or replace, encrypted."""

    async def remove_secret(self, tenant: TenantId, name: str) -> None:
        """Raises NotFound."""

    async def secrets(self, tenant: TenantId) -> list[SecretInfo]:
        """What may be shown."""

    async def open_secrets(self) -> list[OpenedSecret]:
        """All secrets of all tenants, decrypted, for the gateway."""

    async def derive_token(self, grant: GrantId) -> Secret:
        """The token that belongs to a grant id: keyed by the installation's key, the same at each call."""

    async def derive_seed(self, sandbox: SandboxId) -> Secret:
        """What a sandbox's placeholders are made of: the same at each call, another for each sandbox."""

    async def webhook_key(self) -> Secret:
        """The key that signs what is told to a webhook: keyed by the installation's key, the same at each call."""

    async def apply_ledger(
        self, entries: Sequence[Reservation | Settlement], default: int | None, rates: Rates | None = None
    ) -> list[Outcome]:
        """Reserve and settle in one transaction, in order: each reservation against all before it, each settlement at
        most once, with its usage. On return it survives the end of this process, however it ends. `default` is the cap
        of a sandbox that has none of its own, `rates` its limits at a time."""

    async def abandon_reservations(self, holder: str | None, default: int | None) -> list[Settlement]:
        """Settle at its worst case whatever a gateway process (None: any) has under way; what was settled."""

    async def balances(
        self, tenant: TenantId, sandbox: SandboxId | None, default: int | None
    ) -> list[Balance]:
        """The accounts that count a sandbox's calls, or the tenant's own: ever, and today."""

    async def set_cap(
        self, tenant: TenantId, sandbox: SandboxId | None, window: Window | Rate, cap: int | None
    ) -> None:
        """Set a cap or a limit at a time of a sandbox or a tenant; None lifts it."""

    async def rates(self, tenant: TenantId, sandbox: SandboxId | None, default: Rates) -> Rates:
        """The limits at a time of a sandbox, or of a tenant."""

    async def clear_cap(self, tenant: TenantId, sandbox: SandboxId | None, window: Window | Rate) -> None:
        """Go back to the host's default. Idempotent."""

    async def usage(self, sandbox: SandboxId) -> list[UsageTotal]:
        """Totals by model."""

    async def set_price(self, price: "ModelPrice") -> None:
        """An operator's price for a model (`*` for all of a provider); replaces the former."""

    async def prices(self) -> list["ModelPrice"]:
        """All operator's prices."""

    async def add_approval(self, approval: Approval) -> None:
        """Record a question, and that it was put, in the audit log too; on return it survives a power cut."""

    async def settle_approval(
        self, approval: Approval, permission: Permission | None = None, cap: int | None = None
    ) -> None:
        """Record how a question ended, what it allows from now on (nothing else that it allowed before), a new cap of
        its sandbox, and all that in the audit log; on return it survives a power cut."""

    async def approval(self, tenant: TenantId, approval: ApprovalId) -> Approval:
        """By id. Raises NotFound, also for another tenant's."""

    async def approvals(
        self,
        tenant: TenantId | None,
        sandbox: SandboxId | None = None,
        status: Status | None = None,
        limit: int = 1000,
    ) -> list[Approval]:
        """The latest `limit` of a tenant or of all, oldest first. Those of a removed sandbox stay."""

    async def permissions(self) -> list[Permission]:
        """What approvals still allow, all tenants'."""

    async def add_api_key(self, tenant: TenantId, label: str, now: datetime) -> Secret:
        """A new API key for the TCP interface; only its hash is kept."""

    async def api_keys(self, tenant: TenantId) -> list[ApiKeyInfo]:
        """What may be shown of a tenant's API keys, oldest first."""

    async def revoke_api_key(self, tenant: TenantId, ref: str) -> ApiKeyInfo:
        """Forget a key, by id or by a label that only one has. Raises NotFound, Conflict."""

    async def tenant_of_key(self, key: str) -> TenantId | None:
        """Whose key it is, compared in constant time; None for a wrong one."""

    async def audit(
        self, tenant: TenantId, sandbox: SandboxId | None, kind: str, detail: dict[str, str]
    ) -> None:
        """Append a record to the hash-chained audit log. `detail` holds no secret."""

    async def audit_all(self, items: Sequence[AuditItem]) -> None:
        """Append records, in order and at once; on return they survive a power cut."""

    async def audit_entries(
        self,
        tenant: TenantId,
        sandbox: SandboxId | None = None,
        since: datetime | None = None,
        after: int = 0,
        limit: int = 1000,
    ) -> list[AuditEntry]:
        """Up to `limit` records of a tenant, or of one of its sandboxes, with numbers above `after`, in order."""

    async def verify_audit(self) -> AuditCheck:
        """Check the whole audit log."""

    async def keep_work(self, remembered: Past, work: Work) -> None:
        """Remember what is in a sandbox's repository; it outlives the sandbox."""

    async def past_sandbox(self, tenant: TenantId, ref: str) -> Past | None:
        """A sandbox as it is remembered, by id, or the last one that had that name; None for an unknown one."""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """Micro-US-dollars per million tokens, given by the operator for a model or (`*`) for a secret's whole endpoint."""

    secret: str
    model: str
    input: int
    output: int
    cache_read: int
    cache_write: int


class Machine(Protocol):
    """The host as a whole."""

    def room(self) -> Room:
        """What it has and what of it is free now; at once."""

    def waiting_percent(self) -> float | None:
        """Share of the last ten seconds in which some process waited for memory; None where the kernel does not tell."""


class Clock(Protocol):
    """Time, as an argument."""

    def now(self) -> datetime:
        """Aware, UTC."""
