"""Which requests a rule's methods and paths match (G-59, G-77 to G-80). All functions are pure, and linear in what a
sandbox sends.
"""

import re
from collections.abc import Sequence
from urllib.parse import unquote

from corral.errors import InvalidInput

MAX_SEGMENTS = 256
MAX_PATTERN = 1024
METHODS = frozenset(
    {
        *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "SEARCH", "REPORT"),
        *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK"),
    }
)
_PATTERN = re.compile(r"/[\x21\x22\x24-\x3e\x40-\x5b\x5d-\x7e]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

OVERRIDES = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
"""Header fields by which some servers take another method than the request's own (G-60)."""


def checked_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Methods in upper case, each once. Raises InvalidInput."""
    found = tuple(dict.fromkeys(method.strip().upper() for method in methods))
    for method in found:
        if method not in METHODS:
            raise InvalidInput(f"{method[:40]!r} is not a method of HTTP", "write them such as GET,HEAD")
    return found


def checked_path(pattern: str) -> str:
    """A pattern of paths, or raise InvalidInput."""
    if len(pattern) > MAX_PATTERN or not _PATTERN.fullmatch(pattern) or unsafe(pattern) is not None:
        raise InvalidInput(
            f"{pattern[:80]!r} is not a path that a rule can name",
            "begin with /, without a query; `*` stands for a part of one segment, `**` for any number of segments",
        )
    return pattern


def unsafe(path: str) -> str | None:
    """Why a path could be read in two ways, or None (G-77)."""
    if _BAD_ESCAPE.search(path):
        return "it holds a % that begins no escape"
    decoded = [unquote(segment, "latin-1") for segment in path.split("/")]
    if any("\\" in segment for segment in decoded):
        return "it holds a backslash"
    if any(_CONTROL.search(segment) for segment in decoded):
        return "it holds a control character"
    if any(segment.split(";")[0] in (".", "..") for piece in decoded for segment in piece.split("/")):
        return "it holds a segment of dots"
    if len(decoded) > MAX_SEGMENTS + 1:
        return f"it has more than {MAX_SEGMENTS} segments"
    return None


def matches(path: str, pattern: str) -> bool:
    """Whether a path, without its query, matches a pattern.

    Both are decoded once, segment by segment: `%2F` is no separator, and what was encoded twice stays encoded (G-78).
    """
    wanted = [segment if "*" in segment else unquote(segment, "latin-1") for segment in pattern.split("/")]
    given = [unquote(segment, "latin-1") for segment in path.split("/")]
    reached = _after_stars(wanted, {0})
    for segment in given:
        following = set()
        for at in reached:
            if at == len(wanted):
                continue
            if wanted[at] == "**":
                following.add(at)
            elif _segment_matches(segment, wanted[at]):
                following.add(at + 1)
        reached = _after_stars(wanted, following)
        if not reached:
            return False
    return len(wanted) in reached


def _after_stars(wanted: list[str], places: set[int]) -> set[int]:
    """Places in a pattern, and those behind a `**`, which may stand for nothing."""
    found = set(places)
    for at in places:
        while at < len(wanted) and wanted[at] == "**":
            at += 1
            found.add(at)
    return found


def _segment_matches(segment: str, wanted: str) -> bool:
    first, *rest = wanted.split("*")
    if not rest:
        return segment == wanted
    if not segment.startswith(first):
        return False
    at = len(first)
    for piece in rest[:-1]:
        found = segment.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return len(segment) - at >= len(rest[-1]) and segment.endswith(rest[-1])
