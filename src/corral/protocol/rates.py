"""Shapes of rates: how much at a time."""

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.model.budget import Rate
from corral.policy.rates import MAX_RATE
from corral.protocol.base import Name, Reply, Request

Limit = Annotated[int, Field(ge=1, le=MAX_RATE)] | Literal["default"] | None


class SetRates(Request):
    """New limits; what is left out stays, null is none, `default` is the host's."""

    requests: Limit = Field(default=None, description="Model calls in a minute.")
    tokens: Limit = Field(default=None, description="Tokens in a minute, in and out.")
    calls: Limit = Field(default=None, description="Model calls at a time.")

    def given(self) -> dict[Rate, Any]:
        """Those that were given."""
        return {rate: getattr(self, rate.value) for rate in Rate if rate.value in self.model_fields_set}


class SetTenantRates(SetRates):
    """New limits of all of a tenant's sandboxes together."""

    tenant: Name | None = Field(default=None, description="Default: the caller's own.")


class Rates(Reply):
    """Limits; null for none."""

    requests: int | None = None
    tokens: int | None = None
    calls: int | None = None
