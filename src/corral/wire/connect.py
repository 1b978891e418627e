"""The Connect protocol's framing and error codes, without I/O.

A stream's body is a row of envelopes: one byte of flags, four bytes of length (big-endian), and a message. The last one
of a response has the flag `END` and holds `{}` or an error, always as JSON; a response without it was cut. Messages are
never compressed: the flag `COMPRESSED` is refused.
"""

import json
import struct
from dataclasses import dataclass
from enum import StrEnum

from corral.errors import InvalidInput, TooLarge

COMPRESSED = 0x01
END = 0x02
MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message."""

_HEADER = struct.Struct(">BI")


class Code(StrEnum):
    """Errors of the protocol."""

    CANCELED = "canceled"
    UNKNOWN = "unknown"
    INVALID_ARGUMENT = "invalid_argument"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    PERMISSION_DENIED = "permission_denied"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    FAILED_PRECONDITION = "failed_precondition"
    ABORTED = "aborted"
    OUT_OF_RANGE = "out_of_range"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"
    DATA_LOSS = "data_loss"
    UNAUTHENTICATED = "unauthenticated"

    @property
    def status(self) -> int:
        """The HTTP status of a unary response with this error."""
        return _STATUS[self]


_STATUS = {
    Code.CANCELED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message of a stream, and whether it is the last."""

    data: bytes
    end: bool = False


def envelope(message: bytes, flags: int = 0) -> bytes:
    """A message as it goes into a stream."""
    return _HEADER.pack(flags, len(message)) + message


def error_body(code: Code, message: str) -> dict[str, str]:
    """An error as JSON: the body of a unary response, and a part of a stream's end."""
    return {"code": code.value, "message": message}


def end_of_stream(error: dict[str, str] | None = None) -> bytes:
    """The last envelope of a response."""
    return envelope(json.dumps({"error": error} if error else {}).encode(), END)


class EnvelopeDecoder:
    """Envelopes out of a body, however it is cut. Holds at most one message.

    Raises TooLarge for a message over `limit` before it is read, InvalidInput for unknown flags.
    """

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Envelope]:
        """The envelopes that `data` completes."""
        self._held += data
        found = []
        while (piece := self._next()) is not None:
            found.append(piece)
        return found

    def close(self) -> None:
        """The body has ended. Raises InvalidInput if that was within an envelope."""
        if self._held:
            raise InvalidInput("the stream ended within a message", "send whole messages")

    def _next(self) -> Envelope | None:
        if len(self._held) < _HEADER.size:
            return None
        flags, size = _HEADER.unpack_from(self._held)
        if flags & ~END:
            raise InvalidInput(f"a message has the flags {flags:#04x}", "send messages uncompressed")
        if size > self._limit:
            raise TooLarge(f"a message has {size} bytes", f"send at most {self._limit}")
        if len(self._held) < _HEADER.size + size:
            return None
        message = bytes(self._held[_HEADER.size : _HEADER.size + size])
        del self._held[: _HEADER.size + size]
        return Envelope(message, bool(flags & END))


def parse_timeout(text: str | None) -> float | None:
    """Seconds of a `connect-timeout-ms` header; None for no limit. Raises InvalidInput."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise InvalidInput(
            f"the timeout {text[:20]!r} is not valid", "give milliseconds in at most 10 digits"
        )
    return int(text) / 1000 or None
