"""A push on its way: held, read, judged, perhaps asked for, and only then sent on, byte for byte.

1. What stands before the pack is parsed. What its refs alone forbid is refused, once the client has sent all it has.
2. The pack goes to a file. From here on the client waits, and sees on git's side band what is waited for.
3. The engine has the file read in a sandbox of its own; the report says what the push brings, and whether each new
   commit follows from the old one.
4. Rules decide: yes, no, or a person is asked, shown the repository, refs, ids, commits, files and findings, and the
   digest of exactly this push. The question dies with the client's connection.
5. The server's refs are compared with those that the push was judged by. Then the same bytes go upstream in one request
   with their full length: cut anywhere, the server has an incomplete pack and does nothing. Nothing is ever sent twice:
   what is not known to be done, the client is told, and the ids make a second attempt harmless.

A refusal is a report as git's own servers give it: `! [remote rejected]` for every ref, with the reason (G-255).
"""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from aiohttp import hdrs, web

from corral.errors import CorralError, InvalidInput, TooLarge
from corral.gateway.audit import TokenBucket
from corral.gateway.box import Box
from corral.gateway.desk import Desk
from corral.gateway.gitupstream import (
    GitRefusedError,
    GitUpstream,
    Target,
    refused_by_server,
    upstream_headers,
)
from corral.gateway.pushtext import ask_detail, ask_summary, refs_text
from corral.gateway.redact import Redactor
from corral.gateway.spools import Spool, Spools
from corral.gateway.upstream import BODY_IDLE
from corral.model.approval import Kind
from corral.model.git import Verdict
from corral.model.push import PushReport, PushToInspect
from corral.policy import push as rules
from corral.policy.repos import Route
from corral.wire.gitpush import PushHead, PushReader, band, report, shown
from corral.wire.gitrefs import RefsFilter
from corral.wire.link import Asked
from corral.wire.pktline import FLUSH, encode

RESULT = "application/x-git-receive-pack-result"
_ALIVE = encode(b"\x01")
"""An empty line of the side band: git shows nothing of it, and writing it fails once nobody reads."""
_KEEP_ALIVE = 5.0
"""Seconds between signs of life while the client waits."""
_RATE, _BURST = 0.5, 30
_MAX_HEAD_SECONDS = 60.0

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class _DeniedError(Exception):
    """Ends a push with a reason for each ref."""

    def __init__(
        self, reasons: dict[str, str], message: str, hint: str = "", *, reason: str = "rule"
    ) -> None:
        super().__init__(message)
        self.reasons = reasons
        self.message = message
        self.hint = hint
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Services:
    """What a push needs of the gateway."""

    box: Box
    upstream: GitUpstream
    desk: Desk
    spools: Spools


class PushService:
    """Takes one box's pushes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._attempts = TokenBucket(_RATE, _BURST)

    async def serve(self, request: web.BaseRequest, route: Route, target: Target) -> web.StreamResponse:
        """Answer a POST to `git-receive-pack`."""
        body = _Body(request)
        head = await body.head()
        if not head.commands:
            # A client asks whether it may send before it sends much.
            return web.Response(body=b"", content_type=RESULT, headers=_HEADERS)
        if not self._attempts.take(asyncio.get_running_loop().time()):
            raise GitRefusedError(429, "this sandbox pushes too often", "wait a minute", "push-rate")
        return await _Push(self._services, request, route, target, head, body).run()


_HEADERS = {"Server": "corral", "Cache-Control": "no-cache"}


class _Push:
    """One push, from its head to its answer."""

    def __init__(
        self,
        services: Services,
        request: web.BaseRequest,
        route: Route,
        target: Target,
        head: PushHead,
        body: "_Body",
    ) -> None:
        self._services = services
        self._box = services.box
        self._request = request
        self._route = route
        self._target = target
        self._head = head
        self._body = body
        self._policy = services.box.push
        self._response: web.StreamResponse | None = None

    async def run(self) -> web.StreamResponse:
        """Take the push to its end."""
        spool: Spool | None = None
        try:
            early = self._by_refs()
            if early is not None:
                await self._body.discard(self._policy.max_pack)
                raise early
            spool = await self._services.spools.open(self._box.id, self._policy.max_pack)
            await self._body.into(spool)
            await self._begin()
            await self._judge(spool)
            return await self._forward(spool)
        except _DeniedError as denied:
            return await self._refuse(denied)
        except (InvalidInput, TooLarge) as error:
            return await self._refuse(self._denied(error.message, error.hint, "bad-push"))
        except CorralError as error:
            return await self._refuse(self._denied(error.message, error.hint, error.code))
        except GitRefusedError as error:
            return await self._refuse(self._denied(error.message, error.hint, error.reason))
        finally:
            if spool is not None:
                spool.close()

    def _denied(self, message: str, hint: str, reason: str) -> _DeniedError:
        short = " ".join(message.split())[:200]
        return _DeniedError({one.ref: short for one in self._head.commands}, message, hint, reason=reason)

    # -- judging ----------------------------------------------------------------------------------------------------

    def _by_refs(self) -> _DeniedError | None:
        """What its refs and options alone forbid: whatever an update turns out to be, if no rule would let it."""
        unlisted = rules.refused_options(self._policy, self._head.options)
        if unlisted:
            return self._denied(
                f"push option {unlisted[0][:80]!r} is not allowed", "push without -o", "push-option"
            )
        judged = [
            rules.judge(self._policy, self._box.name, one.ref, one.operation(forward=True))
            for one in self._head.commands
        ]
        if rules.verdict(judged) is not Verdict.DENY:
            return None
        # An update may be allowed as a force only; that is seen once the pack was read.
        forced = [
            rules.judge(self._policy, self._box.name, one.ref, one.operation(forward=False))
            for one in self._head.commands
        ]
        return None if rules.verdict(forced) is not Verdict.DENY else self._by_rules(judged)

    def _by_rules(self, judged: list[rules.Judgement]) -> _DeniedError:
        first = next(one for one in judged if one.verdict is Verdict.DENY)
        hint = f"push to refs/heads/corral/{self._box.name}, which is this sandbox's own, or ask its owner for a rule"
        return _DeniedError(dict(rules.reasons(judged)), first.reason, hint)

    async def _judge(self, spool: Spool) -> None:
        """Return if it may go on; raise _DeniedError if not."""
        await self._say("reading the push")
        found = await self._inspected(spool)
        forward = {one.ref: one.forward for one in found.refs}
        judged = [
            rules.judge(
                self._policy, self._box.name, one.ref, one.operation(forward=forward.get(one.ref, False))
            )
            for one in self._head.commands
        ]
        content, why = rules.flagged(self._policy, found)
        match rules.verdict(judged, content):
            case Verdict.DENY if content is Verdict.DENY:
                raise self._denied(why, "correct the commits", "content")
            case Verdict.DENY:
                raise self._by_rules(judged)
            case Verdict.ASK:
                await self._ask(spool, judged, found, why)
            case Verdict.ALLOW:
                self._note("allowed", "rule", judged[0].rule)

    async def _inspected(self, spool: Spool) -> PushReport:
        if not self._head.has_pack:
            return PushReport()
        push = PushToInspect(
            self._target.grant.host,
            self._route.path,
            self._target.grant.secret,
            self._head.commands,
            spool.size,
            self._policy.authors,
            self._policy.signed,
        )
        return await self._waiting_for(spool.inspect(push))

    async def _ask(self, spool: Spool, judged: list[rules.Judgement], found: PushReport, why: str) -> None:
        name = self._target.grant.name
        detail = ask_detail(name, self._head, judged, found, spool.digest)
        reasons = "; ".join(
            dict.fromkeys([one.reason for one in judged if one.reason] + ([why] if why else []))
        )

        def told(asked: Asked) -> None:
            who = f"{asked.listeners} listening" if asked.listeners else "nobody is listening now"
            self._announce(
                f"a person is asked ({who}), who has {asked.seconds} seconds\n"
                f"  on the host: corral approve {asked.approval}   or   corral deny {asked.approval}"
            )

        summary = ask_summary(name, judged, found)
        await self._say(f"this push needs a person's yes: {reasons}\n  {summary}")
        answer = await self._waiting_for(
            self._services.desk.ask(
                self._box.id,
                Kind.PUSH,
                summary,
                detail,
                self._policy.wait,
                told,
            )
        )
        if not answer.allowed:
            reason = " ".join(answer.reason.split()) or "no reason was given"
            by = f" by {answer.by}" if answer.by else ""
            raise self._denied(
                f"refused{by}: {reason}", "talk to the person, then push again", "not-approved"
            )
        self._note("approved", "approval", "")
        await self._say(f"approved by {answer.by or 'a person'}")

    # -- talking ----------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Begin the answer: from here on the client can be told what is waited for."""
        if self._head.band is not None:
            await self._begun()

    async def _begun(self) -> web.StreamResponse:
        response = web.StreamResponse(headers=_HEADERS)
        response.content_type = RESULT
        await response.prepare(self._request)
        self._response = response
        return response

    async def _say(self, text: str) -> None:
        if self._response is not None:
            await self._response.write(shown(self._head, f"corral: {text}"))

    def _announce(self, text: str) -> None:
        self._box.spawn(self._said(text))

    async def _said(self, text: str) -> None:
        with contextlib.suppress(ConnectionError):
            await self._say(text)

    async def _waiting_for(self, work: Awaitable[_T]) -> _T:
        """The result of what takes long, with a sign of life to the client meanwhile. Its going away ends the work."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait((task,), timeout=_KEEP_ALIVE)
                if done:
                    return task.result()
                if self._response is not None:
                    await self._response.write(_ALIVE)
        finally:
            task.cancel()

    async def _refuse(self, denied: _DeniedError) -> web.StreamResponse:
        self._note("denied", denied.reason, denied.message)
        text = f"corral: {denied.message}" + (
            f"\n{denied.hint[:1].upper()}{denied.hint[1:]}" if denied.hint else ""
        )
        data = shown(self._head, text) + self._ending(denied)
        if not data:
            # It reads no report and has no side band: there is only the status to tell.
            raise GitRefusedError(403, denied.message, denied.hint or "push otherwise", denied.reason)
        if self._response is None:
            response = web.Response(body=data, headers=_HEADERS, content_type=RESULT)
            if not self._body.ended:
                response.force_close()
            return response
        await self._response.write(data)
        await self._response.write_eof()
        return self._response

    def _ending(self, denied: _DeniedError) -> bytes:
        """The end of the answer: a report, or for a client that reads none the side band's error."""
        if self._head.reports:
            return report(self._head, denied.reasons)
        return b"" if self._head.band is None else band(self._head, 3, denied.message.encode()) + FLUSH

    def _note(self, decision: str, reason: str, rule: str) -> None:
        self._box.note(
            "git",
            decision,
            host=self._route.host,
            method="push",
            path=self._target.grant.path,
            reason=reason,
            rule=rule[:200],
            secret=self._target.grant.secret or "",
            refs=refs_text(self._head.commands),
        )

    # -- sending ----------------------------------------------------------------------------------------------------

    async def _forward(self, spool: Spool) -> web.StreamResponse:
        await self._compare()
        headers = upstream_headers(self._request, self._target)
        headers.popall(hdrs.CONTENT_ENCODING, None)
        headers[hdrs.CONTENT_LENGTH] = str(len(self._head.raw) + spool.size)
        try:
            async with self._services.upstream.request(
                "POST", self._target.url(self._route), headers, public=False, data=self._bytes(spool)
            ) as answer:
                refusal = refused_by_server(self._target, answer)
                if refusal is not None:
                    raise refusal
                return await self._relay(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.warning("a push of sandbox %s broke off: %s", self._box.id, type(error).__name__)
            raise self._denied(
                "the connection to the server broke off, so it is not known whether the push was done",
                "look with `git ls-remote`, then push again: it will not be done twice",
                "broken-off",
            ) from None

    async def _bytes(self, spool: Spool) -> AsyncIterator[bytes]:
        """Exactly what was read and judged (G-261)."""
        yield self._head.raw
        async for data in spool.read():
            yield data

    async def _compare(self) -> None:
        """The server's refs must still be those that the push was judged by (G-262)."""
        route = Route(
            self._route.host, self._route.path, self._route.service, "info/refs", "?service=git-receive-pack"
        )
        headers = upstream_headers(self._request, self._target)
        for name in (hdrs.CONTENT_TYPE, hdrs.CONTENT_ENCODING, "Git-Protocol"):
            headers.popall(name, None)
        filter = RefsFilter(push=True)
        async with self._services.upstream.request(
            "GET", self._target.url(route), headers, public=False
        ) as answer:
            refusal = refused_by_server(self._target, answer)
            if refusal is not None:
                raise refusal
            async for chunk in answer.content.iter_any():
                filter.feed(chunk)
            filter.finish()
        for one in self._head.commands:
            now = filter.refs.get(one.ref, "0" * len(one.old))
            if now != one.old:
                raise self._denied(
                    f"{one.ref} has moved on the server since this push began",
                    "fetch, then push again",
                    "moved",
                )

    async def _relay(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass the server's report on, the credential taken out of it."""
        response = self._response or await self._begun()
        redactor = (
            Redactor(self._target.forms, self._target.grant.secret or "") if self._target.forms else None
        )
        async for chunk in answer.content.iter_any():
            await response.write(redactor.feed(chunk) if redactor else chunk)
        if redactor:
            await response.write(redactor.finish())
        await response.write_eof()
        self._note("done", "", "")
        return response


class _Body:
    """The request's body, decoded, in pieces."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._reader = PushReader()
        self._rest = b""
        self._gzip = _decoder(request)
        self.ended = False

    async def head(self) -> PushHead:
        """What stands before the pack. Raises GitRefusedError for what is no push."""
        try:
            async with asyncio.timeout(_MAX_HEAD_SECONDS):
                while True:
                    data = await self._piece()
                    if not data:
                        raise InvalidInput("the push is cut", "push again")
                    head = self._reader.feed(data)
                    if head is not None:
                        self._rest = self._reader.rest
                        return head
        except TimeoutError:
            raise GitRefusedError(408, "the push did not come", "push again", "push-timeout") from None
        except (InvalidInput, TooLarge) as error:
            raise GitRefusedError(400, error.message, error.hint, "bad-push") from None

    async def into(self, spool: Spool) -> None:
        """Write the pack to a file. Raises TooLarge, DiskFull, InvalidInput."""
        if self._rest:
            await spool.write(self._rest)
        while data := await self._piece():
            await spool.write(data)
        await spool.flush()
        self.ended = True

    async def discard(self, limit: int) -> None:
        """Read to the end, so that the client gets to read the answer; but not for ever."""
        size = 0
        while data := await self._piece():
            size += len(data)
            if size > limit:
                return
        self.ended = True

    async def _piece(self) -> bytes:
        """The next bytes; none at the end."""
        while True:
            try:
                async with asyncio.timeout(BODY_IDLE):
                    data = await self._request.content.readany()
            except web.RequestPayloadError:
                raise InvalidInput("the push is cut or badly framed", "push again") from None
            if not data or self._gzip is None:
                return data
            decoded = self._gzip.feed(data)
            if decoded:
                return decoded


class _Gzip:
    """Takes gzip off, so much at a time."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(31)

    def feed(self, data: bytes) -> bytes:
        try:
            out = self._decoder.decompress(data, 64 * 1024 * 1024)
        except zlib.error:
            raise InvalidInput("the push is not valid gzip", "push again") from None
        if self._decoder.unconsumed_tail or self._decoder.unused_data:
            raise InvalidInput("the push is compressed too much", "push again")
        return out


def _decoder(request: web.BaseRequest) -> _Gzip | None:
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        return _Gzip()
    if coding != "identity":
        raise GitRefusedError(
            415, f"Content-Encoding {coding[:40]!r} is not supported", "use gzip", "bad-coding"
        )
    return None
