"""TLS connections, passed through unopened.

The client hello says which name is meant. It must be allowed at this port, and it must be the name whose
stand-in address the client connected to (G-47); then the gateway dials the name itself and the bytes go both
ways untouched.
"""

import asyncio
from collections.abc import Callable

from corral.errors import InvalidInput, TooLarge
from corral.gateway.box import Box
from corral.gateway.dial import Dialer
from corral.gateway.relay import Side, join
from corral.policy.egress import Decision, Denied, Reason, canonical_host, literal
from corral.wire.tls import Alert, ClientHello, HelloParser, alert, looks_like_tls

HELLO_TIMEOUT = 15.0
"""Seconds for the whole client hello."""

_WRONG_NAME = "name the server in the TLS handshake (SNI), as every current TLS library does"


class TlsClient(Side):
    """A sandbox's connection to a TLS port, from its first byte.

    What does not start like TLS is handed to `plain`, which makes the protocol that speaks HTTP on this port.
    """

    def __init__(self, box: Box, port: int, dialer: Dialer, plain: Callable[[], asyncio.Protocol]) -> None:
        super().__init__()
        self._box = box
        self._port = port
        self._dialer = dialer
        self._plain = plain
        self._hello: HelloParser | None = HelloParser()
        self._deadline: asyncio.TimerHandle | None = None
        self._admitted: asyncio.BaseTransport | None = None
        self._upstream = Side(waits=True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._box.admit(transport):
            self._abort()
            return
        self._admitted = transport
        self._deadline = asyncio.get_running_loop().call_later(HELLO_TIMEOUT, self._abort)

    def data_received(self, data: bytes) -> None:
        if self._hello is None:
            super().data_received(data)
        elif not self._hello.received and not looks_like_tls(data):
            self._hand_over(data)
        else:
            self._read_hello(self._hello, data)

    def eof_received(self) -> bool:
        if self.peer is None:
            # The client gave up before there was anywhere to pass its bytes to.
            self._abort()
            return False
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
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
        if isinstance(decision, Denied):
            self._refuse(decision, Alert.UNRECOGNIZED_NAME)
            return
        self.transport.pause_reading()
        self._box.bind(self.transport, decision.host, decision.port)
        self._box.spawn(self._connect(decision, bytes(parser.received)))

    def _decide(self, hello: ClientHello) -> Decision:
        """Identity and policy of a complete hello (G-47, G-50, G-55)."""
        address = self._address()
        if hello.encrypted:
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
        return decision

    def _address(self) -> str:
        """The address that the client connected to."""
        found = self.transport.get_extra_info("sockname") if self.transport is not None else None
        return str(found[0]) if isinstance(found, tuple) else ""

    async def _connect(self, decision: Decision, hello: bytes) -> None:
        if isinstance(decision, Denied):
            return
        refusal = await self._dialer.connect(self._box, decision, self._upstream)
        if refusal is not None:
            self._refuse(refusal, Alert.INTERNAL_ERROR)
            return
        upstream = self._upstream.transport
        if upstream is None:
            return
        if self.transport is None:
            upstream.abort()
            return
        self._box.allow("tls", decision)
        join(self, self._upstream)
        upstream.write(hello)
        upstream.resume_reading()
        self.transport.resume_reading()

    def _denied(self, host: str, reason: Reason, message: str, hint: str) -> Denied:
        return Denied(host, self._port, reason, message, hint)

    def _refuse(self, refusal: Denied, description: Alert) -> None:
        self._hello = None
        self._stop_clock()
        self._box.refuse("tls", refusal)
        if self.transport is not None:
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
        protocol = self._plain()
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
