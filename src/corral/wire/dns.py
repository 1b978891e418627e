"""DNS as a sandbox's resolver needs it: one question in, one answer out.

The question is parsed by hand and strictly: one question, no compression in it, at most an EDNS record beside
it, nothing after. What a stub resolver never sends is refused rather than understood. The answer repeats the
question's own bytes, so that the case of the name comes back as it was sent (0x20).
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address

from corral.errors import InvalidInput, TooLarge

MAX_MESSAGE = 4096
"""Bytes of a query; more is refused."""

_HEADER = struct.Struct("!6H")
_QR = 0x8000
_OPCODE = 0x7800
_RD = 0x0100
_RA = 0x0080
_CD = 0x0010
_IN = 1
_EDE = 15
_PAYLOAD = 1232


class Type(IntEnum):
    """Record types that are told apart."""

    A = 1
    AAAA = 28
    OPT = 41
    SVCB = 64
    HTTPS = 65
    IXFR = 251
    AXFR = 252


class Rcode(IntEnum):
    """Response codes."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5


class Ede(IntEnum):
    """Extended DNS errors (RFC 8914)."""

    BLOCKED = 15
    PROHIBITED = 18


@dataclass(frozen=True, slots=True)
class Query:
    """One question. `name` as sent, without the final dot; `edns` whether the client understands extended
    errors.
    """

    id: int
    flags: int
    name: str
    qtype: int
    question: bytes
    edns: bool


def parse_query(data: bytes) -> Query:
    """The question in `data`. Raises InvalidInput; `error_reply` then tells the client."""
    if len(data) < _HEADER.size or len(data) > MAX_MESSAGE:
        raise _bad("its size is wrong")
    ident, flags, questions, answers, authorities, extras = _HEADER.unpack_from(data)
    if flags & (_QR | _OPCODE) or (questions, answers, authorities) != (1, 0, 0) or extras > 1:
        raise _bad("it is not a query of one question")
    name, at = _name(data, _HEADER.size)
    if len(data) < at + 4:
        raise _bad("it is cut short")
    qtype, qclass = struct.unpack_from("!2H", data, at)
    end = at + 4
    if qclass != _IN:
        raise _bad("its class is not IN")
    edns = extras == 1
    if (_opt_end(data, end) if edns else end) != len(data):
        raise _bad("bytes follow its end")
    return Query(ident, flags, name, qtype, data[_HEADER.size : end], edns)


def _name(data: bytes, at: int) -> tuple[str, int]:
    """The name at `at` and the position after it."""
    labels: list[str] = []
    start = at
    while True:
        size = data[at] if at < len(data) else 64
        at += 1
        if size == 0:
            return ".".join(labels), at
        label = data[at : at + size]
        if size > 63 or len(label) < size or at + size - start > 254:
            raise _bad("its name is malformed")
        # A dot inside of a label would make it look like two.
        if not all(0x21 <= c < 0x7F and c != 0x2E for c in label):
            raise _bad("its name holds characters that no host name has")
        labels.append(label.decode("ascii"))
        at += size


def _opt_end(data: bytes, at: int) -> int:
    """The position after the EDNS record at `at`."""
    if len(data) < at + 11 or data[at] != 0:
        raise _bad("its additional record is not EDNS")
    kind, _size, _rcode, version, _flags, length = struct.unpack_from("!HHBBHH", data, at + 1)
    if kind != Type.OPT or version != 0:
        raise _bad("its additional record is not EDNS version 0")
    return at + 11 + int(length)


def _bad(why: str) -> InvalidInput:
    return InvalidInput(f"this is not an acceptable DNS query: {why}", "ask one question of class IN")


def reply(
    query: Query,
    rcode: Rcode = Rcode.NOERROR,
    addresses: tuple[IPv4Address | IPv6Address, ...] = (),
    ttl: int = 60,
    explain: str = "",
) -> bytes:
    """The answer to `query`: addresses of its type, or none (NODATA, or `rcode`), with `explain` as an
    extended error.

    It stays below 512 bytes for up to eight addresses and a text of 80 characters, so it is never truncated.
    """
    flags = _QR | _RA | (query.flags & (_RD | _CD)) | rcode
    parts = [
        _HEADER.pack(query.id, flags, 1, len(addresses), 0, int(query.edns)),
        query.question,
    ]
    for address in addresses:
        kind = Type.A if address.version == 4 else Type.AAAA
        packed = address.packed
        parts.append(struct.pack("!HHHIH", 0xC000 | _HEADER.size, kind, _IN, ttl, len(packed)) + packed)
    if query.edns:
        parts.append(_opt(explain))
    return b"".join(parts)


def _opt(explain: str) -> bytes:
    options = b""
    if explain:
        text = explain.encode("utf-8")[:80]
        options = struct.pack("!HHH", _EDE, 2 + len(text), Ede.BLOCKED) + text
    return b"\0" + struct.pack("!HHIH", Type.OPT, _PAYLOAD, 0, len(options)) + options


def error_reply(data: bytes, rcode: Rcode) -> bytes | None:
    """A bare error for a message that `parse_query` refused; None where nothing may be answered (a response,
    a stump).
    """
    if len(data) < _HEADER.size or data[2] & 0x80:
        return None
    ident, flags = struct.unpack_from("!2H", data)
    return _HEADER.pack(ident, _QR | _RA | (flags & (_OPCODE | _RD)) | rcode, 0, 0, 0, 0)


def frame(message: bytes) -> bytes:
    """A message as TCP carries it."""
    return struct.pack("!H", len(message)) + message


class Deframer:
    """Messages out of a TCP stream cut anywhere. Keeps at most one message; raises TooLarge for a longer one."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes."""
        self._buffer += data
        found = []
        while len(self._buffer) >= 2:
            size = int.from_bytes(self._buffer[:2], "big")
            if size > MAX_MESSAGE:
                raise TooLarge(f"a DNS query of {size} bytes is too large", f"use at most {MAX_MESSAGE}")
            if len(self._buffer) < 2 + size:
                break
            found.append(bytes(self._buffer[2 : 2 + size]))
            del self._buffer[: 2 + size]
        return found
