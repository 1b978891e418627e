"""Which files of an archive a COPY takes, and where each goes. No I/O.

Paths are relative, without `.` and `..`, with `/` between. Patterns are those of Docker: `*` and `?` within one part of
a path, `[…]`; matched part by part.
"""

import fnmatch
import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from e2b_dockerfile_utils import PatternMatcher

from corral.errors import InvalidInput

MAX_HOPS = 40


class Kind(StrEnum):
    """The type of an archive's entry."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of an archive. `digest` of a file's content; `offset` where that begins; `target` of a symlink.
    `xattrs` by name, as text whose bytes are Latin-1."""

    path: str
    kind: Kind
    mode: int = 0o644
    size: int = 0
    mtime: float = 0.0
    digest: str = ""
    offset: int = 0
    target: str = ""
    xattrs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """An item and its place below the target; empty: the target itself. `top`: it is what a source named."""

    item: Item
    place: str
    top: bool = False


def choose(
    items: Mapping[str, Item],
    sources: Sequence[str],
    exclude: Sequence[str] = (),
    *,
    directory: bool,
    links: bool = False,
) -> list[Placed]:
    """What `sources` take of an archive, and the place of each below the target, parents first.

    The content of a directory goes into the target; a file becomes the target, or goes below it by its name where the
    target is a `directory`. With `links` a symlink that a source names stays one. Raises InvalidInput for a source that
    matches nothing.
    """
    excluded = _matcher(exclude)
    children = _children(items)
    chosen: dict[str, Placed] = {}
    for source in sources:
        matches = sorted(_matches(items, children, clean(source)))
        if not matches:
            raise InvalidInput(
                f"nothing in the context matches {source[:200]!r}",
                "see the path, which is relative to the context, and .dockerignore",
            )
        several = directory or len(matches) > 1
        for path in matches:
            for placed in _take(items, children, path, several=several, links=links):
                if excluded is None or not excluded.matches(placed.item.path):
                    chosen[placed.place] = placed
    return [chosen[place] for place in sorted(chosen)]


def _take(
    items: Mapping[str, Item], children: Mapping[str, list[str]], path: str, *, several: bool, links: bool
) -> Iterator[Placed]:
    found = items[path] if links and path else _followed(items, path)
    if found is None:
        raise InvalidInput(f"{path[:200]!r} is a link that leads out of the context", "copy what it leads to")
    if found.kind is not Kind.DIRECTORY:
        yield Placed(found, posixpath.basename(path) if several else "", top=True)
        return
    yield Placed(found, "", top=True)
    pending = list(children.get(found.path, ()))
    while pending:
        below = pending.pop()
        yield Placed(items[below], posixpath.relpath(below, found.path or "."))
        pending += children.get(below, ())


def _followed(items: Mapping[str, Item], path: str) -> Item | None:
    """The item at `path`, symlinks followed within the archive."""
    for _ in range(MAX_HOPS):
        item = items.get(path)
        if item is None:
            return Item("", Kind.DIRECTORY, 0o755) if path == "" else None
        if item.kind is not Kind.SYMLINK:
            return item
        target = item.target
        joined = posixpath.join("/", posixpath.dirname(path), target)
        path = posixpath.normpath(joined).lstrip("/")
        path = "" if path == "." else path
    return None


def _children(items: Mapping[str, Item]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = {}
    for path in items:
        if path:
            children.setdefault(posixpath.dirname(path), []).append(path)
    return children


def _matches(items: Mapping[str, Item], children: Mapping[str, list[str]], pattern: str) -> Iterable[str]:
    if pattern == "":
        return [""]
    if not set(pattern) & set("*?[\\"):
        return [pattern] if pattern in items else []
    found = [""]
    for part in pattern.split("/"):
        compiled = pattern_of(part)
        found = [
            child
            for place in found
            for child in children.get(place, ())
            if compiled.fullmatch(posixpath.basename(child))
        ]
    return found


def pattern_of(part: str) -> re.Pattern[str]:
    """One part of a pattern, as Go's filepath.Match reads it. Runs of stars are one, so that matching stays quick."""
    if part.count("*") > 8:
        raise InvalidInput(f"the pattern {part[:80]!r} has too many stars", "use a simpler one")
    text = re.sub(r"\*+", "*", part).replace("[^", "[!")
    text = re.sub(r"\\(.)", r"[\1]", text)
    return re.compile(fnmatch.translate(text))


def _matcher(patterns: Sequence[str]) -> PatternMatcher | None:
    if not patterns:
        return None
    try:
        return PatternMatcher(list(patterns))
    except ValueError as error:
        raise InvalidInput(f"an exclusion is malformed: {error}", "see its brackets") from None


def clean(path: str) -> str:
    """A source as a path of the archive: what climbs above the root stays at it. Empty for the root."""
    normal = posixpath.normpath("/" + path).lstrip("/")
    return "" if normal == "." else normal


def digest_of(placed: Iterable[Placed]) -> str:
    """A digest (hex) of what is copied and where to; times do not count."""
    total = hashlib.sha256()
    for one in placed:
        item = one.item
        fields = (one.place, item.kind.value, f"{item.mode:o}", item.digest, item.target, repr(item.xattrs))
        for field in fields:
            data = field.encode("utf-8", "surrogateescape")
            total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()
