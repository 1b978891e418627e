"""Operations on grants."""

from collections.abc import Mapping, Sequence

from corral.protocol import grants
from corral.sdk.operations import Call, build, parse, reply
from corral.sdk.requests import get, post, url


def list_grants() -> Call[list[grants.GrantInfo]]:
    """What the tokens of the tenant's sandboxes may be used for."""
    return Call(get(url("grants")), lambda body: parse(grants.GrantList, body).grants)


def grant(ref: str) -> Call[grants.GrantInfo]:
    """What a sandbox's token may be used for."""
    return Call(get(url("sandboxes", ref, "grant")), reply(grants.GrantInfo))


def change_grant(
    ref: str,
    *,
    secrets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    aliases: Mapping[str, str] | None = None,
    expires: int | str | None = None,
) -> Call[grants.GrantInfo]:
    """Change what a grant covers, from the next request on; what is None stays. `expires`: seconds, or `never`."""
    given = {
        "secrets": None if secrets is None else list(secrets),
        "models": None if models is None else list(models),
        "aliases": None if aliases is None else dict(aliases),
        "expires": expires,
    }
    body = build(grants.ChangeGrant, **{key: value for key, value in given.items() if value is not None})
    return Call(post(url("sandboxes", ref, "grant"), body, "PUT"), reply(grants.GrantInfo))


def renew_grant(ref: str, *, expires: int | None = None, overlap: int = 600) -> Call[grants.GrantInfo]:
    """A new token for new processes; running ones may use the former for `overlap` more seconds."""
    body = build(grants.RenewGrant, expires=expires, overlap=overlap)
    return Call(post(url("sandboxes", ref, "grant", "renew"), body), reply(grants.GrantInfo))


def revoke_grant(ref: str, secrets: Sequence[str] = ()) -> Call[grants.GrantInfo]:
    """Take secrets out of a grant, or all that it covers; what is under way with it is cut within a second."""
    body = build(grants.RevokeGrant, secrets=list(secrets))
    return Call(post(url("sandboxes", ref, "grant", "revoke"), body), reply(grants.GrantInfo))


def models() -> Call[grants.Models]:
    """Which models all of the tenant's sandboxes may use."""
    return Call(get(url("models")), reply(grants.Models))


def set_models(
    models: Sequence[str] | None = None,
    aliases: Mapping[str, str] | None = None,
    *,
    tenant: str | None = None,
) -> Call[grants.Models]:
    """Change which models all sandboxes of a tenant (default: one's own) may use, from the next call on; what is None
    stays. Operator only.
    """
    given = {
        "models": None if models is None else list(models),
        "aliases": None if aliases is None else dict(aliases),
        "tenant": tenant,
    }
    body = build(grants.SetModels, **{key: value for key, value in given.items() if value is not None})
    return Call(post(url("models"), body, "PUT"), reply(grants.Models))
