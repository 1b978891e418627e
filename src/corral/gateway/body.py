"""Bodies of model calls: read within bounds, decoded, and parsed so that no other parser can read them
differently.
"""

import asyncio
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import brotli  # type: ignore[import-untyped]  # it ships none
import zstandard
from aiohttp import StreamReader

from corral.errors import InvalidInput, TooLarge
from corral.wire.crowding import crowded
from corral.wire.fields import JUDGED, plainly_spelled
from corral.wire.unmetered import TOP_LEVEL

MAX_BODY = 64 * 1024 * 1024
"""Bytes of a request body, as sent and as decoded (G-186)."""
IDLE = 120.0
"""Seconds without a byte."""
INLINE = 128 * 1024
"""Bytes of a decoded body up to which it is decoded, parsed and judged at once; larger ones would hold up everybody and go
to a thread.
"""
CODINGS = ("gzip", "deflate", "br", "zstd", "identity")
MAX_RATIO = 200
"""Decoded bytes for each that was sent, of a body over `_ANY_RATIO`: conversations make tens."""
_ANY_RATIO = 1024 * 1024
_DECODED_AT_ONCE = 256 * 1024
_JUDGED = JUDGED | TOP_LEVEL


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request body: its text, and the object that it is."""

    text: str
    value: Mapping[str, Any]


async def read(content: StreamReader, count: Callable[[int], None]) -> bytes:
    """The whole body, `count` being told of its bytes as they come. Raises TooLarge, or TimeoutError for a
    client that stops sending.
    """
    parts = bytearray()
    while True:
        if content.is_eof():
            # It came together with the head, as most do.
            chunk = content.read_nowait()
        else:
            async with asyncio.timeout(IDLE):
                chunk = await content.readany()
        if not chunk:
            return bytes(parts)
        parts += chunk
        count(len(chunk))
        if len(parts) > MAX_BODY:
            raise too_large()


def too_large() -> TooLarge:
    """The error for a body over the limit."""
    return TooLarge("the request body is too large", f"send at most {MAX_BODY // 1024 // 1024} MiB")


def most_decoded(size: int, coding: str) -> int:
    """Bytes that a body of `size` is at most when it is decoded: beyond that it is refused (G-182)."""
    return size if coding == "identity" else min(MAX_BODY, max(_ANY_RATIO, MAX_RATIO * size))


def decode_small(data: bytes, coding: str) -> bytes | None:
    """The body without its Content-Encoding if it is at most INLINE then, else None. Raises InvalidInput."""
    if len(data) > INLINE:
        return None
    try:
        return decode(data, coding, INLINE)
    except TooLarge:
        return None


def decode(data: bytes, coding: str, most: int = MAX_BODY) -> bytes:
    """The body without its Content-Encoding (G-182). Raises InvalidInput for bytes that are not what they are
    said to be, TooLarge as soon as they are more than `most` or than `most_decoded`. `coding` is one of `CODINGS`.
    """
    if coding == "identity":
        return data
    most = min(most, most_decoded(len(data), coding))
    decoded = bytearray()
    try:
        for piece in _pieces(data, coding):
            decoded += piece
            if len(decoded) > most:
                raise too_large()
    except (zlib.error, zstandard.ZstdError, brotli.error):
        raise InvalidInput(f"the request body is not valid {coding}", "send it uncompressed") from None
    return bytes(decoded)


def _pieces(data: bytes, coding: str) -> Iterator[bytes]:
    match coding:
        case "zstd":
            return _zstd(data)
        case "br":
            return _brotli(data)
        case "gzip":
            return _zlib(data, 31)
        case _:
            # What HTTP calls deflate has a header; some clients leave it out.
            return _zlib(data, 15 if _has_zlib_header(data) else -15)


def _has_zlib_header(data: bytes) -> bool:
    return len(data) >= 2 and data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0


def _brotli(data: bytes) -> Iterator[bytes]:
    decoder = brotli.Decompressor()
    yield decoder.process(data, output_buffer_limit=_DECODED_AT_ONCE)
    while not decoder.is_finished():
        more = decoder.process(b"", output_buffer_limit=_DECODED_AT_ONCE)
        yield more
        if not more and decoder.can_accept_more_data():
            raise brotli.error("incomplete")


def _zlib(data: bytes, window: int) -> Iterator[bytes]:
    decoder = zlib.decompressobj(window)
    yield decoder.decompress(data, _DECODED_AT_ONCE)
    # What came is taken at its end, while more of what it makes may still be inside.
    while not decoder.eof and (more := decoder.decompress(decoder.unconsumed_tail, _DECODED_AT_ONCE)):
        yield more
    if not decoder.eof or decoder.unused_data:
        raise zlib.error("incomplete or followed by other bytes")


def _zstd(data: bytes) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=128 * 1024 * 1024).stream_reader(data)
    while chunk := decoder.read(_DECODED_AT_ONCE):
        yield chunk


def parse(data: bytes) -> Parsed:
    """The JSON object in a body. Raises InvalidInput for what parsers read differently: repeated keys, fields that differ in
    nothing but case, NaN, bytes that are not UTF-8, anything but an object (G-181); and for more values than fit into
    memory (G-340).
    """
    if crowded(data):
        raise _bad("it holds too many values")
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    except RecursionError:
        raise _bad("it is nested too deeply") from None
    except ValueError as error:
        raise _bad(str(error)[:200]) from None
    if not isinstance(value, dict):
        raise _bad("it is not an object")
    plainly_spelled(value, _JUDGED)
    return Parsed(text, value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated in an object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _bad(why: str) -> InvalidInput:
    return InvalidInput(f"the request body is not acceptable JSON: {why}", "send one JSON object in UTF-8")
