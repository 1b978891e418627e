"""From what git printed of a push to what a person is shown of it. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from corral.errors import InvalidInput
from corral.model.push import (
    MAX_COMMITS,
    MAX_FILES,
    MAX_FLAGS,
    Command,
    CommitLine,
    FileLine,
    Flag,
    FlagKind,
    PushReport,
    RefLine,
)
from corral.policy.leaks import runs_at_work, runs_in_ci, secret_in
from corral.policy.needles import Needles
from corral.wire.gitobjects import Change, Commit, Part, PatchTotals, path_text

LARGE = 10 * 1024 * 1024
"""Bytes from which on a file is pointed out."""
_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_GITLINK, _LINK, _EXECUTABLE = "160000", "120000", "100755"


@dataclass(slots=True)
class Gathered:
    """What was read of a push so far."""

    objects: int = 0
    content: str = ""
    commits: dict[str, Commit] = field(default_factory=dict)
    large: dict[str, int] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    totals: PatchTotals = field(default_factory=PatchTotals)
    flags: dict[tuple[FlagKind, str], str] = field(default_factory=dict)
    leaks: dict[str, str] = field(default_factory=dict)
    """The secrets that objects hold, by their ids."""
    truncated: str = ""

    def flag(self, kind: FlagKind, subject: str, detail: str = "") -> None:
        """Keep a finding, once."""
        self.flags.setdefault((kind, subject), detail)

    def scan(self, lines: Iterable[tuple[str, bytes]]) -> None:
        """Look for secrets in lines that were added (G-259). The secret itself is not kept."""
        for path, text in lines:
            if (found := secret_in(text)) is not None:
                self.flag(FlagKind.SECRET, path, found)


class LeakSearch:
    """Looks for secrets themselves in all that a push brings: files, names, messages (G-44)."""

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._tail = b""
        self.found: dict[str, str] = {}
        """The secret that an object holds, by its id: of so many objects as are told of."""

    def feed(self, part: Part) -> None:
        """Look at the next bytes, also where they are the rest of what was cut."""
        block = self._tail + part.data
        self._tail = b"" if part.last else block[1 - self._needles.longest :]
        if len(self.found) < MAX_FLAGS and (name := self._needles.first(block)) is not None:
            self.found[part.id] = name


def take_objects(gathered: Gathered, told: bytes, most: int) -> None:
    """What was printed of the objects that a push brings: lines `large ID BYTES`, `total OBJECTS COMMITS` and `content DIGEST`.
    Of more than `most` commits not all are looked at. Raises InvalidInput.
    """
    for line in told.split(b"\n"):
        match [word.decode("ascii", "replace") for word in line.split()]:
            case []:
                continue
            case ["large", id, size] if _NUMBER.fullmatch(size):
                gathered.large[id] = int(size)
            case ["content", digest]:
                gathered.content = digest
            case ["total", objects, commits] if _NUMBER.fullmatch(objects) and _NUMBER.fullmatch(commits):
                gathered.objects = int(objects)
                if int(commits) > most:
                    gathered.truncated = f"the push brings {commits} commits"
            case _:
                raise InvalidInput("the pack's contents cannot be read: its objects", "push again")


def missing_parents(commits: Mapping[str, Commit], commands: Sequence[Command]) -> list[str]:
    """Commits that the push builds on and does not bring: those that the server must have."""
    wanted = {parent for one in commits.values() for parent in one.parents if parent not in commits}
    wanted |= {one.new for one in commands if not one.deletes and one.new not in commits}
    return sorted(wanted)


def follows(commits: Mapping[str, Commit], old: str, new: str) -> bool:
    """Whether `old` is seen to be an ancestor of `new` from what the push brings (G-251)."""
    seen, pending = {new}, [new]
    while pending:
        at = pending.pop()
        if at == old:
            return True
        found = commits.get(at)
        for parent in found.parents if found is not None else ():
            if parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return False


def old_blobs(changes: Iterable[Change]) -> list[str]:
    """Contents before the changes, which the push does not bring, as far as patches need them."""
    changes = list(changes)
    brought = {one.new for one in changes}
    return sorted(
        {
            one.old
            for one in changes
            if one.status in "MT"
            and one.old not in brought
            and one.old_mode != _GITLINK
            and one.old.strip("0")
        }
    )


def look_at(gathered: Gathered, authors: Sequence[str], *, signed: bool) -> None:
    """Flag what paths, modes, sizes, authors and signatures tell."""
    for one in gathered.changes:
        _look_at_change(gathered, one)
    for commit in gathered.commits.values():
        if commit.tag:
            continue
        if authors and not any(fnmatchcase(commit.email.lower(), item.lower()) for item in authors):
            gathered.flag(FlagKind.AUTHOR, commit.id[:12], commit.email)
        if signed and not commit.signed:
            gathered.flag(FlagKind.UNSIGNED, commit.id[:12], commit.title[:80])
    paths = {one.new: path_text(one.path) for one in gathered.changes}
    for id, name in gathered.leaks.items():
        gathered.flag(FlagKind.LEAK, paths.get(id, f"the object {id[:12]}"), name)
    for path in gathered.totals.binary:
        gathered.flag(FlagKind.BINARY, path)
    if gathered.truncated:
        gathered.flag(FlagKind.NOT_INSPECTED, gathered.truncated)


def _look_at_change(gathered: Gathered, one: Change) -> None:
    path = path_text(one.path)
    if runs_in_ci(path):
        gathered.flag(FlagKind.CI, path)
    if one.status == "D":
        return
    if runs_at_work(path):
        gathered.flag(FlagKind.HOOK, path)
    if one.new_mode == _GITLINK or path == ".gitmodules":
        gathered.flag(FlagKind.SUBMODULE, path)
    if one.new_mode == _LINK and one.old_mode != _LINK:
        gathered.flag(FlagKind.SYMLINK, path)
    if one.new_mode == _EXECUTABLE and one.old_mode not in (_EXECUTABLE, "000000"):
        gathered.flag(FlagKind.EXECUTABLE, path)
    if one.new in gathered.large:
        gathered.flag(FlagKind.LARGE, path, f"{gathered.large[one.new] // (1024 * 1024)} MiB")


def report(gathered: Gathered, commands: Sequence[Command], forward: Mapping[str, bool]) -> PushReport:
    """The report, its lists cut; what matters most comes first."""
    commits = [one for one in gathered.commits.values() if not one.tag]
    files = _files(gathered)
    order = list(FlagKind)
    flags = sorted(
        (Flag(kind, subject, detail) for (kind, subject), detail in gathered.flags.items()),
        key=lambda one: (order.index(one.kind), one.subject),
    )
    return PushReport(
        refs=tuple(RefLine(one.ref, forward.get(one.ref, False)) for one in commands),
        commits=tuple(CommitLine(one.id, one.author, one.email, one.title) for one in commits[:MAX_COMMITS]),
        commits_total=len(commits),
        files=tuple(files[:MAX_FILES]),
        files_total=len(files),
        added=sum(gathered.totals.added.values()),
        removed=sum(gathered.totals.removed.values()),
        flags=tuple(flags[:MAX_FLAGS]),
        flags_total=len(flags),
        objects=gathered.objects,
        content=gathered.content,
    )


def _files(gathered: Gathered) -> list[FileLine]:
    statuses: dict[str, str] = {}
    for one in gathered.changes:
        path = path_text(one.path)
        statuses[path] = one.status if statuses.get(path, one.status) == one.status else "M"
    added, removed, binary = gathered.totals.added, gathered.totals.removed, gathered.totals.binary
    return [
        FileLine(
            status,
            path,
            None if path in binary else added.get(path, 0),
            None if path in binary or status == "D" else removed.get(path, 0),
        )
        for path, status in sorted(statuses.items())
    ]
