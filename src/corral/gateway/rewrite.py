"""The bodies of a request and of its answer, as the gateway changes them: secrets in on the way out, out on the way in.

Both are streams: memory does not grow with them (G-92).
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from aiohttp import hdrs
from multidict import CIMultiDict

from corral.errors import InvalidInput
from corral.gateway import codings
from corral.gateway.buffered import Buffered
from corral.gateway.inject import Exchange, body_form
from corral.gateway.redact import Forms, Redactor

WHOLE = 1024 * 1024
"""Bytes of a body whose length changes that are gathered, so that it goes out with a length; larger ones go in chunks. In so
many bytes a placeholder must stand that a request is not sent without.
"""


class LeakError(Exception):
    """A secret itself stands in a request. `name` says which."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class AbsentError(Exception):
    """A placeholder does not stand in a body that is not sent without it. `stand` says which."""

    def __init__(self, stand: str) -> None:
        super().__init__("a placeholder is missing")
        self.stand = stand


@dataclass(slots=True)
class Guard:
    """Looks for secrets themselves in what a sandbox sends (G-44). What could be the beginning of one is held back."""

    forms: Forms
    leaked: str | None = None
    _held: bytes = field(default=b"")

    def check(self, text: bytes) -> None:
        """Raise LeakError if one stands in `text`, which is whole."""
        if (name := self.forms.first_in(text)) is not None:
            self.leaked = name
            raise LeakError(name)

    def whole(self, text: bytes) -> bytes:
        """A short text as it is. Raises LeakError."""
        self.check(text)
        return text

    def feed(self, data: bytes) -> bytes:
        """The bytes that can be sent on. Raises LeakError."""
        data = self._held + data
        self.check(data)
        cut = len(data) - self.forms.pending(data[-self.forms.longest + 1 :])
        self._held = data[cut:]
        return data[:cut]

    def finish(self) -> bytes:
        """What was held back."""
        left, self._held = self._held, b""
        return left


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request's body, and the secrets to be put into it."""

    guard: Guard | None
    exchange: tuple[tuple[str, str], ...]
    coding: str
    content_type: str

    async def stream(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The body as it is to be sent. Raises LeakError, InvalidInput."""
        async for piece in self._stream(body, self._swap()):
            yield piece

    def _swap(self) -> Exchange | None:
        form = body_form(self.content_type)
        return Exchange([(stand, form(value)) for stand, value in self.exchange]) if self.exchange else None

    async def _stream(self, body: AsyncIterator[bytes], swap: Exchange | None) -> AsyncIterator[bytes]:
        unpack = codings.decoder(self.coding if self.exchange else "")
        async for chunk in body:
            for piece in unpack.feed(chunk):
                checked = self.guard.feed(piece) if self.guard is not None else piece
                sent = swap.feed(checked) if swap is not None else checked
                if sent:
                    yield sent
        unpack.finish()
        last = self.guard.finish() if self.guard is not None else b""
        if swap is not None:
            last = swap.feed(last) + swap.finish()
        if last:
            yield last

    async def framed(
        self,
        body: AsyncIterator[bytes],
        headers: CIMultiDict[str],
        buffered: Buffered,
        required: Iterable[str] = (),
    ) -> "bytes | AsyncIterator[bytes]":
        """The body with the fields that frame it, as `headers` then say: unchanged ones keep their length (G-81). Nothing of it
        is sent before the `required` placeholders were found in it: raises AbsentError if they are not (G-27), and
        TooManyBytesError.
        """
        swap = self._swap()
        stream = self._stream(body, swap)
        if swap is None:
            return stream
        headers.popall(hdrs.CONTENT_ENCODING, None)
        known = headers.popall(hdrs.CONTENT_LENGTH, [])
        parts = await _beginning(stream, swap, set(required), buffered)
        if known and int(known[0]) <= WHOLE:
            async for piece in stream:
                buffered.add(len(piece))
                parts += piece
                if len(parts) > 2 * WHOLE:
                    return _resumed(bytes(parts), stream)
            return bytes(parts)
        return _resumed(bytes(parts), stream) if parts else stream


async def _beginning(
    stream: AsyncIterator[bytes], swap: Exchange, required: set[str], buffered: Buffered
) -> bytearray:
    """What a body begins with up to the last of the `required` placeholders. Raises AbsentError, TooManyBytesError."""
    parts = bytearray()
    while left := required - swap.found:
        piece = await anext(stream, None)
        if piece is None or len(parts) > WHOLE:
            raise AbsentError(min(left))
        buffered.add(len(piece))
        parts += piece
    return parts


async def _resumed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


class Incoming:
    """An answer's body on its way to a sandbox, with secrets taken out."""

    def __init__(self, forms: Forms, coding: str) -> None:
        """Raises InvalidInput for a coding that cannot be read (G-140), which is not named: a server could have written a
        secret there (G-144).
        """
        try:
            self._unpack = codings.decoder(coding)
        except InvalidInput:
            raise InvalidInput("the answer's content coding cannot be read", "") from None
        self.redactor = Redactor(forms)

    async def stream(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The body, each part as soon as it is sure. Raises InvalidInput for one that is not what it is said to be."""
        async for chunk in chunks:
            for piece in self._unpack.feed(chunk):
                if passed := self.redactor.feed(piece):
                    yield passed
        self._unpack.finish()
        if last := self.redactor.finish():
            yield last


def coding_of(values: list[str]) -> str:
    """The one coding that Content-Encoding fields name; several are joined, which no decoder reads."""
    return ",".join(values).strip().lower()


def readable_codings(values: list[str]) -> str:
    """What to ask for, of what a client accepts: nothing that cannot be read again (G-94)."""
    offered = {part.partition(";")[0].strip().lower() for value in values for part in value.split(",")}
    return ", ".join(name for name in codings.READABLE if name in offered) or "identity"
