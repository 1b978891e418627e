"""The frames of a WebSocket, told apart without being taken apart: what is text can be changed as long as its length stays."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from corral.errors import InvalidInput

_TEXT, _CONTINUATION, _CLOSE = 1, 0, 8
_RESERVED = 0x70
_MAX_HEAD = 14


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the stream: of text, or of anything else. `last`: the message that the text is of ends with them."""

    data: bytes
    text: bool = False
    last: bool = False


class Frames:
    """Tells the frames of a server apart, in pieces of any size."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._text = False
        self._in_text = False
        self._final = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces of `data`, whose bytes are those of `data`. Raises InvalidInput for what no server may send."""
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                yield Piece(part, self._text, self._text and self._final and not self._left)
                continue
            self._head, data = (
                self._head + data[: _MAX_HEAD - len(self._head)],
                data[_MAX_HEAD - len(self._head) :],
            )
            size = self._size_of_head()
            if size is None:
                continue
            head, rest = self._head[:size], self._head[size:]
            self._head, data = b"", rest + data
            self._begin(head)
            yield Piece(head)
            if self._text and self._final and not self._left:
                yield Piece(b"", text=True, last=True)

    def _size_of_head(self) -> int | None:
        """Bytes of the frame's head, None while they are not all there."""
        if len(self._head) < 2:
            return None
        size = {126: 4, 127: 10}.get(self._head[1] & 0x7F, 2)
        return size if len(self._head) >= size else None

    def _begin(self, head: bytes) -> None:
        opcode, short = head[0] & 0x0F, head[1] & 0x7F
        if head[0] & _RESERVED or head[1] & 0x80:
            raise InvalidInput("a frame of the WebSocket cannot be read", "the server must send plain frames")
        self._left = short if short < 126 else int.from_bytes(head[2:], "big")
        self._final = bool(head[0] & 0x80)
        if opcode >= _CLOSE:  # between the frames of a message too
            self._text = False
            return
        if opcode != _CONTINUATION:
            self._in_text = opcode == _TEXT
        self._text = self._in_text


class TextChange:
    """Changes the text of a stream of frames by functions that keep its length, and may hold some of it back."""

    def __init__(self, feed: Callable[[bytes], bytes], finish: Callable[[], bytes]) -> None:
        self._frames = Frames()
        self._feed = feed
        self._finish = finish
        self._order: deque[bytes | int] = deque()
        self._changed = bytearray()

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now. Raises InvalidInput."""
        for piece in self._frames.feed(data):
            if piece.text:
                self._order.append(len(piece.data))
                self._changed += self._feed(piece.data)
                if piece.last:
                    self._changed += self._finish()
            else:
                self._order.append(piece.data)
        return self._ready()

    def _ready(self) -> bytes:
        """All bytes up to the first that is held back."""
        out = bytearray()
        while self._order:
            item = self._order.popleft()
            if isinstance(item, bytes):
                out += item
                continue
            there = min(item, len(self._changed))
            out += self._changed[:there]
            del self._changed[:there]
            if there < item:
                self._order.appendleft(item - there)
                break
        return bytes(out)
