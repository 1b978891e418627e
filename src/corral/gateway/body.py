"""Bodies of model calls: read within bounds, decoded, and parsed so that no other parser can read them
differently.
"""

import asyncio
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import brotli  # type: ignore[import-untyped]  # it ships none
import zstandard
from aiohttp import StreamReader

from corral.errors import InvalidInput, TooLarge

MAX_BODY = 64 * 1024 * 1024
"""Bytes of a request body, as sent and as decoded (G-186)."""
IDLE = 120.0
"""Seconds without a byte."""
INLINE = 128 * 1024
"""Bytes up to which a body is decoded and parsed at once; larger ones would hold up everybody and go to a
thread.
"""
CODINGS = ("gzip", "deflate", "br", "zstd", "identity")
_DECODED_AT_ONCE = 1024 * 1024


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


def decode(data: bytes, coding: str) -> bytes:
    """The body without its Content-Encoding (G-182). Raises InvalidInput for bytes that are not what they are
    said to be, TooLarge for more than the limit. `coding` is one of `CODINGS`.
    """
    if coding == "identity":
        return data
    try:
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
    except (zlib.error, zstandard.ZstdError, brotli.error):
        raise InvalidInput(f"the request body is not valid {coding}", "send it uncompressed") from None


def _has_zlib_header(data: bytes) -> bool:
    return len(data) >= 2 and data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0


def _brotli(data: bytes) -> bytes:
    decoder = brotli.Decompressor()
    decoded = bytearray(decoder.process(data, output_buffer_limit=_DECODED_AT_ONCE))
    while not decoder.is_finished():
        more = decoder.process(b"", output_buffer_limit=_DECODED_AT_ONCE)
        decoded += more
        if len(decoded) > MAX_BODY:
            raise too_large()
        if not more and decoder.can_accept_more_data():
            raise brotli.error("incomplete")
    return bytes(decoded)


def _zlib(data: bytes, window: int) -> bytes:
    decoder = zlib.decompressobj(window)
    decoded = decoder.decompress(data, MAX_BODY + 1)
    if len(decoded) > MAX_BODY:
        raise too_large()
    if not decoder.eof or decoder.unused_data:
        raise zlib.error("incomplete or followed by other bytes")
    return decoded


def _zstd(data: bytes) -> bytes:
    decoder = zstandard.ZstdDecompressor(max_window_size=128 * 1024 * 1024).stream_reader(data)
    parts = bytearray()
    while chunk := decoder.read(1024 * 1024):
        parts += chunk
        if len(parts) > MAX_BODY:
            raise too_large()
    return bytes(parts)


def parse(data: bytes) -> Parsed:
    """The JSON object in a body. Raises InvalidInput for what parsers read differently: repeated keys, NaN,
    bytes that are not UTF-8, anything but an object (G-181).
    """
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
