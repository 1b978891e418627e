"""http://gateway.corral/ask/…: where a sandbox asks a person for what it was not given.

The body of `POST /ask/host` or `/ask/budget` is plain text: the first line says what, the rest why. The answer is plain
text too, line by line as things happen, so that an agent that waits sees what it waits for; its last line begins with
`allowed:` or `denied:`. A client that goes away withdraws its question.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from aiohttp import web

from corral.errors import InvalidInput
from corral.gateway.audit import TokenBucket
from corral.gateway.box import Box
from corral.gateway.desk import Desk
from corral.gateway.replies import closing, plain
from corral.model.approval import Answer, Kind
from corral.model.egress import EgressPolicy, HostRule
from corral.policy.addresses import parse_networks, refused_class
from corral.policy.egress import GATEWAY_HOST, Denied, Reason, literal
from corral.policy.money import dollars, parse_dollars, usd_text
from corral.policy.rules import parse_rule, rule_text
from corral.wire import link

PATH = "/ask"
DEADLINE = 24 * 3600
"""Seconds that a sandbox would wait; the host's settings say how long it does."""
MAX_BODY = 8 * 1024
BODY_SECONDS = 15.0
BEAT_SECONDS = 15.0
"""At most this long without a line."""
MAX_WAITING = 16
_RATE, _BURST = 0.5, 20
_NEVER = (Reason.METADATA, Reason.MODEL_API, Reason.DENIED)
"""No yes opens these: what a rule denies, the person who made the rule can take back."""

USAGE = f"""Ask the person who runs this sandbox for what it was not given:

    corral-ask host api.example.com "why it is needed"
    corral-ask budget 5 "why more US dollars are needed for model calls"

or without that program:

    curl -N --data-binary $'api.example.com\\nwhy' http://{GATEWAY_HOST}{PATH}/host
    curl -N --data-binary $'5\\nwhy' http://{GATEWAY_HOST}{PATH}/budget

The answer comes when a person gives it, and its last line begins with "allowed:" or "denied:".
"""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A question that can be put."""

    kind: Kind
    summary: str
    detail: dict[str, str]


class _SettledError(Exception):
    """It need not, or cannot, be asked."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


class AskService:
    """Takes one box's questions."""

    def __init__(self, box: Box, desk: Desk) -> None:
        self._box = box
        self._desk = desk
        self._bucket = TokenBucket(_RATE, _BURST)
        self._waiting = 0

    async def serve(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer a request to `/ask…`."""
        parse = self._parsers().get(path)
        if parse is None or request.method != "POST":
            status = 200 if request.method in ("GET", "HEAD") and path.rstrip("/") == PATH else 404
            return closing(plain(status, USAGE))
        if self._waiting >= MAX_WAITING or not self._bucket.take(asyncio.get_running_loop().time()):
            return closing(plain(429, "denied: too many questions at a time.", reason="ask-rate"))
        self._waiting += 1
        try:
            what, reason = await _read(request)
            wanted = parse(what, reason)
        except _SettledError as settled:
            return closing(plain(200, settled.line))
        except InvalidInput as error:
            text = f"denied: {error.message}; {error.hint}."
            return closing(plain(400, text, reason="bad-request"))
        else:
            return await self._put(request, wanted)
        finally:
            self._waiting -= 1

    def _parsers(self) -> dict[str, Callable[[str, str], _Wanted]]:
        return {f"{PATH}/host": self._host, f"{PATH}/budget": self._budget}

    def _host(self, what: str, reason: str) -> _Wanted:
        """A question for a host, which policy does not allow and could allow."""
        rule = parse_rule(what)
        if rule.is_range:
            raise InvalidInput("a range cannot be asked for", "ask for the address that you need")
        if rule.host == "*":
            raise InvalidInput("every host cannot be asked for", "ask for the host that you need")
        if rule.private:
            raise InvalidInput(
                "a private service cannot be asked for", "the operator of the host can open it"
            )
        decisions = [self._box.decide(_sample(rule), port) for port in rule.ports]
        denied = [item for item in decisions if isinstance(item, Denied)]
        if not denied and not rule.inside:
            raise _SettledError(f"allowed: {rule_text(rule)} is open to this sandbox already.")
        never = next((i for i in denied if i.reason in _NEVER), None)
        if never is not None:
            raise _SettledError(f"denied: {never.message}; {never.how_to_allow}.")
        if (refusal := _bad_address(rule, self._box.policy)) is not None:
            raise _SettledError(f"denied: {rule.host} is {refusal}, which a sandbox cannot reach.")
        return _Wanted(
            Kind.HOST, f"connect to {rule_text(rule)}: {reason}", {"host": rule_text(rule), "reason": reason}
        )

    def _budget(self, what: str, reason: str) -> _Wanted:
        """A question for more money."""
        amount = parse_dollars(what, "amount")
        if amount <= 0:
            raise InvalidInput("the amount is nothing", "say how many US dollars more, such as 5")
        summary = f"spend {dollars(amount)} more on model calls: {reason}"
        return _Wanted(Kind.BUDGET, summary, {"usd": usd_text(amount), "reason": reason})

    async def _put(self, request: web.BaseRequest, wanted: _Wanted) -> web.StreamResponse:
        """Ask, and say what happens meanwhile."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/plain; charset=utf-8", "Server": "corral"}
        )
        response.force_close()
        await response.prepare(request)
        await response.write(b"asking the person who runs this sandbox\n")
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(
                self._desk.ask(
                    self._box.id, wanted.kind, wanted.summary, wanted.detail, DEADLINE,
                    lambda asked: lines.put_nowait(_asked(asked)),
                )
            )  # fmt: skip
            asking.add_done_callback(lambda _: lines.put_nowait(None))
            await _relay(lines, response)
            answer = await asking
        await response.write(_told(answer, wanted).encode())
        await response.write_eof()
        return response


async def _relay(lines: "asyncio.Queue[str | None]", response: web.StreamResponse) -> None:
    """Write lines as they come, and that there are none yet, until None comes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                line = await lines.get()
        except TimeoutError:
            line = f"still waiting, for {round(loop.time() - began)} seconds now"
        if line is None:
            return
        await response.write(f"{line}\n".encode())


async def _read(request: web.BaseRequest) -> tuple[str, str]:
    """First line and rest of a body."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await request.content.read(MAX_BODY + 1)
            while len(data) <= MAX_BODY and (more := await request.content.read(MAX_BODY + 1 - len(data))):
                data += more
    except (TimeoutError, web.RequestPayloadError):
        raise InvalidInput("the question did not come whole", "send it at once") from None
    if len(data) > MAX_BODY:
        raise InvalidInput("the question is too long", f"use at most {MAX_BODY} bytes")
    what, _, reason = data.decode("utf-8", "replace").strip().partition("\n")
    reason = " ".join(reason.split())
    if not reason:
        raise InvalidInput("the question gives no reason", "say why it is needed, for the person who decides")
    return what.strip(), reason


def _sample(rule: HostRule) -> str:
    """A host that the rule covers."""
    return "x" + rule.host[1:] if rule.host.startswith("*.") else rule.host


def _bad_address(rule: HostRule, policy: EgressPolicy) -> str | None:
    """Why an address would be refused whatever a person says; a name is judged when it is dialled."""
    address = literal(rule.host)
    if not isinstance(address, IPv4Address | IPv6Address):
        return None
    return refused_class(address, parse_networks(policy.networks), frozenset())


def _asked(asked: link.Asked) -> str:
    who = "somebody listens for questions" if asked.listeners else "nobody listens for questions right now"
    return (
        f"question {asked.approval} waits for an answer ({who}); it is a no in {asked.seconds} seconds; "
        f"on the host: corral approve {asked.approval}"
    )


def _told(answer: Answer, wanted: _Wanted) -> str:
    reason = " ".join(answer.reason.split())
    if not answer.allowed:
        return f"denied: {reason or 'the person gave no reason'}\n"
    what = wanted.detail.get("host") or f"{wanted.detail.get('usd')} US dollars more"
    reach = {"once": " for ten minutes" if wanted.kind is Kind.HOST else "", "sandbox": " for this sandbox"}
    how = reach.get(answer.scope.value if answer.scope else "", "")
    return f"allowed: {what}{how}{f' ({reason})' if reason else ''}\n"
