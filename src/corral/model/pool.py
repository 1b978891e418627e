"""Warm pools: sandboxes that are ready before anybody asks for them."""

from dataclasses import dataclass
from datetime import datetime

from corral.errors import InvalidInput
from corral.model.ids import SandboxId, TemplateId, TenantId
from corral.model.sandbox import Isolation, Limits, SandboxSpec

MAX_POOL = 1000
MIN_IDLE = 10


@dataclass(frozen=True, slots=True)
class Pool:
    """How many spares of a template a tenant wants to have ready; one pool per tenant, template and isolation.

    `idle` in seconds: after that time without a create that the pool could serve, its spares go, and come back with
    the next such create. None keeps them.
    """

    tenant: TenantId
    template: str
    isolation: Isolation
    runtime: str
    limits: Limits
    size: int
    idle: int | None = None

    def checked(self) -> "Pool":
        """Itself, or raise InvalidInput."""
        if not 1 <= self.size <= MAX_POOL:
            raise InvalidInput(
                f"a pool of {self.size} is not possible",
                f"give 1 to {MAX_POOL}; to end a pool: `corral pool rm`",
            )
        if self.idle is not None and self.idle < MIN_IDLE:
            raise InvalidInput(f"idle time {self.idle} is too short", f"give at least {MIN_IDLE} seconds")
        self.limits.checked()
        return self

    def serves(self, spec: SandboxSpec, template: TemplateId) -> bool:
        """Whether its spares, made of `template`, are what `spec` asks for."""
        return (
            spec.tenant == self.tenant
            and spec.template == template
            and spec.runtime == self.runtime
            and spec.limits == self.limits
            and not spec.volumes
        )


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool and how it stands: `ready` spares, `problem` with the last attempt to make one, when the next is due."""

    pool: Pool
    ready: int
    problem: str = ""
    retry_at: datetime | None = None
    asleep: bool = False


def interchangeable(one: SandboxSpec, other: SandboxSpec) -> bool:
    """Whether a sandbox made for one could have been made for the other: all else can be changed while it runs."""
    return (
        one.tenant == other.tenant
        and one.template == other.template
        and one.runtime == other.runtime
        and one.limits == other.limits
        and one.volumes == other.volumes
    )


def spare_name(sandbox: SandboxId) -> str:
    """What a spare is called until it is given out."""
    return f"spare-{sandbox}"
