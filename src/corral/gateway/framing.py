"""Is this request one that every parser reads in the same way? (block F of the gateway's rules)

aiohttp's parser refuses most of what is ambiguous: a bare CR or LF, NUL, folded lines, white space before a
colon, names that are no tokens, Content-Length beside Transfer-Encoding, bad chunk sizes, several Host
fields. Here is what it lets through and the gateway does not. All functions are pure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_LINE = 16 * 1024
MAX_FIELD = 32 * 1024
MAX_FIELDS = 200
MAX_HEAD = 64 * 1024

Fields = Sequence[tuple[bytes, bytes]]
Named = Mapping[bytes, list[bytes]]

_DIGITS = re.compile(rb"[0-9]{1,18}")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(r"[\x21\x22\x24-\x7e]+")
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_OWN_PREFIX = b"x-corral-"
_END_TO_END = frozenset(
    {
        b"host",
        b"authorization",
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"cookie",
        b"expect",
        b"x-api-key",
    }
)


@dataclass(frozen=True, slots=True)
class BadRequest:
    """What is wrong, and the status that says so."""

    status: int
    message: str


def check(method: str, target: str, version: tuple[int, int], fields: Fields) -> BadRequest | None:
    """What makes a request unacceptable, or None."""
    if version not in ((1, 0), (1, 1)):
        return BadRequest(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    if (bad := _check_target(method, target)) is not None:
        return bad
    if sum(len(name) + len(value) for name, value in fields) > MAX_HEAD:
        return BadRequest(431, f"the header fields are larger than {MAX_HEAD} bytes")
    if any(_CONTROL.search(value) for _, value in fields):
        return BadRequest(400, "a header field holds a control character")
    named = by_name(fields)
    return _check_body(named) or _check_connection(named)


def _check_target(method: str, target: str) -> BadRequest | None:
    if method == "CONNECT":
        return BadRequest(
            405, "this is not a proxy: connect to the host itself, its name resolves to the gateway"
        )
    if not target.startswith("/"):
        return BadRequest(400, "the request target must be a path: this is not a proxy")
    if not _TARGET.fullmatch(target):
        return BadRequest(400, "the request target holds a fragment or characters that must be encoded")
    return None


def _check_body(named: Named) -> BadRequest | None:
    lengths = named.get(b"content-length", [])
    codings = named.get(b"transfer-encoding", [])
    if len(named.get(b"host", [])) != 1:
        return BadRequest(400, "exactly one Host field is needed")
    if codings and lengths:
        return BadRequest(400, "Content-Length and Transfer-Encoding exclude each other")
    if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
        return BadRequest(400, "the only Transfer-Encoding is a single `chunked`")
    if len(lengths) > 1 or not all(_DIGITS.fullmatch(length.strip()) for length in lengths):
        return BadRequest(400, "Content-Length must be one decimal number")
    return None


def _check_connection(named: Named) -> BadRequest | None:
    if _END_TO_END & _options(named):
        return BadRequest(400, "Connection names a field that belongs to the message")
    if b"http2-settings" in named or any(
        value.strip().lower() == b"h2c" for value in named.get(b"upgrade", [])
    ):
        return BadRequest(400, "HTTP/2 is not spoken on this port")
    return None


def by_name(fields: Fields) -> Named:
    """The values of the fields by lower-case name."""
    named: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        named.setdefault(name.lower(), []).append(value)
    return named


def _options(named: Named) -> frozenset[bytes]:
    """What the Connection fields name, in lower case."""
    return frozenset(
        option.strip().lower() for value in named.get(b"connection", []) for option in value.split(b",")
    )


def wants_upgrade(fields: Fields) -> bool:
    """Whether another protocol is asked for."""
    named = by_name(fields)
    return b"upgrade" in named or b"upgrade" in _options(named)


def end_to_end(fields: Fields) -> list[tuple[str, str]]:
    """The fields that are passed on, spelled and ordered as they came (G-85, G-87).

    Raises UnicodeDecodeError for a value that is not UTF-8, which could not be sent on byte for byte.
    """
    dropped = _HOP_BY_HOP | _options(by_name(fields))
    return [
        (name.decode("ascii"), value.decode("utf-8"))
        for name, value in fields
        if (lower := name.lower()) not in dropped and not lower.startswith(_OWN_PREFIX)
    ]


def is_bodiless(method: str, status: int) -> bool:
    """Whether an answer has no body, whatever its fields say of one."""
    return method == "HEAD" or status in (204, 304)


def check_response(fields: Fields) -> BadRequest | None:
    """What makes an upstream's answer unacceptable (G-75, G-98)."""
    if any(_CONTROL.search(value) for _, value in fields):
        return BadRequest(502, "the server's answer holds a control character in a header field")
    named = by_name(fields)
    lengths = {value.strip() for value in named.get(b"content-length", [])}
    if len(lengths) > 1 or (lengths and b"transfer-encoding" in named):
        return BadRequest(502, "the length of the server's answer is ambiguous")
    return None
