"""What a sandbox is made from, and what is known of it."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from corral.errors import InvalidInput
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy, RepoGrant
from corral.model.ids import SandboxId, TemplateId, TenantId
from corral.model.lifecycle import State
from corral.model.service import Service
from corral.model.volume import VolumeMount

MIB = 1024 * 1024
GIB = 1024 * MIB


class Isolation(StrEnum):
    """The strength of a boundary, weakest first."""

    CONTAINER = "container"
    GVISOR = "gvisor"


class Expiry(StrEnum):
    """What happens to a sandbox at the end of its time to live."""

    REMOVE = "remove"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use; every limit is always set.

    `memory` and `disk` in bytes, `cpus` in cores, `pids` counts processes and threads, `io_weight` is the
    share of disk time relative to others (10 to 1000).
    """

    memory: int = 4 * GIB
    cpus: float = 2.0
    pids: int = 2048
    disk: int = 10 * GIB
    io_weight: int = 100

    def checked(self) -> "Limits":
        """Itself, or raise InvalidInput naming the limit that is out of range."""
        ranges = (
            ("memory", self.memory, 16 * MIB, 4096 * GIB),
            ("cpus", self.cpus, 0.01, 1024),
            ("pids", self.pids, 8, 1_000_000),
            ("disk", self.disk, 16 * MIB, 64 * 1024 * GIB),
            ("io_weight", self.io_weight, 10, 1000),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:
                raise InvalidInput(f"limit {name}={value} is out of range", f"use {low} to {high}")
        return self


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """After how many seconds without use a sandbox is paused, and stopped. None: the host's default; 0: never."""

    pause: float | None = None
    stop: float | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything that decides how a sandbox is built; changes only where a method of the store says so.

    `env` holds what the caller gave and the template gave, already merged; it never holds a secret.
    `secrets` names the vault's secrets that its grant covers. `ttl` in seconds from creation, None for no end; it
    does not run while the sandbox is paused. `attributes` is what a surface of the API notes for itself; no secrets.
    `repos` are the git repositories that it may use, `push` the rules of its pushes.
    `services` are started at each of its starts, after its repository has come in.
    `spare`: it waits in a warm pool, belongs to nobody yet and is shown to nobody.
    `variables` names the environment variable of a secret's placeholder where it is not the secret's own.
    `volumes` are mounted in it from its first start on.
    `template_name`: what its template was called when it was made; a fork keeps that of the first one.
    `route` is its `Route`, sealed by the store; empty for none.
    `rests`: the end of its life goes with the next stop, which is under way, or a start that fails.
    """

    id: SandboxId
    tenant: TenantId
    name: str
    template: TemplateId
    isolation: Isolation
    runtime: str
    limits: Limits
    env: dict[str, str]
    labels: dict[str, str]
    user: str
    workdir: str
    egress: EgressPolicy
    secrets: tuple[str, ...]
    created_at: datetime
    ttl: float | None = None
    agent: str | None = None
    repo: str | None = None
    branch: str | None = None
    expiry: Expiry = Expiry.REMOVE
    attributes: dict[str, str] = field(default_factory=dict)
    repos: tuple[RepoGrant, ...] = ()
    push: PushPolicy = field(default_factory=PushPolicy)
    spare: bool = False
    services: tuple[Service, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    template_name: str = ""
    route: str = ""
    volumes: tuple[VolumeMount, ...] = ()
    rests: bool = False

    @property
    def ends_at(self) -> datetime | None:
        """When its time to live is over; None for never. While it is paused, its time stands still."""
        return None if self.ttl is None else self.created_at + timedelta(seconds=self.ttl)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox as it stands: its spec, its state, and why it is in it."""

    spec: SandboxSpec
    state: State
    changed_at: datetime
    reason: str = ""
    exit_code: int | None = None

    @property
    def id(self) -> SandboxId:
        """The sandbox's id."""
        return self.spec.id

    def with_state(
        self, state: State, now: datetime, reason: str = "", exit_code: int | None = None
    ) -> "Sandbox":
        """A copy in another state."""
        return replace(self, state=state, changed_at=now, reason=reason, exit_code=exit_code)


@dataclass(frozen=True, slots=True)
class Stats:
    """What a sandbox uses now: bytes, cumulative CPU microseconds, processes, and how often it hit its limits. `file_cache` is
    what files hold of memory; only what can be dropped of it at once is not in `memory`."""

    memory: int = 0
    memory_peak: int = 0
    cpu_usec: int = 0
    pids: int = 0
    disk: int = 0
    oom_kills: int = 0
    file_cache: int = 0
    extra: dict[str, int] = field(default_factory=dict)
