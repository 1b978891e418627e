"""The only caller of git on the host.

Git does much that a repository's files ask for: it runs hooks, filters, pagers, credential helpers, file
system monitors and remote helpers. On the host it runs for one command at a time, with all of these off,
with no configuration of the machine or of a user, and as the user who owns the repository: what the
repository's own configuration could still do, its owner could have done without Corral, and every file that
git makes belongs to that user. Git's own check that a repository belongs to who uses it stays on.

Arguments are literals of this package, validated object ids and refs, and host paths; text from a sandbox
is never one.
"""

import os
import pwd
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from corral.errors import (
    Conflict,
    CorralError,
    DiskFull,
    Forbidden,
    HostError,
    InvalidInput,
    NoCapacity,
    NotFound,
    Timeout,
)
from corral.host import process
from corral.work.names import clean_text

SHORT = 60.0
"""Seconds for a command that reads a little."""
MEMORY_LIMIT = 4 * 1024**3
"""Bytes of address space of a git that reads objects from a sandbox."""

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.pager": "cat",
    "core.askPass": "/bin/false",
    "core.sshCommand": "/bin/false",
    "core.quotePath": "false",
    # Larger files are streamed, never held in memory as a whole.
    "core.bigFileThreshold": "16m",
    "core.filesRefLockTimeout": "10000",
    "core.packedRefsTimeout": "10000",
    "credential.helper": "",
    "protocol.allow": "never",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "pack.windowMemory": "64m",
    "pack.threads": "2",
    "log.showSignature": "false",
    "core.alternateRefsCommand": "/bin/false",
}
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "SSH_ASKPASS": "/bin/false",
    "GIT_EDITOR": "/bin/false",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "LC_ALL": "C",
    "LANG": "C",
}


@dataclass(frozen=True, slots=True)
class Owner:
    """A user of the host, as whom git runs."""

    uid: int
    gid: int
    home: str
    known: bool

    @classmethod
    def of(cls, path: Path) -> "Owner":
        """The owner of `path`."""
        found = path.stat()
        try:
            user = pwd.getpwuid(found.st_uid)
        except KeyError:
            return cls(found.st_uid, found.st_gid, "/nonexistent", known=False)
        return cls(user.pw_uid, user.pw_gid, user.pw_dir, known=True)

    def prefix(self) -> tuple[str, ...]:
        """What to put before a command that this user shall run; nothing where we are that user, or cannot
        change.
        """
        if os.geteuid() != 0 or self.uid == 0:
            return ()
        groups = "--init-groups" if self.known else "--clear-groups"
        ids = (f"--reuid={self.uid}", f"--regid={self.gid}", groups)
        # Who takes other ids is no longer tied to who started it.
        return ("setpriv", *ids, "--no-new-privs", "--pdeathsig", "KILL", "--")


@dataclass(frozen=True, slots=True)
class HostGit:
    """Git in one directory of the host, as its owner.

    `extra` is added to the environment. With `limit_memory` a command that takes more than 4 GiB fails.
    """

    directory: Path
    owner: Owner
    extra: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[tuple[str, str], ...] = ()
    limit_memory: bool = False

    def with_environment(self, extra: Mapping[str, str], *, limit_memory: bool) -> "HostGit":
        """The same with more in the environment."""
        merged = {**self.extra, **extra}
        return HostGit(self.directory, self.owner, merged, self.settings, limit_memory)

    def with_settings(self, settings: tuple[tuple[str, str], ...]) -> "HostGit":
        """The same with more settings, which win over the repository's configuration."""
        return HostGit(self.directory, self.owner, self.extra, (*self.settings, *settings), self.limit_memory)

    async def run(
        self,
        *args: str,
        input: bytes | None = None,
        timeout: float = SHORT,  # noqa: ASYNC109 - a kill must follow
        output_limit: int = 4 << 20,
    ) -> process.Completed:
        """Run `git ARGS` to its end. Raises Timeout; other failures are the caller's to judge."""
        done = await process.run(
            self._argv(args),
            timeout=timeout,
            input=input,
            env=self._environment(),
            output_limit=output_limit,
        )
        if done.timed_out:
            raise Timeout(
                f"git {args[0]} took longer than {timeout:g} seconds", "try again when the host is less busy"
            )
        return done

    async def read(self, *args: str, input: bytes | None = None, timeout: float = SHORT) -> bytes:  # noqa: ASYNC109
        """What `git ARGS` prints. Raises the error that its failure means."""
        done = await self.run(*args, input=input, timeout=timeout)
        if not done.ok:
            raise failure(done, self.directory)
        return done.stdout

    async def records(self, *args: str, timeout: float = 300.0) -> AsyncIterator[bytes]:  # noqa: ASYNC109
        """What `git ARGS -z` prints, split at NULs, in bounded memory. Raises the error that its failure
        means.
        """
        partial = b""
        async with self.stream(*args, timeout=timeout) as git:
            git.close_stdin()
            async for data in git:
                *whole, partial = (partial + data).split(b"\0")
                for entry in whole:
                    yield entry
            done = await git.wait()
        if not done.ok:
            raise failure(done, self.directory)

    def stream(self, *args: str, timeout: float) -> AbstractAsyncContextManager[process.Stream]:
        """`git ARGS` with pipes at both ends, killed after `timeout` seconds."""
        return process.stream(self._argv(args), timeout=timeout, env=self._environment())

    def _argv(self, args: tuple[str, ...]) -> list[str]:
        settings = {**_SETTINGS, **dict(self.settings)}
        limits = ("prlimit", f"--as={MEMORY_LIMIT}", "--") if self.limit_memory else ()
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [
            *self.owner.prefix(),
            *limits,
            "git",
            "--no-pager",
            *options,
            "-C",
            str(self.directory),
            *args,
        ]

    def _environment(self) -> dict[str, str]:
        return {**_ENVIRONMENT, **self.extra}


def failure(done: process.Completed, directory: Path) -> CorralError:
    """The error that a failed git command means. Its text may come from a sandbox's objects, and is
    cleaned.
    """
    text = clean_text(done.stderr or done.stdout)
    lowered = text.lower()
    if "dubious ownership" in lowered:
        return Forbidden(
            f"{directory} and its .git do not belong to the same user",
            f"make them one user's: chown -R USER {directory}",
        )
    if "not a git repository: " in lowered:
        missing = text.rpartition("not a git repository: ")[2]
        return NotFound(
            f"{directory} points to the git directory {missing}, which does not exist",
            "restore the main repository, or run `git worktree repair` in it",
        )
    if "not a git repository" in lowered:
        return InvalidInput(
            f"{directory} is not a git repository", "give the path of one, or run `git init` there"
        )
    if "permission denied" in lowered:
        return Forbidden(
            f"git may not read or write {directory}: {text}", "check the owner and mode of its files"
        )
    if "no space left" in lowered or "quota exceeded" in lowered:
        return DiskFull(f"git found no space for {directory}", "free space on its disk, then try again")
    if "out of memory" in lowered or "cannot allocate" in lowered:
        return NoCapacity("git ran out of memory", "free memory, or pull a smaller branch")
    if "unable to create" in lowered or "cannot lock ref" in lowered:
        return Conflict(
            f"another git process is at work in {directory}: {text}", "try again when it has ended"
        )
    return HostError(f"git failed in {directory}: {text}", "run `git fsck` there")
