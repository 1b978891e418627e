"""Server-sent events out of a byte stream cut anywhere.

`Blocks` finds where events end and keeps their bytes, for those who pass a stream on; `Decoder` reads them,
for those who consume it. Lines may end in LF, CR or CRLF. What is kept is bounded by the largest event
allowed.
"""

import re
from dataclasses import dataclass

from corral.errors import TooLarge

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event; a model's last event may repeat its whole answer."""

# Two line ends in a row. The first is atomic, or CR LF would be taken for two.
_BLANK_LINE = re.compile(rb"(?>\r\n|\r|\n)(?:\r\n|\r|\n)")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `event` is its type (`message` if none was given); `id` the last id seen."""

    event: str
    data: str
    id: str = ""


class Blocks:
    """Splits a stream into blocks, each an event's bytes up to and including its blank line.

    All bytes given come out again, in order: in blocks, and at the end in `rest`. A LF that follows a blank
    line ended by CR may lead the next block; it is part of no line. Raises TooLarge for a block over `limit`.
    """

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The blocks that `data` completes."""
        self._buffer += data
        found = []
        start = 0
        scan = self._scanned
        while (end := _BLANK_LINE.search(self._buffer, scan)) is not None:
            found.append(bytes(self._buffer[start : end.end()]))
            start = scan = end.end()
        if start:
            del self._buffer[:start]
        # A line end may be the last byte, or the last two: look at them again together with what follows.
        self._scanned = max(0, len(self._buffer) - 2)
        if len(self._buffer) > self._limit:
            raise TooLarge("an event is too large", f"send at most {self._limit} bytes in one event")
        return found

    def rest(self) -> bytes:
        """What is left of an unfinished block; forgotten afterwards."""
        left = bytes(self._buffer)
        self._buffer.clear()
        self._scanned = 0
        return left


class Decoder:
    """Reads events. Comments, `retry` and unknown fields are skipped; an event without data is none."""

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._blocks = Blocks(limit)
        self._id = ""
        self._first = True

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        return [event for block in self._blocks.feed(data) if (event := self._event(block)) is not None]

    def finish(self) -> list[Event]:
        """The event at the end of a stream that was cut before its blank line, if its lines make one."""
        block = self._blocks.rest()
        event = self._event(block) if block else None
        return [] if event is None else [event]

    def _event(self, block: bytes) -> Event | None:
        if self._first:
            self._first = False
            block = block.removeprefix(_BOM)
        name = ""
        data: list[bytes] = []
        for line in _LINE_END.split(block):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
            elif field == b"id" and b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        if not data:
            return None
        return Event(name or "message", b"\n".join(data).decode("utf-8", "replace"), self._id)
