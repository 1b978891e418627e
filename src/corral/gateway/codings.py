"""Content-Encodings, taken off as a body comes: whatever a few bytes unpack to, little of it is in memory at a time."""

import zlib
from collections.abc import Iterator
from typing import Protocol

import brotli  # type: ignore[import-untyped]
import zstandard

from corral.errors import InvalidInput

READABLE = ("gzip", "deflate", "br", "zstd")
"""Those that can be taken off."""
_PIECE = 64 * 1024
_WINDOW = 8 * 1024 * 1024
_SLICE = 64
"""Bytes of zstd at a time: its decoder has no limit of output, and 64 bytes make at most 2 MiB."""


class Decoder(Protocol):
    """Takes a coding off. Raises InvalidInput for bytes that are not of it."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` makes, in pieces; the caller takes all of them before the next call."""

    def finish(self) -> None:
        """Raises InvalidInput if the body ends too early."""


def decoder(coding: str) -> Decoder:
    """A decoder for one of READABLE, or for `identity`. Raises InvalidInput for any other."""
    match coding:
        case "" | "identity":
            return _Identity()
        case "gzip" | "x-gzip":
            return _Zlib(31)
        case "deflate":
            return _Deflate()
        case "br":
            return _Brotli()
        case "zstd":
            return _Zstd()
    raise InvalidInput(
        f"the content coding {coding[:40]!r} cannot be read", f"use one of {', '.join(READABLE)}"
    )


def _broken(coding: str) -> InvalidInput:
    return InvalidInput(f"the body is not valid {coding}", "send it whole, or without a Content-Encoding")


class _Identity:
    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        """Any end is right."""


class _Zlib:
    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._decoder = zlib.decompressobj(bits)
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                if self._decoder.eof:
                    if self._bits != 31:
                        raise _broken("deflate")
                    # Several members make one body.
                    self._decoder = zlib.decompressobj(self._bits)
                self._begun = True
                piece = self._decoder.decompress(data, _PIECE)
                data = self._decoder.unconsumed_tail or self._decoder.unused_data
                if piece:
                    yield piece
            while not self._decoder.eof and (piece := self._decoder.decompress(b"", _PIECE)):
                yield piece
        except zlib.error:
            raise _broken("gzip" if self._bits == 31 else "deflate") from None

    def finish(self) -> None:
        if self._begun and not self._decoder.eof:
            raise _broken("gzip" if self._bits == 31 else "deflate")


class _Deflate:
    """What calls itself deflate: with zlib's frame, as it should be, or without, as some servers send it."""

    def __init__(self) -> None:
        self._inner: _Zlib | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._inner is None and data:
            self._inner = _Zlib(15 if data[0] & 0x0F == 8 else -15)
        if self._inner is not None:
            yield from self._inner.feed(data)

    def finish(self) -> None:
        if self._inner is not None:
            self._inner.finish()


class _Brotli:
    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            self._begun = self._begun or bool(data)
            piece = self._decoder.process(data, output_buffer_limit=_PIECE)
            while True:
                if piece:
                    yield piece
                if self._decoder.can_accept_more_data():
                    return
                piece = self._decoder.process(b"", output_buffer_limit=_PIECE)
        except brotli.error:
            raise _broken("br") from None

    def finish(self) -> None:
        if self._begun and not self._decoder.is_finished():
            raise _broken("br")


class _Zstd:
    def __init__(self) -> None:
        self._dctx = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        self._decoder = self._dctx.decompressobj()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            for start in range(0, len(data), _SLICE):
                part = data[start : start + _SLICE]
                while part:
                    if self._decoder.eof:
                        self._decoder = self._dctx.decompressobj()
                    self._begun = True
                    piece = self._decoder.decompress(part)
                    part = self._decoder.unused_data
                    for at in range(0, len(piece), _PIECE):
                        yield piece[at : at + _PIECE]
        except zstandard.ZstdError:
            raise _broken("zstd") from None

    def finish(self) -> None:
        if self._begun and not self._decoder.eof:
            raise _broken("zstd")
