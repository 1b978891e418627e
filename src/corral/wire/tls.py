"""The first message of a TLS connection, read without taking part in it.

A client hello may come in any number of TCP segments and be split over several TLS records. `HelloParser`
keeps what it was given, so that the same bytes can be sent on. Nothing here believes lengths that it was
told: every one is checked against the bytes that are there, and all that is kept is bounded.
"""

from dataclasses import dataclass
from enum import IntEnum

from corral.errors import InvalidInput, TooLarge

MAX_HELLO = 64 * 1024
"""Bytes kept of a connection before its client hello is complete."""

_MAX_RECORD = 16 * 1024
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_ALPN = 16
_ENCRYPTED_CLIENT_HELLO = (0xFE0D, 0xFE08, 0xFE09, 0xFE0A, 0xFFCE)
"""The registered extension, and those of the drafts, including that of encrypted server names."""


class Alert(IntEnum):
    """Descriptions of fatal alerts that the gateway sends."""

    HANDSHAKE_FAILURE = 40
    ACCESS_DENIED = 49
    DECODE_ERROR = 50
    INTERNAL_ERROR = 80
    UNRECOGNIZED_NAME = 112


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What a client asks for. `server_name` as sent, or None; `encrypted` if it hides another hello inside."""

    server_name: str | None
    alpn: tuple[str, ...]
    encrypted: bool


def alert(description: Alert) -> bytes:
    """A fatal alert as a TLS record."""
    return bytes((21, 3, 3, 0, 2, 2, description))


def looks_like_tls(data: bytes) -> bool:
    """Whether a connection that starts with `data` (at least one byte) can be TLS."""
    return data[:1] == bytes((_HANDSHAKE,))


class HelloParser:
    """Reads a client hello from bytes in pieces of any size.

    `received` holds all bytes so far, to be sent on. `feed` raises InvalidInput for what is no client hello,
    TooLarge for one that does not end.
    """

    def __init__(self) -> None:
        self.received = bytearray()
        self._next_record = 0
        self._message = bytearray()

    def feed(self, data: bytes) -> ClientHello | None:
        """The hello once it is complete, else None."""
        self.received += data
        while (record := self._take_record()) is not None:
            self._message += record
            hello = self._take_hello()
            if hello is not None:
                return hello
        if len(self.received) > MAX_HELLO:
            raise TooLarge("the TLS client hello is too large", f"keep it below {MAX_HELLO} bytes")
        return None

    def _take_record(self) -> bytes | None:
        """The payload of the next record, if it is there whole."""
        start = self._next_record
        header = self.received[start : start + 5]
        if header[:1] and header[0] != _HANDSHAKE:
            raise _bad("it does not start with a handshake record")
        if len(header) < 5:
            return None
        size = int.from_bytes(header[3:5], "big")
        if header[1] != 3 or not 0 < size <= _MAX_RECORD:
            raise _bad("its record header is malformed")
        if len(self.received) < start + 5 + size:
            return None
        self._next_record = start + 5 + size
        return bytes(self.received[start + 5 : self._next_record])

    def _take_hello(self) -> ClientHello | None:
        if self._message[0] != _CLIENT_HELLO:
            raise _bad("its first message is not a client hello")
        if len(self._message) < 4:
            return None
        size = int.from_bytes(self._message[1:4], "big")
        if size > MAX_HELLO:
            raise TooLarge("the TLS client hello is too large", f"keep it below {MAX_HELLO} bytes")
        if len(self._message) < 4 + size:
            return None
        return _parse_hello(_Reader(bytes(self._message[4 : 4 + size])))


class _Reader:
    """Takes values off the front of bytes; raises InvalidInput where they end early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise _bad("a field is cut short")
        part = self._data[self._at : end]
        self._at = end
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_size: int) -> bytes:
        return self.take(self.number(length_size))

    @property
    def empty(self) -> bool:
        return self._at == len(self._data)


def _parse_hello(reader: _Reader) -> ClientHello:
    reader.take(2 + 32)
    reader.vector(1)
    reader.vector(2)
    reader.vector(1)
    extensions = _extensions(b"" if reader.empty else reader.vector(2))
    if not reader.empty:
        raise _bad("bytes follow its extensions")
    return ClientHello(
        server_name=_server_name(extensions.get(_SERVER_NAME)),
        alpn=_alpn(extensions.get(_ALPN)),
        encrypted=any(kind in extensions for kind in _ENCRYPTED_CLIENT_HELLO),
    )


def _extensions(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    reader = _Reader(data)
    while not reader.empty:
        kind = reader.number(2)
        body = reader.vector(2)
        if kind in found:
            raise _bad("an extension is repeated")
        found[kind] = body
    return found


def _server_name(body: bytes | None) -> str | None:
    """The one host name of the extension. Several, or another kind of name, could be read in two ways:
    refused.
    """
    if body is None:
        return None
    outer = _Reader(body)
    names = _Reader(outer.vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != 0 or not names.empty or not outer.empty:
        raise _bad("its server name is malformed")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise _bad("its server name is not ASCII") from None


def _alpn(body: bytes | None) -> tuple[str, ...]:
    if body is None:
        return ()
    outer = _Reader(body)
    names = _Reader(outer.vector(2))
    found = []
    while not names.empty:
        found.append(names.vector(1).decode("latin-1"))
    if not outer.empty:
        raise _bad("its ALPN list is malformed")
    return tuple(found)


def _bad(why: str) -> InvalidInput:
    return InvalidInput(f"this is not a valid TLS client hello: {why}", "speak TLS 1.2 or 1.3")
