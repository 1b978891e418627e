"""What a client sends of a push: its head, then its pack, with limits on time and size."""

import asyncio
import zlib

from aiohttp import hdrs, web

from corral.errors import InvalidInput, TooLarge
from corral.gateway.gitupstream import GitRefusedError
from corral.gateway.spools import Spool
from corral.gateway.upstream import BODY_IDLE
from corral.wire.gitpush import PushHead, PushReader

_MAX_HEAD_SECONDS = 60.0
_MOST_AT_ONCE = 64 * 1024 * 1024


class PushBody:
    """The request's body, decoded, in pieces."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._reader = PushReader()
        self._rest = b""
        self._gzip = _decoder(request)
        self.ended = False

    async def head(self) -> PushHead:
        """What stands before the pack. Raises GitRefusedError for what is no push."""
        try:
            async with asyncio.timeout(_MAX_HEAD_SECONDS):
                while True:
                    data = await self._piece()
                    if not data:
                        raise InvalidInput("the push is cut", "push again")
                    head = self._reader.feed(data)
                    if head is not None:
                        self._rest = self._reader.rest
                        return head
        except TimeoutError:
            raise GitRefusedError(408, "the push did not come", "push again", "push-timeout") from None
        except (InvalidInput, TooLarge) as error:
            raise GitRefusedError(400, error.message, error.hint, "bad-push") from None

    async def into(self, spool: Spool) -> None:
        """Write the pack to a file. Raises TooLarge, DiskFull, InvalidInput."""
        if self._rest:
            await spool.write(self._rest)
        while data := await self._piece():
            await spool.write(data)
        await spool.flush()
        self.ended = True

    async def discard(self, limit: int) -> None:
        """Read to the end, so that the client gets to read the answer; but not for ever."""
        size = 0
        while data := await self._piece():
            size += len(data)
            if size > limit:
                return
        self.ended = True

    async def _piece(self) -> bytes:
        """The next bytes; none at the end."""
        while True:
            try:
                async with asyncio.timeout(BODY_IDLE):
                    data = await self._request.content.readany()
            except web.RequestPayloadError:
                raise InvalidInput("the push is cut or badly framed", "push again") from None
            if not data or self._gzip is None:
                return data
            decoded = self._gzip.feed(data)
            if decoded:
                return decoded


class _Gzip:
    """Takes gzip off, so much at a time."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(31)

    def feed(self, data: bytes) -> bytes:
        try:
            out = self._decoder.decompress(data, _MOST_AT_ONCE)
        except zlib.error:
            raise InvalidInput("the push is not valid gzip", "push again") from None
        if self._decoder.unconsumed_tail or self._decoder.unused_data:
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
