"""Where objects from a sandbox wait until they are checked.

Git's own mechanism for pushes: new objects go to a directory that only this operation knows, while the
repository's own are read from where they are. Nothing in the repository refers to the quarantine; leaving
it removes it.
"""

import asyncio
import errno
import os
import secrets as randomness
import shutil
from pathlib import Path
from typing import Self

from corral.errors import DiskFull, HostError
from corral.work.hostgit import HostGit
from corral.work.inspect import RepoState

_PREFIX = "pull-"


class Quarantine:
    """`async with` makes the directory below `scratch`, which must exist, and removes it at the end."""

    def __init__(self, scratch: Path, state: RepoState) -> None:
        self._state = state
        # The name cannot be guessed, so nobody can be there first.
        self.path = scratch / f"{_PREFIX}{randomness.token_hex(16)}"

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._make)
        except OSError as error:
            await asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True)
            raise HostError(
                f"cannot make {self.path}: {error.strerror}", "look at that directory's disk"
            ) from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True)

    def _make(self) -> None:
        objects = self.path / "objects" / "pack"
        objects.mkdir(parents=True, mode=0o700)
        if os.geteuid() == 0:
            for directory in (objects, objects.parent, self.path):
                os.chown(directory, self._state.owner.uid, self._state.owner.gid)
        self.path.chmod(0o700)

    @property
    def git(self) -> HostGit:
        """Git that writes objects here, reads those of the repository too, and cannot move its refs."""
        return self._state.git.with_environment(
            {
                "GIT_OBJECT_DIRECTORY": str(self.path / "objects"),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(self._state.objects),
                "GIT_QUARANTINE_PATH": str(self.path),
            },
            limit_memory=True,
        )

    def pack(self, digest: str) -> Path:
        """The pack that `index-pack` made."""
        return self.path / "objects" / "pack" / f"pack-{digest}.pack"


def _quoted(path: Path) -> str:
    """One entry of a list of directories, whatever is in its name."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def make_scratch(path: Path) -> Path:
    """A directory for quarantines; what a killed daemon left there is removed, so no pull may be under way.

    Others may pass through it, for git runs as a repository's owner, but not list it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"there is no space for {path}") from error
        raise HostError(f"cannot make {path}: {error.strerror}") from error
    for left in path.glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    return path
