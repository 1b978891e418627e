"""The git service: http://gateway.corral/git/HOST/OWNER/NAME, a stand-in for a repository on its server.

The path of a request: whose sandbox (the socket), its token, the repository that its grant covers and how far; then it
goes upstream with the host's credential, and the answer comes back as it is made. A fetch streams through. A push is
held, read and judged first: see `gitpush`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict

from corral.errors import InvalidInput, TooLarge
from corral.gateway.access import tokens
from corral.gateway.apptokens import AppTokens
from corral.gateway.box import Box
from corral.gateway.desk import Desk
from corral.gateway.dial import Dialer
from corral.gateway.exchange import NOTHING, Moved, Passing
from corral.gateway.forward import continue_if_asked, cut, moved, pump
from corral.gateway.gitlfs import LfsService
from corral.gateway.gitpush import PushService, Services
from corral.gateway.gitupstream import (
    GitRefusedError,
    GitUpstream,
    Target,
    refused_by_server,
    target,
    upstream_headers,
)
from corral.gateway.outbox import Outbox
from corral.gateway.redact import Redactor
from corral.gateway.replies import closing, plain
from corral.gateway.spools import Spools
from corral.gateway.upstream import body_of
from corral.gateway.vault import Credential
from corral.model.git import Access, RepoGrant
from corral.policy.repos import BadRoute, Route, Service, find_grant, route
from corral.wire.githubapp import Need
from corral.wire.gitrefs import RefsFilter, Texts

_KINDS = {
    Service.READ_REFS: "application/x-git-upload-pack-advertisement",
    Service.WRITE_REFS: "application/x-git-receive-pack-advertisement",
    Service.FETCH: "application/x-git-upload-pack-result",
}
_log = logging.getLogger(__name__)


class GitService:
    """Serves one box's git."""

    def __init__(
        self,
        box: Box,
        dialer: Dialer,
        granted: Callable[[Box], Mapping[str, Credential]],
        tokens: AppTokens,
        desk: Desk,
        spools: Spools,
        outbox: Outbox,
    ) -> None:
        self._box = box
        self._granted = granted
        self._tokens = tokens
        self._upstream = GitUpstream(box, dialer)
        self._lfs = LfsService(box, self._upstream)
        self._pushes = PushService(Services(box, self._upstream, desk, spools, outbox))

    async def close(self) -> None:
        """Close its connections."""
        await self._upstream.close()

    async def renew(self) -> None:
        """Close its connections to what is open to everybody, and make new ones from now on."""
        await self._upstream.renew()

    async def serve(self, request: web.BaseRequest, path: str, query: str) -> web.StreamResponse:
        """Answer a request to `/git/…`."""
        found = route(request.method, path, query)
        try:
            if isinstance(found, BadRoute):
                raise GitRefusedError(404, found.message, "use git with an https:// URL", "bad-route")
            unauthenticated = self._authenticate(request)
            if unauthenticated is not None:
                return unauthenticated
            grant = self._grant(found)
            async with self._using(grant, request):
                return await self._dispatch(request, found, grant)
        except GitRefusedError as refused:
            self._note("denied", found, refused.reason, request.method, path, refused.status)
            return closing(plain(refused.status, refused.text, reason=refused.reason))

    def _authenticate(self, request: web.BaseRequest) -> web.Response | None:
        """None for the token of this sandbox; else what makes git ask its helper for it (G-19, G-237)."""
        found = tokens(request.raw_headers, "")
        if len(found) == 1 and self._box.has_token(next(iter(found))):
            return None
        if found and not self._box.bad_tokens.take(asyncio.get_running_loop().time()):
            raise GitRefusedError(
                429, "too many requests with wrong tokens", "use git as it is set up here", "bad-token-rate"
            )
        answer = plain(
            401, "The sandbox's own token is wanted, which git has from its helper.", reason="no-token"
        )
        answer.headers[hdrs.WWW_AUTHENTICATE] = 'Basic realm="corral"'
        return closing(answer)

    def _grant(self, route: Route) -> RepoGrant:
        grant = find_grant(self._box.repos, route.host, route.path)
        name = f"{route.host}/{route.path.removesuffix('.git')}"
        if grant is None:
            raise GitRefusedError(
                403, f"this sandbox may not use the repository {name}",
                f"ask the person who runs it to open it: corral create --git-repo {name}", "repo-not-granted",
            )  # fmt: skip
        if route.service.writes and grant.access is not Access.WRITE:
            raise GitRefusedError(
                403, f"this sandbox may read {name} but not push to it",
                f"ask the person who runs it to open it: corral create --git-repo {name}:write", "read-only",
            )  # fmt: skip
        return grant

    def _using(self, grant: RepoGrant, request: web.BaseRequest) -> AbstractAsyncContextManager[None]:
        """Cuts what goes by a credential once the grant covers it no more: clones, pushes, also one that waits (G-333)."""
        return nullcontext() if grant.secret is None else self._box.using("git", grant.secret, request)

    async def _target(self, route: Route, grant: RepoGrant) -> Target:
        reads = route.service in (Service.READ_REFS, Service.FETCH) or grant.access is not Access.WRITE
        return await target(grant, self._granted(self._box), self._tokens, Need.READ if reads else Need.PUSH)

    async def _dispatch(self, request: web.BaseRequest, route: Route, grant: RepoGrant) -> web.StreamResponse:
        target = await self._target(route, grant)
        match route.service:
            case Service.READ_REFS | Service.WRITE_REFS:
                return await self._refs(request, route, target)
            case Service.FETCH:
                return await self._fetch(request, route, target)
            case Service.PUSH:
                return await self._push(request, route, target)
            case _:
                return await self._lfs.serve(request, route, target)

    async def _refs(self, request: web.BaseRequest, route: Route, target: Target) -> web.StreamResponse:
        push = route.service is Service.WRITE_REFS
        filter = RefsFilter(push=push, options=bool(self._box.push.options))
        redactor = target.redactor()
        async with self._call(request, route, target) as upstream:
            response = _response(_KINDS[route.service])
            await response.prepare(request)
            try:
                async for chunk in upstream.content.iter_any():
                    passed = filter.feed(chunk)
                    await response.write(redactor.feed(passed) if redactor else passed)
                filter.finish()
                if redactor:
                    await response.write(redactor.finish())
            except (InvalidInput, TooLarge, aiohttp.ClientError, TimeoutError) as error:
                _log.info("a list of refs for %s is cut: %s", self._box.id, type(error).__name__)
                cut(request)
                return response
            finally:
                self._found(target, redactor)
            await response.write_eof()
            return response

    async def _fetch(self, request: web.BaseRequest, route: Route, target: Target) -> web.StreamResponse:
        async with self._call(request, route, target, body_of(request)) as upstream:
            response = _response(_KINDS[route.service])
            await response.prepare(request)
            redactor = target.redactor()
            chunks = upstream.content.iter_any()
            try:
                await pump(_searched(chunks, redactor) if redactor else chunks, response, request)
            finally:
                self._found(target, redactor)
            return response

    def _found(self, target: Target, redactor: Redactor | None) -> None:
        """Record the credential where it was taken out of an answer (G-148)."""
        if redactor is not None and redactor.hits:
            self._box.note("redaction", "redacted", host=target.grant.host, secret=target.grant.secret or "",
                           reason=f"{redactor.hits} hits")  # fmt: skip

    async def _push(self, request: web.BaseRequest, route: Route, target: Target) -> web.StreamResponse:
        await continue_if_asked(request, CIMultiDict(request.headers))
        return await self._pushes.serve(request, route, target, lambda: self._target(route, target.grant))

    @asynccontextmanager
    async def _call(
        self, request: web.BaseRequest, route: Route, target: Target, data: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request passed on, and its good answer."""
        headers = upstream_headers(request, target)
        if data is not None:
            await continue_if_asked(request, CIMultiDict(request.headers))
            if request.content_length is not None:
                headers[hdrs.CONTENT_LENGTH] = str(request.content_length)
        public = target.grant.secret is None
        async with self._upstream.request(
            request.method, target.url(route), headers, public=public, data=data
        ) as answer:
            refusal = refused_by_server(target, answer)
            if refusal is None and answer.content_type != _KINDS[route.service]:
                refusal = GitRefusedError(
                    502, f"the server of {target.grant.name} does not speak git's smart protocol there",
                    "check the repository's address", "not-git",
                )  # fmt: skip
            if refusal is None and answer.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
                refusal = GitRefusedError(
                    502, f"the server of {target.grant.name} compresses its answer unasked", "it cannot be used", "bad-answer"
                )  # fmt: skip
            if refusal is not None:
                raise refusal
            note = partial(self._passed, route, request.method, request.raw_path.partition("?")[0])
            with Passing(note, partial(moved, request)):
                yield answer

    def _passed(
        self,
        route: Route,
        method: str,
        path: str,
        *,
        ended: bool = False,
        moved: Moved = NOTHING,
        ms: int = 0,
    ) -> None:
        self._box.note(
            "git", "ended" if ended else "allowed", host=route.host, method=method, path=path, status=200, moved=moved, ms=ms,
        )  # fmt: skip

    def _note(
        self, decision: str, route: Route | BadRoute, reason: str, method: str, path: str, status: int
    ) -> None:
        host = route.host if isinstance(route, Route) else ""
        self._box.note("git", decision, host=host, method=method, path=path, reason=reason, status=status)


async def _searched(chunks: AsyncIterator[bytes], redactor: Redactor) -> AsyncIterator[bytes]:
    """An answer to a fetch whose text is redacted, line by line (G-137)."""
    texts = Texts(redactor.whole)
    async for chunk in chunks:
        if passed := texts.feed(chunk):
            yield passed
    if last := texts.finish():
        yield last


def _response(kind: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Server": "corral", "Cache-Control": "no-cache"})
    response.content_type = kind
    return response
