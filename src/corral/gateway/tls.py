"""TLS connections: passed through unopened where nothing depends on what is inside, else ended here. And those of any
protocol, where a rule lets them through unread.

The client hello says which name is meant. It must be allowed at this port, and it must be the name whose
stand-in address the client connected to (G-47); then the gateway dials the name itself and the bytes go both
ways untouched. Where a rule is about requests, or a secret goes to the host, the gateway ends TLS in the host's name and
reads the requests.

A hello that may hide another one (ECH) is never passed on: browsers send such an extension always, mostly with nothing in
it, and nobody but the server could tell. It is answered by the gateway itself, which has no keys for what is hidden: a
client that hid nothing goes on, any other one ends the handshake, as it must where a server is not the one it looked for.
That is so at hosts too which the operator keeps from being looked into.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from corral.errors import InvalidInput, TooLarge
from corral.gateway.authority import Authority
from corral.gateway.box import Box
from corral.gateway.dial import Dialer
from corral.gateway.exchange import Moved, Passing
from corral.gateway.front import Front
from corral.gateway.inside import end_tls, rejection
from corral.gateway.relay import Side, join
from corral.gateway.underway import always
from corral.policy.egress import Allowed, Decision, Denied, Reason, canonical_host, literal
from corral.wire.tls import Alert, ClientHello, HelloParser, alert, looks_like_tls

HELLO_TIMEOUT = 15.0
"""Seconds for the whole client hello."""

_WRONG_NAME = "name the server in the TLS handshake (SNI), as every current TLS library does"


class TlsClient(Side):
    """A sandbox's connection to a TLS port, from its first byte.

    What does not start like TLS is handed to `front`, as are the requests inside of a connection that is ended here;
    `authority` is the one in whose name that is done, if there is one.
    """

    def __init__(
        self, box: Box, port: int, dialer: Dialer, front: Front, authority: Callable[[], Authority | None]
    ) -> None:
        super().__init__()
        self._box = box
        self._port = port
        self._dialer = dialer
        self._front = front
        self._authority = authority
        self._hello: HelloParser | None = HelloParser()
        self._deadline: asyncio.TimerHandle | None = None
        self._admitted: asyncio.BaseTransport | None = None
        self._upstream = Side(waits=True)
        self._kind = "tls"
        self._passing = ExitStack()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._box.admit(transport):
            self._abort()
            return
        self._admitted = transport
        if self._pass_unread():
            return
        self._deadline = asyncio.get_running_loop().call_later(HELLO_TIMEOUT, self._abort)

    def _pass_unread(self) -> bool:
        """Pass the connection on at once where a rule says that what is spoken is none of the gateway's business: some
        servers speak first (G-299). Where it leads is told by the address alone.
        """
        name, port = self._box.names.named(self._address()), self._port
        if not self._unread(name, port):
            return False
        self._hello, self._kind = None, "tcp"
        decision = self._box.decide(name, port)
        if isinstance(decision, Denied):
            self._refuse(decision, None)
        elif self.transport is not None:
            self.transport.pause_reading()
            self._box.bind(self.transport, name, port, partial(self._unread, name, port))
            self._box.spawn(self._connect(decision, b""))
        return True

    def _unread(self, host: str, port: int) -> bool:
        return self._box.rules.unread(host, port) and not self._box.bound_at(host, port, tls=True)

    def data_received(self, data: bytes) -> None:
        if self._hello is None:
            super().data_received(data)
        elif not self._hello.received and not looks_like_tls(data):
            self._hand_over(data)
        else:
            self._read_hello(self._hello, data)

    def eof_received(self) -> bool:
        if self.peer is None and self._kind == "tcp":
            self.ended = True
            return True
        if self.peer is None:
            # The client gave up before there was anywhere to pass its bytes to.
            self._abort()
            return False
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._passing.close()
        if self._admitted is not None:
            self._box.release(self._admitted)
        if self.peer is None and self._upstream.transport is not None:
            self._upstream.transport.abort()
        super().connection_lost(exc)

    def _read_hello(self, parser: HelloParser, data: bytes) -> None:
        try:
            hello = parser.feed(data)
        except (InvalidInput, TooLarge) as error:
            self._refuse(self._denied("", Reason.NOT_TLS, error.message, error.hint), Alert.DECODE_ERROR)
            return
        if hello is None or self.transport is None:
            return
        self._stop_clock()
        self._hello = None
        decision = self._decide(hello)
        self.transport.pause_reading()
        ends = self._ends_here(decision, hello)
        if not isinstance(decision, Denied):
            host, port = decision.host, decision.port
            self._box.bind(
                self.transport, host, port, always if ends else partial(self._unopened, host, port)
            )
        if ends:
            self._box.spawn(self._end(decision, bytes(parser.received)))
        elif isinstance(decision, Denied):
            self._refuse(decision, Alert.UNRECOGNIZED_NAME)
        else:
            self._box.spawn(self._connect(decision, bytes(parser.received)))

    def _ends_here(self, decision: Decision, hello: ClientHello) -> bool:
        """Whether the requests inside must be read, or a refusal can be told inside (G-312)."""
        if isinstance(decision, Denied):
            authority = self._authority()
            told = decision.host and literal(decision.host) is None and decision.reason is not Reason.MISMATCH
            return bool(told) and authority is not None and hello.server_name is not None
        if hello.encrypted:
            return True
        host, port = decision.host, decision.port
        return not self._box.bypasses(host) and not self._unopened(host, port)

    def _unopened(self, host: str, port: int) -> bool:
        """Whether TLS to an allowed destination may be passed through."""
        if self._box.bypasses(host):
            return self._box.rules.needs_no_look(host, port)
        return not self._box.bound_at(host, port, tls=True) and not self._box.rules.looks_inside(host, port)

    async def _end(self, decision: Decision, hello: bytes) -> None:
        """End TLS here, in the name of the decision's host, and serve the requests inside."""
        authority, transport = self._authority(), self.transport
        if transport is None:
            return
        if authority is None:
            self._refuse(self._denied(decision.host, Reason.UNREADABLE, "the gateway has no authority to end TLS by",
                                      "restart the daemon"), Alert.INTERNAL_ERROR)  # fmt: skip
            return
        now = asyncio.get_running_loop().time
        if not authority.has(decision.host) and not self._box.leaves.take(now()):
            self._refuse(self._denied(decision.host, Reason.TOO_MANY, "too many hosts were connected to at once",
                                      "try again in a moment"), Alert.INTERNAL_ERROR)  # fmt: skip
            return
        await asyncio.sleep(self._box.handshakes.due(now()))
        context = await authority.context(decision.host)
        if self.transport is None:
            return
        try:
            await end_tls(transport, hello, context, partial(self._front.inside, decision))
        except OSError as error:
            self._note_failure(decision, error)
            transport.abort()
        finally:
            # From here on the protocol inside is counted; this one hears nothing more.
            self._box.release(transport)

    def _note_failure(self, decision: Decision, error: OSError) -> None:
        told = rejection(error)
        if told is not None:
            self._box.note(
                "tls",
                "failed",
                host=decision.host,
                port=decision.port,
                reason=f"client-distrusts-gateway: {told}",
            )

    def _decide(self, hello: ClientHello) -> Decision:
        """Identity and policy of a complete hello (G-47, G-50, G-55)."""
        address = self._address()
        if hello.encrypted and (hello.server_name is None or self._authority() is None):
            return self._denied(
                hello.server_name or "", Reason.ENCRYPTED_HELLO,
                "an encrypted client hello hides where it goes", "switch ECH off in the client",
            )  # fmt: skip
        if hello.server_name is None:
            # Only an address that a rule names may be meant without a name.
            decision = self._box.decide(address, self._port)
            if isinstance(decision, Denied):
                return self._denied(address, Reason.NO_SNI, "the TLS client names no server", _WRONG_NAME)
            return decision
        try:
            name = canonical_host(hello.server_name)
        except InvalidInput as error:
            return self._denied("", Reason.BAD_HOST, error.message, error.hint)
        if literal(name) is not None:
            return self._denied(
                name, Reason.LITERAL, "the TLS client names an address as its server", _WRONG_NAME
            )
        decision = self._box.decide(name, self._port)
        if not isinstance(decision, Denied) and not self._box.names.stands_for(address, name):
            return self._denied(
                name, Reason.MISMATCH, f"the address connected to is not the one that {name} resolves to",
                f"look up {name} in this sandbox's DNS and connect to what it says",
            )  # fmt: skip
        if not isinstance(decision, Denied) and self._box.bypasses(name):
            return self._bypassed(decision)
        return decision

    def _bypassed(self, allowed: Allowed) -> Decision:
        """What holds at a host that is not looked into: no rule about requests can be kept there, no secret goes there (G-132)."""
        host, port = allowed.host, allowed.port
        if not self._box.rules.needs_no_look(host, port):
            return self._denied(
                host, Reason.UNREADABLE, f"{host} is never looked into on this host, and its rules are about requests",
                "allow it without methods and paths, or ask the operator (setting egress.bypass)",
            )  # fmt: skip
        for one in self._box.bound_at(host, port, tls=True):
            self._box.note("secret", "kept", host=host, port=port, secret=one.name, reason="host-bypassed")
        return allowed

    def _address(self) -> str:
        """The address that the client connected to."""
        found = self.transport.get_extra_info("sockname") if self.transport is not None else None
        return str(found[0]) if isinstance(found, tuple) else ""

    async def _connect(self, decision: Decision, hello: bytes) -> None:
        if isinstance(decision, Denied):
            return
        refusal = await self._dialer.connect(self._box, decision, self._upstream)
        if refusal is not None:
            self._refuse(refusal, Alert.INTERNAL_ERROR if hello else None)
            return
        upstream = self._upstream.transport
        if upstream is None:
            return
        if self.transport is None:
            upstream.abort()
            return
        if hello:
            upstream.write(hello)
        join(self, self._upstream)
        upstream.resume_reading()
        self.transport.resume_reading()
        note = partial(self._box.allow, self._kind, decision)
        self._passing.enter_context(
            Passing(note, lambda: Moved(self.carried, self._upstream.carried), lasts=True)
        )

    def _denied(self, host: str, reason: Reason, message: str, hint: str) -> Denied:
        return Denied(host, self._port, reason, message, hint)

    def _refuse(self, refusal: Denied, description: Alert | None) -> None:
        """Refuse the connection; with an alert where TLS is spoken."""
        self._hello = None
        self._stop_clock()
        self._box.refuse(self._kind, refusal)
        if self.transport is None:
            return
        if description is None:
            self.transport.abort()
        else:
            # Without this the alert may be lost to a reset for bytes that nobody has read.
            self.transport.write(alert(Alert.ACCESS_DENIED if _is_policy(refusal) else description))
            self.transport.close()

    def _hand_over(self, data: bytes) -> None:
        transport = self.transport
        self._stop_clock()
        if transport is None:
            return
        if self._admitted is not None:
            self._box.release(self._admitted)
        protocol = self._front.server(self._port)()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _is_policy(refusal: Denied) -> bool:
    return refusal.reason in (
        Reason.NOT_ALLOWED,
        Reason.PORT_NOT_ALLOWED,
        Reason.MODEL_API,
        Reason.METADATA,
        Reason.ADDRESS,
    )
