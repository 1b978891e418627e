"""Directories of this machine as contexts of builds: what COPY steps may take from, less what .dockerignore names."""

import os
import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2b_dockerfile_utils import PatternMatcher

from corral.errors import InvalidInput
from corral.sdk.trees import content, header

MAX_IGNORE = 1 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    name: str


class Context:
    """A directory, looked through before anything is sent. `only`: of it, those paths and what is below them; patterns
    stand for the directory that they are in. Links are sent as links, never what they lead to.
    """

    def __init__(
        self, root: Path | str, ignore: Sequence[str] = (), only: Sequence[str] | None = None
    ) -> None:
        """Raises InvalidInput where it is no directory, or a pattern of `ignore` is malformed."""
        self._root = Path(root).resolve()
        if not self._root.is_dir():
            raise InvalidInput(f"{root} is no directory", "name the directory that COPY takes files from")
        try:
            self._ignored = PatternMatcher(list(ignore)) if ignore else None
        except ValueError as error:
            raise InvalidInput(f".dockerignore is malformed: {error}", "see its brackets") from None
        self._only = None if only is None else [_fixed_part(path) for path in only]

    def archive(self) -> Iterator[bytes]:
        """The tar stream, read as it is sent."""
        for entry in self._scan():
            yield from _member(entry)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _scan(self) -> Iterator[_Entry]:
        pending = [""]
        while pending:
            place = pending.pop()
            for found in sorted(os.scandir(os.path.join(self._root, place)), key=lambda item: item.name):  # noqa: PTH118
                name = posixpath.join(place, found.name)
                directory = found.is_dir(follow_symlinks=False)
                if not self._wanted(name):
                    continue
                if self._ignored is not None and self._ignored.matches(name):
                    if directory and self._ignored.may_match_under(name):
                        pending.append(name)
                    continue
                yield _Entry(found.path, name)
                if directory:
                    pending.append(name)

    def _wanted(self, name: str) -> bool:
        if self._only is None:
            return True
        return any(
            not only or name == only or name.startswith(f"{only}/") or only.startswith(f"{name}/")
            for only in self._only
        )


def _fixed_part(path: str) -> str:
    """The path up to its first part with a pattern or a variable."""
    parts = []
    for part in posixpath.normpath("/" + path).lstrip("/").split("/"):
        if set(part) & set("*?[\\$"):
            break
        parts.append(part)
    return "/".join(part for part in parts if part != ".")


def _member(entry: _Entry) -> Iterator[bytes]:
    info = tarfile.TarInfo(entry.name)
    status = os.lstat(entry.path)
    info.mode, info.mtime = status.st_mode & 0o777, int(status.st_mtime)
    if os.path.islink(entry.path):  # noqa: PTH114  names here may hold any bytes and come as strings
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(entry.path)  # noqa: PTH115
        yield header(info)
    elif os.path.isdir(entry.path):  # noqa: PTH112
        info.type = tarfile.DIRTYPE
        yield header(info)
    elif os.path.isfile(entry.path):  # noqa: PTH113
        info.size = status.st_size
        yield header(info)
        yield from content(entry.path, info.size)


def read_ignore(root: Path, dockerfile: Path | None = None) -> list[str]:
    """Patterns of `<Dockerfile>.dockerignore`, or of the context's `.dockerignore`; none where there is neither."""
    places = [root / ".dockerignore"]
    if dockerfile is not None:
        places.insert(0, dockerfile.with_name(f"{dockerfile.name}.dockerignore"))
    for place in places:
        if place.is_file():
            text = (
                place.read_bytes()[:MAX_IGNORE].decode("utf-8", "replace").removeprefix("\N{BYTE ORDER MARK}")
            )
            return [line for raw in text.splitlines() if (line := _pattern(raw))]
    return []


def _pattern(line: str) -> str:
    """A line of the file as a pattern, without its leading slash; empty for a comment."""
    if line.startswith("#"):
        return ""
    text = line.strip()
    negated = text.startswith("!")
    text = text.removeprefix("!").strip()
    if not text:
        return ""
    return ("!" if negated else "") + (posixpath.normpath(text).lstrip("/") or ".")
