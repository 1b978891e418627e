"""The gateway's side towards git servers: which credential goes where, and what of an answer comes back."""

import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import aiohttp
from aiohttp import hdrs, web
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict
from yarl import URL

from corral.errors import CorralError, InvalidInput
from corral.gateway import framing
from corral.gateway.apptokens import AppTokens
from corral.gateway.box import Box
from corral.gateway.dial import CONNECT_TIMEOUT, Dialer, proxy_refusal
from corral.gateway.redact import Forms, Redactor
from corral.gateway.upstream import Connector, resolved
from corral.gateway.vault import Credential
from corral.model.egress import HostRule
from corral.model.git import RepoGrant
from corral.model.secrets import Provider, SecretForm
from corral.policy.egress import Allowed, Denied, Reason, canonical_host, literal, split_authority
from corral.policy.repos import Route
from corral.wire.githubapp import Need

IDLE = 900.0
"""Seconds without a byte: servers count and compress objects for minutes before they answer."""
_POOL = 64
_USERS = {Provider.GITHUB: "x-access-token", Provider.GITLAB: "oauth2", Provider.BITBUCKET: "x-token-auth"}

_PASSED = ("User-Agent", "Accept", "Content-Type", "Content-Encoding")
_PROTOCOLS = frozenset({"version=0", "version=1", "version=2"})

_log = logging.getLogger(__name__)


class GitRefusedError(Exception):
    """Ends a request with a text that git shows to its user."""

    def __init__(self, status: int, message: str, hint: str, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.reason = reason

    @property
    def text(self) -> str:
        """Both sentences."""
        return f"{self.message}.\n{self.hint[:1].upper()}{self.hint[1:]}."


def _nothing() -> None:
    """Of a credential that is no token of an App's."""


@dataclass(frozen=True, slots=True)
class Target:
    """A repository's server: where it is, and by which credential. `give_up`: it does not take that any more."""

    grant: RepoGrant
    base: str
    authorization: str
    forms: Forms | None
    give_up: Callable[[], None] = _nothing

    def url(self, route: Route) -> str:
        """Where a request goes."""
        return f"{self.base}/{route.path}/{route.service_path}{route.query}"

    def redactor(self) -> Redactor | None:
        """What takes the credential out of an answer, if there is one."""
        return Redactor(self.forms, self.grant.secret or "") if self.forms is not None else None


async def target(
    grant: RepoGrant, granted: Mapping[str, Credential], tokens: AppTokens, need: Need
) -> Target:
    """Where a grant leads. Raises GitRefusedError if its secret is gone, or no token is had by it."""
    if grant.secret is None:
        return Target(grant, f"https://{grant.host}", "", None)
    found = granted.get(grant.secret)
    if found is None:
        raise GitRefusedError(
            403, f"the secret {grant.secret!r} that opens {grant.name} is gone, or not granted any more",
            "on the host: corral secret ls, corral grant show NAME", "no-such-secret",
        )  # fmt: skip
    key, forms = found.spec.value.reveal(), found.forms
    give_up: Callable[[], None] = _nothing
    if found.spec.form is SecretForm.GITHUB_APP:
        try:
            token = await tokens.token(found, grant.path, need)
        except CorralError as error:
            raise GitRefusedError(403, error.message, error.hint, "no-app-token") from None
        key, forms, give_up = token.value, token.forms, partial(tokens.refused, token)
    base = str(URL(found.spec.base_url).origin())
    return Target(grant, base, authorization(found.spec.provider, key), forms, give_up)


def authorization(provider: Provider, key: str) -> str:
    """The credential in the form that the forge wants (G-238). A key with a colon is user and password."""
    pair = key if provider is Provider.GIT and ":" in key else f"{_USERS.get(provider, 'git')}:{key}"
    return "Basic " + b64encode(pair.encode()).decode()


class _PublicResolver(AbstractResolver):
    """Addresses of hosts that only a repository's grant names: what is never dialled for a sandbox, is not here (G-62)."""

    def __init__(self, box: Box, dialer: Dialer) -> None:
        self._box = box
        self._dialer = dialer

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        """See AbstractResolver. Raises OSError."""
        found = await self._dialer.addresses(self._box, Allowed(host, port, HostRule(host, (port,))))
        if isinstance(found, Denied):
            raise OSError(found.message)
        return resolved(host, port, found)

    async def close(self) -> None:
        """Nothing is open."""


class GitUpstream:
    """One box's connections to git servers; made when first needed.

    Where a secret's address is, its operator said, so it may be a private one. What is open to everybody must be
    at an address that may be dialled for any sandbox.
    """

    def __init__(self, box: Box, dialer: Dialer) -> None:
        self._box = box
        self._dialer = dialer
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        """Close them."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def renew(self) -> None:
        """Close those whose addresses are checked, and make new ones from now on."""
        former = self._sessions.pop(True, None)
        if former is not None:
            await former.close()

    def _session(self, *, public: bool) -> aiohttp.ClientSession:
        if public not in self._sessions:
            self._sessions[public] = aiohttp.ClientSession(
                connector=Connector(_PublicResolver(self._box, self._dialer), _POOL, self._dialer.tls)
                if public
                else aiohttp.TCPConnector(limit=_POOL, ssl=self._dialer.tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=IDLE),
                max_line_size=framing.MAX_LINE,
                max_field_size=framing.MAX_FIELD,
                read_bufsize=1024 * 1024,
            )
        return self._sessions[public]

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        *,
        public: bool,
        data: bytes | AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request. Raises GitRefusedError where the server cannot be reached or breaks off before its answer."""
        address = URL(url, encoded=True)
        host, port = address.host or "", address.port or 443
        proxy = self._dialer.proxies.find(address.scheme, host, port)
        if public:
            await self._check_way(host, port, proxied=proxy is not None)
        for_proxy, for_tunnel = proxy.credentials(address.scheme) if proxy is not None else ({}, {})
        headers.update(for_proxy)
        headers.setdefault(hdrs.ACCEPT_ENCODING, "identity")
        try:
            async with self._session(public=public).request(
                method,
                address,
                headers=headers,
                data=data,
                allow_redirects=False,
                proxy=proxy.url if proxy is not None else None,
                proxy_headers=for_tunnel,
            ) as answer:
                bad = framing.check_response(answer.raw_headers)
                if bad is not None:
                    raise GitRefusedError(bad.status, bad.message, "this server cannot be used", "bad-answer")
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            _log.info("git server %s cannot be reached: %s", host, type(error).__name__)
            why = str(error.os_error) if isinstance(error, aiohttp.ClientConnectorDNSError) else ""
            text = why if why.startswith(host) else f"{host} cannot be reached from the host"
            raise GitRefusedError(502, text, "try again later", "unreachable") from None

    async def _check_way(self, host: str, port: int, *, proxied: bool) -> None:
        """Refuse a way to what is open to everybody that no address is checked on (G-54, G-62, G-71)."""
        try:
            name = canonical_host(host)
        except InvalidInput as error:
            # aiohttp takes more for an address than what is one here, such as 127.1, and leaves it to the system.
            raise GitRefusedError(403, error.message, error.hint, Reason.BAD_HOST.value) from None
        allowed = Allowed(name, port, HostRule(name, (port,)))
        refusal = proxy_refusal(self._box, allowed) if proxied else None
        if not proxied and literal(name) is not None:
            # The connector dials addresses without asking its resolver.
            found = await self._dialer.addresses(self._box, allowed)
            refusal = found if isinstance(found, Denied) else None
        if refusal is not None:
            raise GitRefusedError(403, refusal.message, refusal.how_to_allow, refusal.reason.value)


def refused_by_server(target: Target, answer: aiohttp.ClientResponse) -> GitRefusedError | None:
    """What a server's answer other than 200 means, in our words: its body is not passed on (G-236, G-137)."""
    name, status = target.grant.name, answer.status
    if status == 200:
        return None
    if status == 401:
        target.give_up()
    if status in (401, 403):
        if target.grant.secret is None:
            why, hint = (
                f"{name} is not open to everybody",
                "on the host: corral secret add NAME --provider github",
            )
        else:
            why = f"the server of {name} does not accept the host's credential {target.grant.secret!r}"
            hint = "on the host, check what that credential may do"
        return GitRefusedError(403, why, hint, "refused-upstream")
    if status in (301, 302, 303, 307, 308):
        return GitRefusedError(
            403, f"{name} has moved{_moved_to(target, answer)}", "use its new name", "moved"
        )
    if status in (404, 410):
        hint = "check its name, and what the host's credential may read"
        return GitRefusedError(404, f"there is no repository {name} for this credential", hint, "not-found")
    if status in (413, 422, 429):
        return GitRefusedError(
            status, f"the server of {name} answered {status}", "try again later", "upstream"
        )
    return GitRefusedError(502, f"the server of {name} answered {status}", "try again later", "upstream")


def _moved_to(target: Target, answer: aiohttp.ClientResponse) -> str:
    """Where it is now, if that can be said without passing on what a server wrote, or the credential (G-144)."""
    location = answer.headers.get(hdrs.LOCATION, "")
    try:
        url = URL(location)
        host, _ = split_authority(url.host or "", 443)
    except (ValueError, InvalidInput):
        return ""
    path = url.path.partition("/info/refs")[0].partition("/git-")[0]
    plain = all(c.isalnum() or c in "/._-~" for c in path) and path.isascii() and len(path) < 200
    redactor = target.redactor()
    if redactor is not None and redactor.text(f"{location} {path}") != f"{location} {path}":
        return ""
    return f" to {host}{path.removesuffix('.git')}" if plain else ""


def upstream_headers(request: web.BaseRequest, target: Target) -> CIMultiDict[str]:
    """The fields of a request upstream: those that git needs of the client's, and the credential (G-238, G-241)."""
    headers = CIMultiDict({name: request.headers[name] for name in _PASSED if name in request.headers})
    if request.headers.get("Git-Protocol") in _PROTOCOLS:
        headers["Git-Protocol"] = request.headers["Git-Protocol"]
    if target.authorization:
        headers[hdrs.AUTHORIZATION] = target.authorization
    return headers
