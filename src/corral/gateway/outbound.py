"""A request to an allowed host, decided on and made ready: what may be sent, what goes into it, what is looked for in its
answer. The same for every version of HTTP.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote_plus

from aiohttp import hdrs
from multidict import CIMultiDict

from corral.errors import Forbidden
from corral.gateway import aws, framing
from corral.gateway.aws import Data
from corral.gateway.box import Box
from corral.gateway.buffered import HINT, MESSAGE, Buffered
from corral.gateway.exchange import Moved, Passing
from corral.gateway.inject import Bound, Injected, Rejected, inject, missing
from corral.gateway.overrides import Overrides
from corral.gateway.overrides import refusal as overriding
from corral.gateway.redact import Forms
from corral.gateway.rewrite import AbsentError, Guard, Outgoing, coding_of, readable_codings
from corral.gateway.underway import Ongoing
from corral.model.binding import Mode, Place
from corral.policy.egress import Allowed, Denied, Reason
from corral.policy.paths import OVERRIDES, unsafe

_NO_RANGES = frozenset({"range", "if-range"})


class StopError(Exception):
    """Ends a request with a refusal."""

    def __init__(self, refusal: Denied, status: int = 403) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """A request before its body: `target` is path and query, `fields` are spelled and ordered as they came. `websocket`:
    it is a good handshake of one, over TLS.
    """

    method: str
    target: str
    fields: framing.Fields
    websocket: bool = False

    @property
    def path(self) -> str:
        """The target without the query."""
        return self.target.partition("?")[0]

    def all(self, name: str) -> list[str]:
        """The values of a field, as text."""
        named = framing.by_name(self.fields)
        return [value.decode("utf-8", "replace") for value in named.get(name.lower().encode(), [])]


@dataclass(frozen=True, slots=True)
class Ready:
    """A request's body as it is to be sent, and the names of the secrets that are in the request."""

    data: Data
    used: frozenset[str]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that may be made: as it is to be sent, and what must be taken out of its answer."""

    allowed: Allowed
    tls: bool
    injected: Injected
    bound: tuple[Bound, ...]
    guard: Guard | None
    path: str
    upgrade: bool
    overrides: Overrides | None = None

    @property
    def forms(self) -> Forms | None:
        """What is looked for in the answer."""
        wanted = [one.forms for one in self.bound if one.forms is not None]
        return Forms.joined(wanted) if wanted else None

    @property
    def secrets(self) -> frozenset[str]:
        """The names of what may go into it, its body not being read yet."""
        return self.injected.used | {one.name for one in self.bound if _is_late(one)}

    def ongoing(self, method: str, cut: Callable[[], object]) -> Ongoing:
        """The call while it is made, to be cut by `cut`."""
        return Ongoing(self.allowed, method, self.path, self.tls, self.secrets, cut)

    def headers(self) -> CIMultiDict[str]:
        """The fields to be sent. Where the answer is searched, it is asked for in a form that can be (G-94, G-142)."""
        headers = CIMultiDict(self.injected.fields)
        if self.bound:
            headers[hdrs.ACCEPT_ENCODING] = readable_codings(headers.popall(hdrs.ACCEPT_ENCODING, []))
            for name in _NO_RANGES:
                headers.popall(name, None)
        return headers

    async def ready(
        self,
        head: Head,
        body: AsyncIterator[bytes] | None,
        headers: CIMultiDict[str],
        buffered: Buffered,
    ) -> Ready:
        """The body as it is to be sent, with `headers` changed for it; what is gathered of it is counted until it is sent.
        Raises InvalidInput, Forbidden, LeakError, TooManyBytesError, and StopError for one without the placeholder that it
        must hold (G-27).
        """
        data: Data = None
        required = dict(self.injected.required)
        if body is None and required:
            raise StopError(absent(self.allowed, missing(next(iter(required.values())))))
        if body is not None:
            if self.overrides is not None:
                body = self.overrides.stream(body)
            coding = coding_of(head.all(hdrs.CONTENT_ENCODING))
            kind = next(iter(head.all(hdrs.CONTENT_TYPE)), "")
            outgoing = Outgoing(self.guard, self.injected.exchange, coding, kind)
            try:
                data = await outgoing.framed(body, headers, buffered, required)
            except AbsentError as error:
                raise StopError(absent(self.allowed, missing(required[error.stand]))) from None
        target = self.injected.target
        if (one := aws.signer(self.bound, target, headers)) is None:
            return Ready(data, self.injected.used)
        data = await aws.sign(one, head.method, target, self.allowed.host, headers, data, buffered)
        return Ready(data, self.injected.used | {one.name})


class Outbound:
    """Decides on one box's requests to hosts that it may reach."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def prepare(self, head: Head, allowed: Allowed, *, tls: bool) -> Call:
        """The request as it is to be sent. Raises StopError."""
        bound = self._box.bound_at(allowed.host, allowed.port, tls=tls)
        overrides = self._check_readings(head, allowed, guarded=bool(bound))
        decision = self._box.rules.decide_request(allowed, head.method, head.path)
        if isinstance(decision, Denied):
            raise StopError(decision)
        upgrade = framing.wants_upgrade(head.fields)
        if upgrade and not head.websocket:
            raise StopError(
                bad_request(
                    decision,
                    "connections cannot change their protocol here",
                    "use WebSockets over TLS (wss://)",
                )
            )
        try:
            fields = framing.end_to_end(head.fields)
        except UnicodeDecodeError:
            raise StopError(
                bad_request(decision, "a header field is not UTF-8", "send ASCII fields"), 400
            ) from None
        guard = self._checked_for_leaks(decision, head.target, fields)
        injected = inject(bound, head.method, head.target, fields, upgrade=upgrade)
        if isinstance(injected, Rejected):
            raise StopError(absent(decision, injected))
        self._note_strays(decision, head.target, fields, bound)
        return Call(decision, tls, injected, bound, guard, head.path, upgrade, overrides)

    def _check_readings(self, head: Head, allowed: Allowed, *, guarded: bool) -> Overrides | None:
        """Refuse what a server may read as another request than the one that is decided on (G-60, G-77); what looks for that
        in the body.
        """
        inside = self._box.rules.looks_inside(allowed.host, allowed.port)
        if (guarded or inside) and (why := unsafe(head.path)) is not None:
            raise StopError(
                bad_request(allowed, f"the path could be read in two ways: {why}", "write it plainly"), 400
            )
        if not inside:
            return None
        try:
            if _overrides_method(head):
                raise overriding()
            kind, coding = (
                next(iter(head.all(hdrs.CONTENT_TYPE)), ""),
                coding_of(head.all(hdrs.CONTENT_ENCODING)),
            )
            return Overrides.of(head.method, kind, coding)
        except Forbidden as error:
            raise StopError(bad_request(allowed, error.message, error.hint)) from None

    def _checked_for_leaks(
        self, allowed: Allowed, target: str, fields: list[tuple[str, str]]
    ) -> Guard | None:
        """What looks for secrets in the request, its head being free of them (G-44)."""
        if self._box.tenants_secrets is None:
            return None
        head = "\n".join([target, *(value for _, value in fields)]).encode()
        if (name := self._box.secret_in(head)) is not None:
            raise StopError(self.leaked(allowed, name))
        return Guard(self._box.tenants_secrets)

    def leaked(self, allowed: Allowed, name: str) -> Denied:
        """The refusal of a request that holds a secret itself, which is an alarm."""
        self._box.leak("a request", name, allowed.host, allowed.port)
        return Denied(
            allowed.host,
            allowed.port,
            Reason.SECRET,
            "the request holds a secret of this host, which no sandbox is given",
            "send the placeholder from this sandbox's environment; on the host, replace the secret: it has leaked",
        )

    def _note_strays(
        self, allowed: Allowed, target: str, fields: list[tuple[str, str]], bound: tuple[Bound, ...]
    ) -> None:
        """Record placeholders that stay as they are, since their secret does not go here (G-32, G-348)."""
        for one in self._box.bound:
            if one not in bound and any(
                stand in target or any(stand in value for _, value in fields) for stand, _ in one.pairs
            ):
                self._box.note("secret", "kept", host=allowed.host, port=allowed.port, secret=one.name,
                               reason="not-bound-to-host")  # fmt: skip

    @contextmanager
    def sent(
        self, head: Head, call: Call, status: int, used: frozenset[str], moved: Callable[[], Moved]
    ) -> Iterator[None]:
        """Record a request that was sent and whose answer is passed on while this is entered, with the secrets that went into
        it.
        """
        host, port = call.allowed.host, call.allowed.port
        kind = "https" if call.tls else "http"
        for name in sorted(used):
            self._box.note("secret", "used", host=host, port=port, method=head.method, path=call.path, secret=name,
                           status=status)  # fmt: skip
        note = partial(self._box.allow, kind, call.allowed, method=head.method, path=call.path, status=status)
        with Passing(note, moved, lasts=call.upgrade):
            yield

    def hits(self, call: Call, found: Mapping[str, int]) -> None:
        """Record secrets that were taken out of an answer."""
        for name, count in found.items():
            self._box.note("redaction", "redacted", host=call.allowed.host, port=call.allowed.port, secret=name,
                           reason=f"{count} hits")  # fmt: skip


def bad_request(allowed: Allowed, message: str, hint: str) -> Denied:
    """The refusal of a request that cannot be sent as it is, or of an answer that cannot be passed on."""
    return Denied(allowed.host, allowed.port, Reason.BAD_REQUEST, message, hint)


def absent(allowed: Allowed, rejected: Rejected) -> Denied:
    """The refusal of a request that may not be sent with what it holds."""
    return Denied(allowed.host, allowed.port, Reason.NO_PLACEHOLDER, rejected.message, rejected.hint)


def too_many_bytes(allowed: Allowed) -> StopError:
    """The refusal of a request that cannot be gathered beside the others (G-340)."""
    return StopError(bad_request(allowed, MESSAGE, HINT), 429)


def unanswered(allowed: Allowed, what: str) -> Denied:
    """The refusal of a request whose server could not do what was needed."""
    return Denied(
        allowed.host,
        allowed.port,
        Reason.UNREACHABLE,
        f"{allowed.host} could not {what}",
        "it is allowed; try again later",
    )


def distrusted(allowed: Allowed, why: str) -> Denied:
    """The server's certificate is not good: told inside of a connection that is (G-136)."""
    return Denied(
        allowed.host,
        allowed.port,
        Reason.UNREADABLE,
        f"the certificate of {allowed.host} is not accepted: {why or 'it is not valid'}",
        "the host's own trust decides; its operator can add a company's authority there",
    )


def _is_late(one: Bound) -> bool:
    """Whether a secret gets into a request after its head was made."""
    return Place.BODY in one.binding.places or one.binding.mode in (Mode.AWS, Mode.CERTIFICATE)


def _overrides_method(head: Head) -> bool:
    named = framing.by_name(head.fields)
    if any(name.encode() in named for name in OVERRIDES):
        return True
    query = head.target.partition("?")[2]
    return any(unquote_plus(part.partition("=")[0]).lower() == "_method" for part in query.split("&"))
