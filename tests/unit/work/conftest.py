"""A sandbox's shell without a sandbox: real commands, in a directory that stands for its disk."""

import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from corral.errors import Timeout, UpstreamFailed
from corral.host import process

IDENTITY = ("-c", "user.name=Host User", "-c", "user.email=host@example.org")


class LocalShell:
    """`GuestShell` whose guest is this machine. `commands` keeps what was run."""

    def __init__(self, home: Path) -> None:
        self._env = {
            "HOME": str(home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(home.parent),
        }
        self.commands: list[tuple[str, ...]] = []

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: AsyncIterator[bytes] | None = None,
        timeout: float = 600.0,  # noqa: ASYNC109
    ) -> tuple[int, bytes, bytes]:
        self.commands.append(argv)
        async with process.stream(argv, timeout=timeout, env={**self._env, **(env or {})}, cwd=cwd) as child:
            if stdin is not None:
                try:
                    async for data in stdin:
                        await child.write(data)
                except BrokenPipeError:
                    pass
            child.close_stdin()
            out = b"".join([data async for data in child])
            done = await child.wait()
        if done.timed_out:
            raise Timeout("too slow")
        return done.exit_code, out, done.stderr

    async def stream_out(
        self,
        argv: tuple[str, ...],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 600.0,  # noqa: ASYNC109
    ) -> AsyncIterator[bytes]:
        self.commands.append(argv)
        async with process.stream(argv, timeout=timeout, env={**self._env, **(env or {})}, cwd=cwd) as child:
            child.close_stdin()
            async for data in child:
                yield data
            done = await child.wait()
        if not done.ok:
            raise UpstreamFailed(f"{argv[0]} failed in the sandbox: {done.last_line}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The guest's home directory."""
    made = tmp_path / "guest"
    made.mkdir()
    return made


@pytest.fixture
def shell(home: Path) -> LocalShell:
    return LocalShell(home)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    made.mkdir()
    return made


@pytest.fixture
def git() -> Callable[..., str]:
    """Run git in a directory, as a user would, and give what it prints."""

    def run(directory: Path, *args: str, data: bytes | None = None) -> str:
        done = subprocess.run(
            ["git", *IDENTITY, "-c", "protocol.file.allow=always", "-C", str(directory), *args],
            input=data,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    return run


@pytest.fixture
def repo(tmp_path: Path, git: Callable[..., str]) -> Path:
    """A repository with two commits on `main`, a branch `topic` and a tag `v1`."""
    made = tmp_path / "project"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    git(made, "config", "user.name", "Repo Owner")
    (made / "a.txt").write_text("one\n")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "first")
    git(made, "tag", "-a", "v1", "-m", "first release")
    git(made, "branch", "topic")
    (made / "b.txt").write_text("two\n")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "second")
    return made
