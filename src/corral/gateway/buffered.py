"""What a box's requests hold in memory, counted together (G-340)."""

from corral.gateway.box import MAX_BUFFERED, Box

MESSAGE, HINT = "this sandbox has too many large requests in flight", "try again"


class TooManyBytesError(Exception):
    """The box would hold more than it may."""


class Buffered:
    """Bytes of one request that are in memory, part of what its box may hold over all of its requests."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._size = 0

    def __enter__(self) -> "Buffered":
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()

    def add(self, size: int) -> None:
        """Count bytes in, or out where `size` is below zero. Raises TooManyBytesError."""
        if size > 0 and self._box.buffered + size > MAX_BUFFERED:
            raise TooManyBytesError
        self._box.buffered += size
        self._size += size

    def clear(self) -> None:
        """Count all out."""
        self._box.buffered -= self._size
        self._size = 0
