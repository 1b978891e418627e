"""What git prints of commits, trees and patches, read without I/O. All of it may come from a hostile pack.

Each reader takes pieces of any size, keeps a bounded amount, and raises InvalidInput for what git does not print.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from corral.errors import InvalidInput

MAX_HEADER = 64 * 1024
"""Bytes of a commit that are looked at: what follows is message."""
_OBJECT = re.compile(rb"([0-9a-f]{40,64}) (commit|tag|tree|blob) ([0-9]{1,12})")
_PERSON = re.compile(rb"(.*?) ?<([^>\n]*)> ?[0-9-]* ?[0-9+-]*")
_RAW = re.compile(rb"(:+)([0-7]{6}(?: [0-7]{6})+)((?: [0-9a-f]{40,64})+) ([A-Z]+[0-9]*)")
_HUNK = re.compile(rb"(@{2,}) ((?:-[0-9]+(?:,[0-9]+)? )+)\+[0-9]+(?:,([0-9]+))? @{2,}.*", re.DOTALL)
_COUNT = re.compile(rb"-[0-9]+(?:,([0-9]+))?")
_MAX_LINE = 1024 * 1024
_MAX_HEAD = 200


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, or an annotated tag, whose one parent is then what it points to."""

    id: str
    parents: tuple[str, ...]
    author: str
    email: str
    title: str
    signed: bool
    tag: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of an object's content; `last`: there are no more of it."""

    id: str
    kind: str
    data: bytes
    last: bool


class ObjectReader:
    """Reads what `git cat-file --batch` prints, of objects of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._id = self._kind = ""
        self._left = -1

    def feed(self, data: bytes) -> Iterator[Part]:
        """The contents that are there now; the caller takes all of them before the next call."""
        self._buffer += data
        while self._left >= 0 or self._head():
            if len(self._buffer) <= self._left:
                if self._buffer:
                    part = Part(self._id, self._kind, bytes(self._buffer), last=False)
                    self._left -= len(self._buffer)
                    self._buffer.clear()
                    yield part
                return
            if self._buffer[self._left] != ord("\n"):
                raise _strange("an object has no end")
            part = Part(self._id, self._kind, bytes(self._buffer[: self._left]), last=True)
            del self._buffer[: self._left + 1]
            self._left = -1
            yield part

    def finish(self) -> None:
        """Raise InvalidInput if the last one is cut."""
        if self._left >= 0 or self._buffer:
            raise _strange("a list of objects is cut")

    def _head(self) -> bool:
        end = self._buffer.find(b"\n", 0, _MAX_HEAD)
        if end < 0 and len(self._buffer) < _MAX_HEAD:
            return False
        head = _OBJECT.fullmatch(self._buffer[: max(end, 0)])
        if head is None:
            raise _strange("a list of objects is malformed")
        del self._buffer[: end + 1]
        self._id, self._kind, self._left = head[1].decode(), head[2].decode(), int(head[3])
        return True


class CommitReader:
    """Reads what `git cat-file --batch` prints for commits and tags."""

    def __init__(self) -> None:
        self._objects = ObjectReader()
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[Commit]:
        """The commits that are complete now."""
        found: list[Commit] = []
        for part in self._objects.feed(data):
            if part.kind not in ("commit", "tag"):
                raise _strange("a list of commits holds something else")
            self._kept += part.data[: max(0, MAX_HEADER - len(self._kept))]
            if part.last:
                found.append(_commit(part.id, bytes(self._kept), tag=part.kind == "tag"))
                self._kept.clear()
        return found

    def finish(self) -> None:
        """Raise InvalidInput if the last one is cut."""
        self._objects.finish()


def _commit(id: str, raw: bytes, *, tag: bool) -> Commit:
    headers, _, message = raw.partition(b"\n\n")
    parents, person, signed = [], b"", b"-----BEGIN " in message if tag else False
    for line in headers.split(b"\n"):
        name, _, value = line.partition(b" ")
        if name == (b"object" if tag else b"parent"):
            parents.append(value.decode("latin-1"))
        elif name == (b"tagger" if tag else b"author"):
            person = value
        elif name in (b"gpgsig", b"gpgsig-sha256"):
            signed = True
    found = _PERSON.fullmatch(person)
    author, email = (found[1], found[2]) if found else (person, b"")
    return Commit(
        id,
        tuple(parents),
        clean(author, 100),
        clean(email, 200),
        clean(message.split(b"\n")[0], 200),
        signed,
        tag,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit changes at a path: modes (`000000` where it is not there) and ids, before and after.

    Of a merge: what is in none of its parents; `old` then is that of the first one.
    """

    commit: str
    path: bytes
    old_mode: str
    new_mode: str
    old: str
    new: str
    status: str


class ChangeReader:
    """Reads what `git diff-tree --stdin -c -r --raw -z --no-abbrev` prints."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._commit = ""
        self._entry: tuple[list[str], list[str], str] | None = None

    def feed(self, data: bytes) -> list[Change]:
        """The changes that are complete now."""
        self._buffer += data
        *fields, rest = self._buffer.split(b"\0")
        if len(rest) > _MAX_LINE:
            raise _strange("a path is too long")
        self._buffer = bytearray(rest)
        found = [self._take(bytes(one)) for one in fields]
        return [one for one in found if one is not None]

    def finish(self) -> None:
        """Raise InvalidInput if the last one is cut."""
        if self._buffer.strip(b"\n") or self._entry is not None:
            raise _strange("a list of changes is cut")

    def _take(self, text: bytes) -> Change | None:
        if self._entry is not None:
            (modes, ids, status), self._entry = self._entry, None
            return Change(self._commit, text, modes[0], modes[-1], ids[0], ids[-1], status)
        text = text.removeprefix(b"\n")
        if re.fullmatch(rb"[0-9a-f]{40}|[0-9a-f]{64}", text):
            self._commit = text.decode()
            return None
        found = _RAW.fullmatch(text)
        if found is None:
            raise _strange("a list of changes is malformed")
        modes, ids = found[2].decode().split(), found[3].decode().split()
        if len(modes) != len(found[1]) + 1 or len(ids) != len(modes) or not self._commit:
            raise _strange("a list of changes is malformed")
        self._entry = (modes, ids, found[4].decode()[:1])
        return None


@dataclass(slots=True)
class PatchTotals:
    """Lines by path, as patches tell them."""

    added: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    binary: set[str] = field(default_factory=set)


class PatchReader:
    """Reads what `git diff-tree --stdin -c -p -U0` prints, and gives the lines that are added.

    Lines belong to a hunk by its counts, so a line that looks like a head of something is still a line.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._path = ""
        self._old: list[int] = []
        self._new = 0
        self.totals = PatchTotals()

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Path and text of each line that was added in what is complete now."""
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        if len(rest) > _MAX_LINE and (self._new or any(self._old)):
            # A line without an end is looked at in parts; the last bytes of one are the first of the next, so that
            # nothing hides at the cut.
            lines.append(rest)
            overlap = rest[:1] * max(1, len(self._old)) + rest[-256:]
            self._old, self._new = [n + 1 for n in self._old], self._new + 1
            rest = bytearray(overlap)
        elif len(rest) > _MAX_LINE:
            raise _strange("a patch is malformed")
        self._buffer = bytearray(rest)
        found = [self._take(bytes(line)) for line in lines]
        return [one for one in found if one is not None]

    def _take(self, line: bytes) -> tuple[str, bytes] | None:
        if self._new or any(self._old):
            return self._in_hunk(line)
        hunk = _HUNK.fullmatch(line)
        if hunk is not None:
            counts = _COUNT.findall(hunk[2])
            self._old = [int(count) if count else 1 for count in counts]
            self._new = int(hunk[3]) if hunk[3] is not None else 1
        elif line.startswith(b"+++ "):
            self._path = path_text(line[4:].removesuffix(b"\t"))
        elif line.startswith(b"Binary files "):
            self.totals.binary.add(path_text(line.partition(b" and ")[2].removesuffix(b" differ")))
        return None

    def _in_hunk(self, line: bytes) -> tuple[str, bytes] | None:
        signs, text = line[: len(self._old)], line[len(self._old) :]
        if signs[:1] == b"\\":
            return None  # "\ No newline at end of file"
        if b"-" in signs:
            self._old = [max(0, n - (sign == 0x2D)) for n, sign in zip(self._old, signs, strict=False)]
            removed = self.totals.removed
            removed[self._path] = removed.get(self._path, 0) + 1
            return None
        self._old = [max(0, n - (sign == 0x20)) for n, sign in zip(self._old, signs, strict=False)]
        self._new = max(0, self._new - 1)
        if signs.strip(b"+"):
            return None
        added = self.totals.added
        added[self._path] = added.get(self._path, 0) + 1
        return self._path, text


def path_text(raw: bytes) -> str:
    """A path for people: git's quotes are taken off, what cannot be shown is marked."""
    return clean(raw.removeprefix(b'"').removesuffix(b'"').removeprefix(b"b/"), 300)


def clean(raw: bytes, most: int) -> str:
    """Bytes as one line of at most `most` characters that can be shown."""
    text = raw[: 4 * most].decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return shown[:most]


def _strange(why: str) -> InvalidInput:
    return InvalidInput(f"the pack's contents cannot be read: {why}", "push again with a newer git")
