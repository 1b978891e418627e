"""Which credential opens which repository that a new sandbox may use. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from corral.engine.plan import CreateRequest, egress_policy
from corral.errors import Conflict, InvalidInput
from corral.model.git import Access, RepoGrant
from corral.model.secrets import Provider, SecretInfo
from corral.policy.egress import Allowed, decide, split_authority
from corral.policy.repos import authority, authority_of, find_grant, grant


def with_grants(request: CreateRequest, secrets: Sequence[SecretInfo], url: str | None) -> CreateRequest:
    """The request with each repository's secret, which its grant then covers; the repository at `url`, which is to be
    cloned, is among them unless the sandbox can reach its host by itself.

    Raises Conflict for a push without a credential, InvalidInput where several secrets would do.
    """
    named = request.secrets or ()
    grants = [_opened(one, secrets, named) for one in request.repos]
    if url is not None and (cloned := _cloned(url, grants, request, secrets, named)) is not None:
        grants.append(cloned)
    used = {one.secret for one in grants if one.secret is not None}
    return replace(request, repos=tuple(grants), secrets=tuple(sorted({*named, *used})))


def _cloned(
    url: str,
    grants: Sequence[RepoGrant],
    request: CreateRequest,
    secrets: Sequence[SecretInfo],
    named: Sequence[str],
) -> RepoGrant | None:
    """To read what is to be cloned; None if that is open already."""
    parts = urlsplit(url)
    host = authority(parts.netloc)
    wanted = grant(host, parts.path, Access.READ)
    if find_grant(grants, host, parts.path) is not None:
        return None
    if not _candidates(host, secrets, named) and reachable(request, host):
        return None
    return _opened(wanted, secrets, named)


def reachable(request: CreateRequest, host: str) -> bool:
    """Whether the request's egress rules open a git host."""
    name, port = split_authority(host, 443)
    return isinstance(decide(egress_policy(request.allow), name, port), Allowed)


def _candidates(host: str, secrets: Sequence[SecretInfo], named: Sequence[str]) -> list[SecretInfo]:
    """Secrets of a host; those that the request names go before others."""
    servers = [info for info in secrets if info.provider.is_git and info.binding is None]
    found = [info for info in servers if authority_of(info.base_url) == host]
    return [info for info in found if info.name in named] or found


def _opened(one: RepoGrant, secrets: Sequence[SecretInfo], named: Sequence[str]) -> RepoGrant:
    found = _candidates(one.host, secrets, named)
    if not found:
        if one.access is Access.WRITE:
            raise Conflict(
                f"pushing to {one.name} needs a credential for {one.host}, and there is none",
                _how_to_add(one.host),
            )
        return one
    if len(found) > 1:
        names = ", ".join(info.name for info in found)
        raise InvalidInput(f"several secrets open {one.host}: {names}", "say which: --secret NAME")
    info = found[0]
    folds = True if info.provider is not Provider.GIT else None
    return grant(one.host, one.path, one.access, secret=info.name, fold=folds)


def _how_to_add(host: str) -> str:
    known = {"github.com": "github", "gitlab.com": "gitlab", "bitbucket.org": "bitbucket"}
    if host in known:
        return f"add one: `corral secret add {known[host]}`"
    return f"add one: `corral secret add NAME --provider git --base-url https://{host}`"
