"""What a scripted model server makes of a request before it reads it, and what it counts."""

import gzip
import hmac
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import zstandard

from corral.model.usage import Tokens
from corral.testing.model_dialects import Call

_CREDENTIAL_HEADERS = (
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "proxy-authorization",
    "cookie",
)


@dataclass(slots=True)
class Stats:
    """What the server has seen. `extra` counts requests that carried the key and a further credential beside it."""

    good: int = 0
    bad: int = 0
    extra: int = 0
    side: int = 0
    faulted: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, Tokens] = field(default_factory=dict)

    def add_call(self, dialect: str, call: Call) -> None:
        """Count an answered call."""
        self.calls[dialect] = self.calls.get(dialect, 0) + 1
        self.side += call.reply.side
        old, new = self.tokens.get(call.conversation.model, Tokens()), call.tokens
        self.tokens[call.conversation.model] = Tokens(
            old.input + new.input,
            old.output + new.output,
            old.cache_read + new.cache_read,
            old.cache_write + new.cache_write,
        )


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request's headers prove: whether the key is where its API wants it, and what else they carry."""

    good: bool
    extra: tuple[str, ...]


def judge(headers: Mapping[str, str], native: str, key: str) -> Credentials:
    """Judge a request's headers (names case-insensitive) for an API whose key belongs in the header `native`.

    A key of the form of a Claude subscription's is good as a bearer with its beta alone, as at Anthropic.
    """
    if native == "x-api-key" and key.startswith("sk-ant-oat"):
        native = (
            "authorization" if "oauth-2025-04-20" in headers.get("anthropic-beta", "") else "no such header"
        )
    wanted = f"Bearer {key}" if native == "authorization" else key
    good = hmac.compare_digest(headers.get(native, "").encode(), wanted.encode())
    return Credentials(
        good, tuple(name for name in _CREDENTIAL_HEADERS if name != native and name in headers)
    )


def decode_body(data: bytes, coding: str) -> bytes:
    """A request's body without its content coding. Raises ValueError for a broken one or one that is not known."""
    try:
        match coding:
            case "" | "identity":
                return data
            case "gzip":
                return gzip.decompress(data)
            case "deflate":
                return zlib.decompress(data)
            case "zstd":
                return zstandard.ZstdDecompressor().decompressobj().decompress(data)
            case _:
                raise ValueError(f"content coding {coding!r} is not supported")
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"the body is not valid {coding}") from error
