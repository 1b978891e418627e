"""Codings of a body of `/files`: gzip, or none.

Libraries of HTTP ask for gzip of themselves, beside other codings. Packing costs more than a local network does, so a file is
packed for those who prefer gzip to all else, as programs do that ask for it themselves, or who take nothing but it.
"""

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from corral.api.e2b.failures import Refusal

MAX_IDLE = 300.0
"""Seconds without a byte after which an upload is given up."""
_PIECE = 256 * 1024
_WINDOW = zlib.MAX_WBITS | 16
_FASTEST = 1
_CODING = re.compile(r"\s*([\w\-]+|\*)\s*(?:;\s*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?\s*", re.IGNORECASE)
_PARTIAL = ("range", "if-modified-since", "if-none-match", "if-match", "if-unmodified-since", "if-range")


def wants_gzip(headers: Headers) -> bool:
    """Whether a file is sent packed; whoever has a part of it, or a former version, gets it as it is. Raises Refusal for one
    who takes neither form."""
    told = [_CODING.fullmatch(part) for part in headers.get("accept-encoding", "").split(",")]
    wanted = {found[1].lower(): float(found[2] or 1) for found in told if found}
    gzip = wanted.get("gzip", wanted.get("*", 0.0))
    partial = any(name in headers for name in _PARTIAL)
    if wanted.get("identity", wanted.get("*", 1.0)) == 0:
        if partial or gzip == 0:
            raise Refusal(406, "no coding that is accepted can be sent: gzip and identity can")
        return True
    preferred = "gzip" in wanted and all(gzip > other for name, other in wanted.items() if name != "gzip")
    return preferred and gzip > 0 and not partial


async def packed(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same, packed by gzip as it comes."""
    packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, _WINDOW)
    async for chunk in chunks:
        if piece := await asyncio.to_thread(packer.compress, chunk):
            yield piece
    yield packer.flush()


async def unpacked(request: Request) -> AsyncGenerator[bytes, None]:
    """A request's body, unpacked where it is compressed, in pieces of bounded size. A body that breaks off raises."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        raise Refusal(400, f"unsupported content encoding: {encoding[:40]}")
    try:
        if encoding != "gzip":
            async for chunk in _timely(request.stream()):
                if chunk:
                    yield chunk
            return
        unpacker = zlib.decompressobj(_WINDOW)
        async for chunk in _timely(request.stream()):
            while chunk:
                if piece := unpacker.decompress(chunk, _PIECE):
                    yield piece
                chunk = unpacker.unconsumed_tail
        if not unpacker.eof:
            raise Refusal(400, "the gzip stream breaks off")
    except zlib.error:
        raise Refusal(400, "the body is not gzip") from None
    except ClientDisconnect:
        raise Refusal(400, "the request's body broke off") from None


async def _timely(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(MAX_IDLE):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal(408, f"no byte of the body came for {MAX_IDLE:.0f} seconds") from None
        yield chunk
