"""HTTP/2 messages: lists of fields with pseudo-fields, as requests and answers; and the end of a connection that is told
while requests are under way. Pure; frames and their states are the library's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from corral.errors import InvalidInput

Fields = Sequence[tuple[bytes, bytes]]
ALPN = "h2"
"""HTTP/2 over TLS, as it is negotiated."""
GRPC = "application/grpc"

_HEAD = 9
_GOAWAY = 7
_MAX_GOAWAY = 16 * 1024
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
# What only makes sense within one connection (RFC 9113, 8.2.2), and what frames a message or says who one is, which no
# trailer may do.
_CONNECTION = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_NO_TRAILERS = _CONNECTION | {
    *(b"authorization", b"cookie", b"set-cookie", b"content-encoding", b"content-length", b"content-type"),
    *(b"host", b"te", b"trailer", b"expect", b"range", b"x-api-key"),
}
# What `grpc-message` holds as it is; all else is escaped.
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[]^_`{|}~"


@dataclass(frozen=True, slots=True)
class Request:
    """A request's fields. `fields` begin with the one that names the host, as in HTTP/1.1."""

    method: str
    target: str
    fields: Fields

    @property
    def grpc(self) -> bool:
        """Whether it is a call of gRPC, which reads refusals from trailers alone."""
        return any(name == b"content-type" and value.startswith(GRPC.encode()) for name, value in self.fields)


def request(fields: Fields) -> Request:
    """A request, checked for what the library leaves open. Raises InvalidInput (G-108)."""
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    if set(pseudo) != _PSEUDO or pseudo[b":scheme"] != b"https":
        raise InvalidInput("a request needs a method, https, an authority and a path", "send just these")
    authority = pseudo[b":authority"]
    named = {value for name, value in fields if name == b"host"}
    if not named <= {authority}:
        raise InvalidInput("the field host names another host than :authority", "leave it out")
    try:
        method, target = pseudo[b":method"].decode("ascii"), pseudo[b":path"].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidInput("the method or the path is not ASCII", "escape it") from None
    rest = [(bytes(name), bytes(value)) for name, value in fields if name[:1] != b":" and name != b"host"]
    return Request(method, target, [(b"host", authority), *rest])


def request_fields(
    method: str, authority: str, target: str, fields: Iterable[tuple[str, str]], *, trailers: bool
) -> list[tuple[bytes, bytes]]:
    """The fields of a request as they are sent; `trailers` says that the client takes them."""
    pseudo = [(":method", method), (":scheme", "https"), (":authority", authority), (":path", target)]
    sent = [*pseudo, *((name, value) for name, value in fields if name.lower() not in ("host", "expect"))]
    if trailers:
        sent.append(("te", "trailers"))
    return [(name.lower().encode("ascii"), value.encode()) for name, value in sent]


def response(fields: Fields) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Status and fields of an answer. Raises InvalidInput."""
    status = next((value for name, value in fields if name == b":status"), b"")
    if not (status.isdigit() and len(status) == 3):
        raise InvalidInput("the answer has no status", "this server cannot be used")
    kept = [(bytes(name), bytes(value)) for name, value in fields if name[:1] != b":"]
    return int(status), [(name, value) for name, value in kept if name not in _CONNECTION]


def trailers(fields: Fields) -> list[tuple[bytes, bytes]]:
    """The trailers that are passed on (G-88)."""
    return [
        (bytes(name), bytes(value))
        for name, value in fields
        if name[:1] != b":" and name not in _NO_TRAILERS and not name.startswith(b"x-corral-")
    ]


_STATUS = {400: 3, 403: 7, 415: 12, 421: 7, 502: 14}


def grpc_refusal(status: int, message: str) -> list[tuple[bytes, bytes]]:
    """The fields of an answer that is a refusal and nothing more, as clients of gRPC read one (G-110); `status` is that of
    HTTP.
    """
    return [
        (b":status", b"200"),
        (b"content-type", GRPC.encode()),
        (b"grpc-status", str(_STATUS.get(status, 13)).encode()),
        (b"grpc-message", quote(message, safe=_PLAIN).encode("ascii")),
    ]


@dataclass(slots=True)
class Farewell:
    """Takes the peer's announcements that it takes no new streams (GOAWAY without an error) out of what it sends.

    The library takes such a one for the end of the connection; servers send it long before, and finish what is under way.
    """

    last: int | None = None
    """The highest stream that the peer will still answer, once it has said so."""
    _buffer: bytearray = field(default_factory=bytearray)
    _left: int = 0

    def feed(self, data: bytes) -> bytes:
        """The bytes that are for the library."""
        self._buffer += data
        out = bytearray()
        while self._buffer:
            if self._left:
                taken = self._buffer[: self._left]
                self._left -= len(taken)
                out += taken
                del self._buffer[: len(taken)]
            elif len(self._buffer) < _HEAD or not self._next(out):
                break
        return bytes(out)

    def _next(self, out: bytearray) -> bool:
        """Look at a frame's head; False while more of it is needed."""
        size = int.from_bytes(self._buffer[:3], "big")
        if self._buffer[3] != _GOAWAY or not 8 <= size <= _MAX_GOAWAY:
            self._left = _HEAD + size
            return True
        if len(self._buffer) < _HEAD + size:
            return False
        frame = bytes(self._buffer[: _HEAD + size])
        del self._buffer[: _HEAD + size]
        if any(frame[_HEAD + 4 : _HEAD + 8]) or any(frame[5:9]):
            out += frame
        else:
            self.last = int.from_bytes(frame[_HEAD : _HEAD + 4], "big") & 0x7FFFFFFF
        return True
