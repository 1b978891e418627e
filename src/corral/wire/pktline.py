"""Git's pkt-lines, without I/O: four hexadecimal digits of length, then so many bytes less four."""

import re
from dataclasses import dataclass
from enum import IntEnum

from corral.errors import InvalidInput

MAX_LINE = 65520
"""Bytes of a line with its length."""
MAX_DATA = MAX_LINE - 4
FLUSH = b"0000"

_LENGTH = re.compile(rb"[0-9a-fA-F]{4}")


class Kind(IntEnum):
    """A line that carries data, or a mark by its length."""

    FLUSH = 0
    DELIMITER = 1
    RESPONSE_END = 2
    DATA = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One line."""

    kind: Kind
    data: bytes = b""

    def encode(self) -> bytes:
        """As it is on the wire."""
        return encode(self.data) if self.kind is Kind.DATA else b"%04x" % self.kind


def encode(data: bytes) -> bytes:
    """Data as a line. It must not be longer than `MAX_DATA`."""
    return b"%04x" % (len(data) + 4) + data


def take(buffer: bytearray) -> Line | None:
    """The first line of a buffer, removed from it; None until it is complete. Raises InvalidInput for what is none."""
    if len(buffer) < 4:
        return None
    if not _LENGTH.fullmatch(buffer[:4]):
        raise malformed("a length is not hexadecimal")
    size = int(buffer[:4], 16)
    if size in (Kind.FLUSH, Kind.DELIMITER, Kind.RESPONSE_END):
        del buffer[:4]
        return Line(Kind(size))
    if not 4 <= size <= MAX_LINE:
        raise malformed(f"a line of {size} bytes is not possible")
    if len(buffer) < size:
        return None
    data = bytes(buffer[4:size])
    del buffer[:size]
    return Line(Kind.DATA, data)


def malformed(why: str) -> InvalidInput:
    """The error for bytes that are not git's protocol."""
    return InvalidInput(f"this is not git's protocol: {why}", "use git itself")
