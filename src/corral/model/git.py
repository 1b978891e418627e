"""What a sandbox may do with git repositories."""

from dataclasses import dataclass
from enum import StrEnum

MAX_PACK = 2 * 1024**3
"""Bytes of the largest push, unless the operator says otherwise."""


class Access(StrEnum):
    """How far a repository is open."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class RepoGrant:
    """One repository that a sandbox may use.

    `host` is a name, with `:port` where that is not 443. `path` has no `.git` at its end, and is in lower case where
    `fold` says that the forge takes upper and lower case for the same. `secret` names the credential that the gateway
    adds; None: what everybody may read.
    """

    host: str
    path: str
    access: Access = Access.READ
    secret: str | None = None
    fold: bool = False

    @property
    def name(self) -> str:
        """As people write it: `github.com/owner/name`."""
        return f"{self.host}/{self.path}"


class Operation(StrEnum):
    """What a push does to a ref."""

    CREATE = "create"
    UPDATE = "update"
    FORCE = "force"
    DELETE = "delete"


class Verdict(StrEnum):
    """What a rule says, mildest first."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class PushRule:
    """What holds for pushes to refs that match `pattern` (`*` matches anything, `/` too), for these operations."""

    verdict: Verdict
    pattern: str
    operations: tuple[Operation, ...] = (Operation.CREATE, Operation.UPDATE)


@dataclass(frozen=True, slots=True)
class PushPolicy:
    """Rules of pushes, the first that matches decides. `options` are the push options that are passed on; `authors`
    patterns of e-mail addresses that commits may bear (empty: any); `max_pack` in bytes; `signed`: each commit must
    carry a signature; `wait` seconds for a person's answer.
    """

    rules: tuple[PushRule, ...] = ()
    options: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    max_pack: int = MAX_PACK
    signed: bool = False
    wait: int = 600
