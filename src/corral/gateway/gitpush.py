"""A push on its way: held, read, judged, perhaps asked for, and only then sent on, byte for byte.

1. What stands before the pack is parsed. What its refs alone forbid is refused, once the client has sent all it has.
2. The pack goes to a file. From here on the client waits, and sees on git's side band what is waited for.
3. The engine has the file read in a sandbox of its own; the report says what the push brings, and whether each new
   commit follows from the old one.
4. Rules decide: yes, no, or a person is asked, shown the repository, refs, ids, commits, files and findings, and the
   digest of exactly this push. The question dies with the client's connection.
5. The server's refs are compared with those that the push was judged by, and the record of the yes is made to last.
   Then the same bytes go upstream in one request with their full length: cut anywhere, the server has an incomplete pack
   and does nothing. Nothing is ever sent twice: what is not known to be done, the client is told, and the ids make a
   second attempt harmless.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

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
from corral.gateway.outbox import Outbox
from corral.gateway.pushanswer import DeniedError, PushAnswer, empty
from corral.gateway.pushbody import PushBody
from corral.gateway.pushtext import ask_detail, ask_summary, refs_text
from corral.gateway.spools import Spool, Spools
from corral.model.approval import Kind
from corral.model.git import Verdict
from corral.model.push import FlagKind, PushReport, PushToInspect
from corral.policy import push as rules
from corral.policy.egress import Reason
from corral.policy.repos import Route
from corral.wire.gitpush import PushHead
from corral.wire.gitrefs import RefsFilter
from corral.wire.link import Asked

_RATE, _BURST = 0.5, 30

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """What a push needs of the gateway."""

    box: Box
    upstream: GitUpstream
    desk: Desk
    spools: Spools
    outbox: Outbox


class PushService:
    """Takes one box's pushes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._attempts = TokenBucket(_RATE, _BURST)

    async def serve(
        self, request: web.BaseRequest, route: Route, target: Target, renewed: Callable[[], Awaitable[Target]]
    ) -> web.StreamResponse:
        """Answer a POST to `git-receive-pack`. `renewed` gives the target with the credential that is good at the end of
        the wait.
        """
        body = PushBody(request, self._services.box)
        try:
            head = await body.head()
            if not head.commands:
                return empty()
            if not self._attempts.take(asyncio.get_running_loop().time()):
                raise GitRefusedError(429, "this sandbox pushes too often", "wait a minute", "push-rate")
            return await _Push(self._services, request, route, target, renewed, head, body).run()
        finally:
            body.close()


class _Push:
    """One push, from its head to its answer."""

    def __init__(
        self,
        services: Services,
        request: web.BaseRequest,
        route: Route,
        target: Target,
        renewed: Callable[[], Awaitable[Target]],
        head: PushHead,
        body: PushBody,
    ) -> None:
        self._services = services
        self._box = services.box
        self._request = request
        self._route = route
        self._target = target
        self._renewed = renewed
        self._head = head
        self._body = body
        self._policy = services.box.push
        self._answer = PushAnswer(request, head)

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
            await self._answer.begin()
            await self._judge(spool)
            return await self._forward(spool)
        except DeniedError as denied:
            return await self._refused(denied)
        except (InvalidInput, TooLarge) as error:
            return await self._refused(self._denied(error.message, error.hint, "bad-push"))
        except CorralError as error:
            return await self._refused(self._denied(error.message, error.hint, error.code))
        except GitRefusedError as error:
            return await self._refused(self._denied(error.message, error.hint, error.reason))
        finally:
            if spool is not None:
                spool.close()

    def _denied(self, message: str, hint: str, reason: str) -> DeniedError:
        return DeniedError.whole(self._head, message, hint, reason)

    async def _refused(self, denied: DeniedError) -> web.StreamResponse:
        self._note("denied", denied.reason, denied.message)
        return await self._answer.refuse(denied, body_ended=self._body.ended)

    # -- judging ----------------------------------------------------------------------------------------------------

    def _by_refs(self) -> DeniedError | None:
        """What its refs and options alone forbid: whatever an update turns out to be, if no rule would let it."""
        if (name := self._box.secret_in(self._head.raw)) is not None:
            return self._leaked(name, "the push names a secret of this host, which no sandbox is given")
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

    def _leaked(self, name: str, message: str) -> DeniedError:
        self._box.leak("a push", name, self._route.host)
        hint = "take it out of the commits; on the host, replace the secret: it has leaked"
        return self._denied(message, hint, Reason.SECRET.value)

    def _by_rules(self, judged: list[rules.Judgement]) -> DeniedError:
        first = next(one for one in judged if one.verdict is Verdict.DENY)
        hint = f"push to refs/heads/corral/{self._box.name}, which is this sandbox's own, or ask its owner for a rule"
        return DeniedError(dict(rules.reasons(judged)), first.reason, hint)

    async def _judge(self, spool: Spool) -> None:
        """Return if it may go on; raise DeniedError if not."""
        await self._answer.say("reading the push")
        found = await self._inspected(spool)
        forward = {one.ref: one.forward for one in found.refs}
        judged = [
            rules.judge(
                self._policy, self._box.name, one.ref, one.operation(forward=forward.get(one.ref, False))
            )
            for one in self._head.commands
        ]
        content, why = rules.flagged(self._policy, found)
        leak = next((flag for flag in found.flags if flag.kind is FlagKind.LEAK), None)
        match rules.verdict(judged, content):
            case Verdict.DENY if leak is not None:
                raise self._leaked(leak.detail, rules.describe(leak))
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
        return await self._answer.waiting_for(spool.inspect(push))

    async def _ask(self, spool: Spool, judged: list[rules.Judgement], found: PushReport, why: str) -> None:
        name = self._target.grant.name
        detail = ask_detail(name, self._head, judged, found, spool.digest)
        reasons = "; ".join(
            dict.fromkeys([one.reason for one in judged if one.reason] + ([why] if why else []))
        )

        put: list[str] = []

        def told(asked: Asked) -> None:
            put.append(asked.approval)
            who = f"{asked.listeners} listening" if asked.listeners else "nobody is listening now"
            text = (
                f"a person is asked ({who}), who has {asked.seconds} seconds\n"
                f"  on the host: corral approve {asked.approval}   or   corral deny {asked.approval}"
            )
            self._box.spawn(self._answer.say_if_heard(text))

        summary = ask_summary(name, judged, found)
        await self._answer.say(f"this push needs a person's yes: {reasons}\n  {summary}")
        answer = await self._answer.waiting_for(
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
            hint = "talk to the person, then push again"
            if put and not answer.by:
                hint = f"a yes still counts: on the host, `corral approve {put[0]}`; then push the same again"
            raise self._denied(f"refused{by}: {reason}", hint, "not-approved")
        self._note("approved", "approval", "")
        await self._answer.say(f"approved by {answer.by or 'a person'}")

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
        self._target = await self._renewed()
        await self._compare()
        # That it was let through is on record before it is done (G-325), and what cannot be recorded is not (G-326).
        await self._services.outbox.flush()
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
        response = await self._answer.relay(answer.content.iter_any(), self._target.redactor())
        self._note("done", "", "")
        return response
