"""The frames of a WebSocket, told apart without being taken apart: what they say can be looked at, and changed as long as
its length stays.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from corral.errors import InvalidInput

_TEXT, _CONTINUATION, _CLOSE = 1, 0, 8
_RESERVED, _MASKED = 0x70, 0x80
_MAX_HEAD = 14
POLICY = 1008
"""Why a connection is closed: what was said is against the rules."""
_MAX_CONTROL = 125
_MAX_HELD = 64 * 1024
"""Bytes that wait for what may be the rest of a secret."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the stream, without their mask, which is put on again from the first byte on.

    `said`: a message says them, which ends with them if they are its `last`. `control`: a ping, pong or close says them, and
    they are whole.
    """

    data: bytes
    said: bool = False
    last: bool = False
    control: bool = False
    mask: bytes = b""


def masked(data: bytes, mask: bytes) -> bytes:
    """Bytes with a mask put on, or taken off; an empty one changes nothing."""
    if not mask:
        return data
    whole = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(len(data), "big")


def close(code: int, reason: str) -> bytes:
    """The frame by which a server ends a connection; the reason is a short one."""
    said = code.to_bytes(2, "big") + reason.encode()
    return bytes((0x80 | _CLOSE, len(said))) + said


def _turned(mask: bytes, by: int) -> bytes:
    return mask[by % 4 :] + mask[: by % 4] if mask else mask


class Frames:
    """Tells the frames of one side apart, in pieces of any size.

    Of a server, what its text says is told from the rest; of a `client`, whose frames are masked, what its binary messages
    say too.
    """

    def __init__(self, *, client: bool = False) -> None:
        self._client = client
        self._head = b""
        self._control: bytes | None = None
        self._left = 0
        self._mask = b""
        self._said = False
        self._in_text = False
        self._final = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces of `data`, whose bytes are those of `data` but for a head or a ping that is not all there. Raises
        InvalidInput for what this side may not send.
        """
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                yield from self._payload(part)
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
            if not self._left:
                yield from self._payload(b"")

    @property
    def between(self) -> bool:
        """Whether no frame is cut."""
        return not self._head and not self._left

    def _size_of_head(self) -> int | None:
        """Bytes of the frame's head, None while they are not all there."""
        if len(self._head) < 2:
            return None
        size = {126: 4, 127: 10}.get(self._head[1] & 0x7F, 2) + (4 if self._head[1] & _MASKED else 0)
        return size if len(self._head) >= size else None

    def _begin(self, head: bytes) -> None:
        opcode, short = head[0] & 0x0F, head[1] & 0x7F
        if head[0] & _RESERVED or bool(head[1] & _MASKED) != self._client:
            raise InvalidInput("a frame of the WebSocket cannot be read", "frames must be plain ones")
        self._mask = head[-4:] if self._client else b""
        size = head[2:-4] if self._client else head[2:]
        self._left = short if short < 126 else int.from_bytes(size, "big")
        self._final = bool(head[0] & 0x80)
        if opcode >= _CLOSE:  # between the frames of a message too
            if self._left > _MAX_CONTROL or not self._final:
                raise InvalidInput("a control frame of the WebSocket is too long", "split what it says")
            self._control = b""
            return
        if opcode != _CONTINUATION:
            self._in_text = opcode == _TEXT
        self._said = self._client or self._in_text

    def _payload(self, part: bytes) -> Iterator[Piece]:
        if self._control is not None:
            self._control += part
            if not self._left:
                yield Piece(masked(self._control, self._mask), control=True, mask=self._mask)
                self._control = None
            return
        last = self._said and self._final and not self._left
        if part or last:
            yield Piece(masked(part, self._mask), self._said, last, mask=self._mask)
        self._mask = _turned(self._mask, len(part))


class Change:
    """Changes what a stream of frames says by functions that keep its length, and may hold some of it back.

    `control` does so at once for what a ping, pong or close says, which is whole.
    """

    def __init__(
        self,
        frames: Frames,
        feed: Callable[[bytes], bytes] = bytes,
        finish: Callable[[], bytes] = bytes,
        control: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._frames = frames
        self._feed = feed
        self._finish = finish
        self._control = control
        self._order: deque[Piece] = deque()
        self._changed = bytearray()

    @property
    def between(self) -> bool:
        """Whether all was passed on, and no frame is cut."""
        return not self._order and self._frames.between

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now. Raises InvalidInput, and what the functions raise."""
        for found in self._frames.feed(data):
            piece = replace(found, data=self._control(found.data)) if found.control else found
            self._order.append(piece)
            if piece.said:
                self._changed += self._feed(piece.data)
                if piece.last:
                    self._changed += self._finish()
        return self._ready()

    def _ready(self) -> bytes:
        """All bytes up to the first that is held back."""
        out = bytearray()
        while self._order:
            piece = self._order.popleft()
            data = piece.data
            if piece.said:
                data = bytes(self._changed[: len(data)])
                del self._changed[: len(data)]
            out += masked(data, piece.mask)
            if rest := piece.data[len(data) :]:
                self._order.appendleft(replace(piece, data=rest, mask=_turned(piece.mask, len(data))))
                break
        if sum(len(piece.data) for piece in self._order) > _MAX_HELD:
            raise InvalidInput(
                "a message of the WebSocket does not go on", "send it without so much in between"
            )
        return bytes(out)
