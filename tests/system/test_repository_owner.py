"""The daemon is root, the repository is a user's: what git makes there is that user's, and git runs as that user."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.errors import CorralError, Forbidden, UpstreamFailed
from corral.host import process
from corral.work.carry import carry
from corral.work.inspect import inspect_repo
from corral.work.pull import pull
from corral.work.quarantine import make_scratch

pytestmark = pytest.mark.root

OWNER = 54_321


class LocalShell:
    """`GuestShell` whose guest is this machine."""

    async def run(self, argv: tuple[str, ...], **options: Any) -> tuple[int, bytes, bytes]:
        stdin: AsyncIterator[bytes] | None = options.get("stdin")
        data = None if stdin is None else b"".join([part async for part in stdin])
        done = await process.run(argv, timeout=60, input=data, env={"HOME": "/nonexistent"})
        return done.exit_code, done.stdout, done.stderr

    async def stream_out(self, argv: tuple[str, ...], **options: Any) -> AsyncIterator[bytes]:
        done = await process.run(argv, timeout=60, output_limit=1 << 24)
        if not done.ok:
            raise UpstreamFailed(done.last_line)
        yield done.stdout


def git(directory: Path, *args: str) -> str:
    options = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "safe.directory=*")
    done = subprocess.run(
        ["git", *options, "-C", directory, *args], capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can pass through."""
    made = Path(tempfile.mkdtemp(prefix="corral-owner-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def give_away(directory: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        os.lchown(path, OWNER, OWNER)


@pytest.fixture
def repo(place: Path) -> Path:
    made = place / "project"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    (made / "a").write_text("1")
    git(made, "add", "-A")
    git(made, "commit", "-q", "-m", "first")
    give_away(made)
    return made


def strangers(directory: Path) -> list[str]:
    """What does not belong to the owner."""
    return [str(path) for path in directory.rglob("*") if path.lstat().st_uid != OWNER]


async def test_what_a_pull_makes_belongs_to_the_owner(repo: Path, place: Path) -> None:
    shell = LocalShell()
    carried = await carry(str(repo), shell, name="otter", directory=f"{place}/guest")
    clone = Path(carried.directory)
    (clone / "b").write_text("2")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "second")
    scratch = make_scratch(place / "scratch")
    pulled = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert git(repo, "rev-parse", "refs/corral/otter") == pulled.commit == git(clone, "rev-parse", "HEAD")
    assert strangers(repo) == []
    assert not list(scratch.iterdir())


async def test_what_the_repository_makes_git_run_is_not_root(repo: Path, place: Path) -> None:
    """A pull as root would run this as root, were hooks and the owner's rights not taken care of."""
    record = place / "record"
    record.mkdir(mode=0o777)
    record.chmod(0o777)
    git(repo, "config", "core.gitProxy", f"sh -c 'id -u > {record}/proxy'")
    hook = repo / ".git" / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nid -u > {record}/hook\n")
    hook.chmod(0o755)
    give_away(repo)
    state = await inspect_repo(str(repo))
    assert (state.owner.uid, state.owner.gid) == (OWNER, OWNER)
    seen = await state.git.run("update-ref", "refs/corral/x", state.head)
    assert seen.ok
    assert not list(record.iterdir())
    assert strangers(repo) == []


async def test_a_git_directory_of_somebody_else_is_refused(repo: Path) -> None:
    os.chown(repo / ".git", 0, 0)
    with pytest.raises(Forbidden, match="do not belong to the same user"):
        await inspect_repo(str(repo))


async def test_root_reads_nothing_that_the_owner_may_not(repo: Path) -> None:
    os.chown(repo / ".git" / "objects", 0, 0)
    (repo / ".git" / "objects").chmod(0o700)
    with pytest.raises(CorralError):
        await inspect_repo(str(repo))
