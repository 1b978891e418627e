"""Operations on rates."""

from collections.abc import Mapping

from corral.protocol import rates as protocol
from corral.sdk.operations import Call, build, reply
from corral.sdk.requests import get, post, url

Limits = Mapping[str, int | str | None]
"""`requests` and `tokens` in a minute, `calls` at a time: a number, None for no limit, `default` for the host's."""


def rates(ref: str) -> Call[protocol.Rates]:
    """How many model calls and tokens a sandbox may use in a minute, and how many calls at a time."""
    return Call(get(url("sandboxes", ref, "rates")), reply(protocol.Rates))


def set_rates(ref: str, limits: Limits) -> Call[protocol.Rates]:
    """Change a sandbox's limits at a time, from its next call on; what `limits` leaves out stays."""
    body = build(protocol.SetRates, **limits)
    return Call(post(url("sandboxes", ref, "rates"), body, "PUT"), reply(protocol.Rates))


def tenant_rates() -> Call[protocol.Rates]:
    """The limits at a time of all of the tenant's sandboxes together."""
    return Call(get(url("rates")), reply(protocol.Rates))


def set_tenant_rates(limits: Limits, *, tenant: str | None = None) -> Call[protocol.Rates]:
    """Change the limits at a time of a tenant (default: one's own). Operator only."""
    given = {} if tenant is None else {"tenant": tenant}
    body = build(protocol.SetTenantRates, **limits, **given)
    return Call(post(url("rates"), body, "PUT"), reply(protocol.Rates))
