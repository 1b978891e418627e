"""Shapes of warm pools."""

from pydantic import Field

from corral.model.pool import MAX_POOL, MIN_IDLE
from corral.model.sandbox import Isolation
from corral.protocol.base import Ref, Reply, Request, Text, Time
from corral.protocol.sandboxes import Limits, LimitsRequest


class SetPool(Request):
    """How many sandboxes of a template to have ready. A create that names the same template, runtime and limits takes one."""

    template: Ref
    size: int = Field(ge=1, le=MAX_POOL)
    isolation: Isolation | None = Field(default=None, description="Default: `container`.")
    runtime: Text | None = Field(default=None, description="Default: the preferred one of the isolation.")
    limits: LimitsRequest | None = Field(
        default=None, description="Default: those of a create without limits."
    )
    idle: int | None = Field(
        default=None,
        ge=MIN_IDLE,
        description="Seconds without a create of its kind after which its sandboxes go; the next such create brings "
        "them back. Default: they stay.",
    )


class PoolInfo(Reply):
    """A warm pool and how it stands."""

    template: str = Field(description="The template's name.")
    isolation: Isolation
    runtime: str
    limits: Limits
    size: int
    ready: int = Field(description="Sandboxes that wait to be taken.")
    idle: int | None = None
    asleep: bool = Field(
        description="Nobody wanted one for the idle time: it is empty until the next create."
    )
    problem: str = Field(description="Why the last attempt to fill it failed; empty when it did not.")
    retry_at: Time | None = Field(default=None, description="When it is tried again.")


class PoolList(Reply):
    """The tenant's pools."""

    pools: list[PoolInfo]
