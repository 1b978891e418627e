"""What a host can carry, what sandboxes hold of it, and what the operator lets them hold."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from corral.model.ids import TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import MIB, Limits


class Resource(StrEnum):
    """What can run out. Memory and disk in bytes, CPUs in cores, the others in pieces."""

    SANDBOXES = "sandboxes"
    MEMORY = "memory"
    CPUS = "cpus"
    PIDS = "pids"
    HANDLES = "handles"
    DISK = "disk"


Amounts = dict[Resource, float]


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's say. An `overcommit` factor divides a limit into what a new sandbox is expected to use of it at
    once; a resource without a factor is not counted. `reserve_*` bytes are left to the host. A tenant may have
    `tenant_sandboxes` that run, with `tenant_memory` bytes of limits; None for no such bound.
    """

    overcommit: Amounts = field(
        default_factory=lambda: {Resource.MEMORY: 256.0, Resource.DISK: 512.0, Resource.PIDS: 128.0}
    )
    reserve_memory: int = 512 * MIB
    reserve_disk: int = 512 * MIB
    tenant_sandboxes: int | None = None
    tenant_memory: int | None = None

    def with_disk_reserve(self, times: int) -> "Rules":
        """The same with several times the disk's reserve."""
        return replace(self, reserve_disk=self.reserve_disk * times)


@dataclass(frozen=True, slots=True)
class Room:
    """What the host has, and what of it nobody uses now."""

    total: Amounts
    free: Amounts


@dataclass(frozen=True, slots=True)
class Holding:
    """One sandbox as it counts. `used` is what was measured of it, empty where nothing was; `idle` in seconds."""

    id: str
    name: str
    tenant: TenantId
    limits: Limits
    state: State
    used: Amounts = field(default_factory=dict)
    idle: float = 0.0


class Whose(StrEnum):
    """Whose room is short."""

    HOST = "host"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What does not fit: `needed` of `resource`, of which `free` is left; negative where more is promised than
    there is. `bound`: what the tenant may have in all, where it is the tenant's room."""

    whose: Whose
    resource: Resource
    needed: float
    free: float
    bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """Someone who waits for room. `number` grows; the lower came first."""

    number: int
    tenant: TenantId
    holding: Holding


@dataclass(frozen=True, slots=True)
class Line:
    """One resource of the host: `promised` is the sum of limits, `expected` what sandboxes count as (what they use, or what
    they are expected to use if that is more), `free` what a new one may still take."""

    resource: Resource
    total: float
    reserve: float
    used: float
    promised: float
    expected: float
    free: float | None
