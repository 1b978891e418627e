"""Shapes of grants: what a sandbox's token may be used for."""

from typing import Annotated, Literal

from pydantic import Field

from corral.policy.models import MAX_RULES
from corral.protocol.base import Name, Reply, Request, Time

MAX_EXPIRY = 365 * 24 * 3600

ModelPattern = Annotated[
    str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9*._:/@~-]+$", examples=["claude-haiku-*"])
]
ModelPatterns = Annotated[list[ModelPattern], Field(min_length=1, max_length=MAX_RULES)]
Aliases = Annotated[dict[ModelPattern, ModelPattern], Field(max_length=MAX_RULES)]
Expiry = Annotated[int, Field(ge=1, le=MAX_EXPIRY)]


class ChangeGrant(Request):
    """A new extent of a grant, from the next request on. What is left out stays."""

    secrets: list[Name] | None = Field(default=None, max_length=64, description="All that it shall cover.")
    models: ModelPatterns | None = Field(default=None, description="Models that may run.")
    aliases: Aliases | None = Field(
        default=None, description="Model asked for → model sent.", examples=[{"opus": "haiku"}]
    )
    expires: Expiry | Literal["never"] | None = Field(
        default=None, description="Seconds from now, or `never`."
    )


class RenewGrant(Request):
    """A new token."""

    expires: Expiry | None = Field(
        default=None, description="Seconds from now. Default: the end that it has, if it is not over."
    )
    overlap: int = Field(
        default=600, ge=0, le=86_400, description="Seconds that running processes may use the former token."
    )


class RevokeGrant(Request):
    """What to take away."""

    secrets: list[Name] = Field(default_factory=list, max_length=64, description="Only these. Default: all.")


class GrantInfo(Reply):
    """What a sandbox's token may be used for. The token itself is never shown."""

    sandbox: str
    name: str = Field(description="The sandbox's.")
    state: Literal["good", "revoked", "expired"]
    secrets: list[str]
    models: list[str] = Field(description="Patterns of models that may run.")
    aliases: dict[str, str] = Field(description="Model asked for → model sent.")
    hosts: list[str] = Field(description="`host:port` that it may reach.")
    created_at: Time
    expires_at: Time | None = None
    revoked_at: Time | None = None
    former_until: Time | None = Field(default=None, description="Until when the former token is good, too.")


class GrantList(Reply):
    """Grants of the tenant's sandboxes, oldest first."""

    grants: list[GrantInfo]


class SetModels(Request):
    """New rules for all of a tenant's sandboxes, from the next call on. What is left out stays."""

    models: ModelPatterns | None = Field(default=None, description="Models that may run.")
    aliases: Aliases | None = Field(
        default=None, description="Model asked for → model sent.", examples=[{"opus": "haiku"}]
    )
    tenant: Name | None = Field(default=None, description="Default: the caller's own.")


class Models(Reply):
    """Which models all of a tenant's sandboxes may use. A sandbox's own rules and the host's must allow a model too."""

    models: list[str] = Field(description="Patterns of models that may run.")
    aliases: dict[str, str] = Field(description="Model asked for → model sent.")
