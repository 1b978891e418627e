"""What a client sends of a push: its head, then its pack, with limits on time and size."""

import asyncio
import zlib

from aiohttp import hdrs, web

from corral.errors import InvalidInput, TooLarge
from corral.gateway.box import Box
from corral.gateway.buffered import HINT, MESSAGE, Buffered, TooManyBytesError
from corral.gateway.gitupstream import GitRefusedError
from corral.gateway.spools import Spool
from corral.gateway.upstream import BODY_IDLE
from corral.wire.gitpush import PushHead, PushReader

_MAX_HEAD_SECONDS = 60.0
AT_ONCE = 1024 * 1024
"""Bytes that are unpacked at a time."""
_ANY_RATIO, _MAX_RATIO = 8 * 1024 * 1024, 100
"""Bytes up to which a push may be packed however well, and how often its bytes it may be beyond: packs hardly pack."""


class PushBody:
    """The request's body, decoded, in pieces. What of it is in memory counts for the box (G-340); `close` ends that."""

    def __init__(self, request: web.BaseRequest, box: Box) -> None:
        self._request = request
        self._buffered = Buffered(box)
        self._rest = b""
        self._gzip = _decoder(request)
        self.ended = False

    async def head(self) -> PushHead:
        """What stands before the pack. Raises GitRefusedError for what is no push."""
        reader = PushReader()
        try:
            async with asyncio.timeout(_MAX_HEAD_SECONDS):
                while True:
                    data = await self._piece()
                    if not data:
                        raise InvalidInput("the push is cut", "push again")
                    self._buffered.add(len(data))
                    head = reader.feed(data)
                    if head is not None:
                        self._rest = reader.rest
                        return head
        except TooManyBytesError:
            raise GitRefusedError(429, MESSAGE, HINT, "too-many-bytes") from None
        except TimeoutError:
            raise GitRefusedError(408, "the push did not come", "push again", "push-timeout") from None
        except (InvalidInput, TooLarge) as error:
            raise GitRefusedError(400, error.message, error.hint, "bad-push") from None

    async def into(self, spool: Spool) -> None:
        """Write the pack to a file. Raises TooLarge, DiskFull, InvalidInput."""
        if rest := self._taken():
            await spool.write(rest)
        while data := await self._piece():
            await spool.write(data)
        await spool.flush()
        self.ended = True

    async def discard(self, limit: int) -> None:
        """Read to the end, so that the client gets to read the answer; but not for ever."""
        self._taken()
        size = 0
        while data := await self._piece():
            size += len(data)
            if size > limit:
                return
        self.ended = True

    def close(self) -> None:
        """Let go of what was not taken."""
        self._taken()

    def _taken(self) -> bytes:
        """What came with the head, which is held no longer."""
        rest, self._rest = self._rest, b""
        self._buffered.clear()
        return rest

    async def _piece(self) -> bytes:
        """The next bytes; none at the end."""
        while True:
            if self._gzip is not None and (more := self._gzip.more()):
                return more
            try:
                async with asyncio.timeout(BODY_IDLE):
                    data = await self._request.content.readany()
            except web.RequestPayloadError:
                raise InvalidInput("the push is cut or badly framed", "push again") from None
            if not data or self._gzip is None:
                return data
            self._gzip.feed(data)


class _Gzip:
    """Takes gzip off, so much at a time."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(31)
        self._waiting = b""
        self._read = self._made = 0

    def feed(self, data: bytes) -> None:
        """Take what came next, all of what came before having been unpacked."""
        self._waiting = data
        self._read += len(data)

    def more(self) -> bytes:
        """At most AT_ONCE bytes of what is unpacked from it; none at its end."""
        try:
            out = self._decoder.decompress(self._waiting, AT_ONCE)
        except zlib.error:
            raise InvalidInput("the push is not valid gzip", "push again") from None
        self._waiting = self._decoder.unconsumed_tail
        self._made += len(out)
        if self._decoder.unused_data:
            raise InvalidInput("the push goes on behind its end", "push again")
        if self._made > max(_ANY_RATIO, _MAX_RATIO * self._read):
            raise InvalidInput("the push is compressed too much", "push again")
        return out


def _decoder(request: web.BaseRequest) -> _Gzip | None:
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        return _Gzip()
    if coding != "identity":
        raise GitRefusedError(
            415, f"Content-Encoding {coding[:40]!r} is not supported", "use gzip", "bad-coding"
        )
    return None
