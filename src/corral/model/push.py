"""What a push would bring, as its inspection found it. All texts come out of a sandbox, cleaned and cut."""

import re
from dataclasses import dataclass
from enum import StrEnum

from corral.model.git import Operation

MAX_COMMITS = 50
MAX_FILES = 100
MAX_FLAGS = 50

_ZERO = re.compile(r"0+")


@dataclass(frozen=True, slots=True)
class Command:
    """What shall become of one ref: its ids before and after, all zeros where it is not there."""

    ref: str
    old: str
    new: str

    @property
    def creates(self) -> bool:
        """Whether the ref is new."""
        return _ZERO.fullmatch(self.old) is not None

    @property
    def deletes(self) -> bool:
        """Whether the ref is to go."""
        return _ZERO.fullmatch(self.new) is not None

    def operation(self, *, forward: bool) -> Operation:
        """What it does; `forward`: the new commit is known to be a descendant of the old one (G-251)."""
        if self.deletes:
            return Operation.DELETE
        if self.creates:
            return Operation.CREATE
        return Operation.UPDATE if forward else Operation.FORCE


@dataclass(frozen=True, slots=True)
class PushToInspect:
    """What shall be looked at: a repository's address and secret, the commands, and what its commits must be like.

    `size` is that of the pack in bytes, 0 for none.
    """

    host: str
    path: str
    secret: str | None
    commands: tuple[Command, ...]
    size: int
    authors: tuple[str, ...] = ()
    signed: bool = False


class FlagKind(StrEnum):
    """What a person should look at first."""

    LEAK = "leak"
    SECRET = "secret"  # noqa: S105 (a name)
    CI = "ci"
    HOOK = "hook"
    SUBMODULE = "submodule"
    SYMLINK = "symlink"
    EXECUTABLE = "executable"
    LARGE = "large"
    BINARY = "binary"
    AUTHOR = "author"
    UNSIGNED = "unsigned"
    NOT_INSPECTED = "not-inspected"


@dataclass(frozen=True, slots=True)
class Flag:
    """One finding: of a file, or of a commit (`subject` is its short id)."""

    kind: FlagKind
    subject: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CommitLine:
    """A commit that is new to the server."""

    id: str
    author: str
    email: str
    title: str


@dataclass(frozen=True, slots=True)
class FileLine:
    """A file that the push changes. `status` is git's letter; lines are None for binary files."""

    status: str
    path: str
    added: int | None
    removed: int | None


@dataclass(frozen=True, slots=True)
class RefLine:
    """Of a command: whether its new commit follows from the old one."""

    ref: str
    forward: bool


@dataclass(frozen=True, slots=True)
class PushReport:
    """All that was found. Lists are cut, their totals are not."""

    refs: tuple[RefLine, ...] = ()
    commits: tuple[CommitLine, ...] = ()
    commits_total: int = 0
    files: tuple[FileLine, ...] = ()
    files_total: int = 0
    added: int = 0
    removed: int = 0
    flags: tuple[Flag, ...] = ()
    flags_total: int = 0
    objects: int = 0
    content: str = ""
    """A digest of which objects it brings, however they are packed."""
