"""Cloning by URL, and comparing, inside a sandbox."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.errors import Conflict, InvalidInput, UpstreamFailed
from corral.work.carry import carry
from corral.work.clone import clone_url
from corral.work.diff import diff

Git = Callable[..., str]
URL = "https://forge.example/o/project.git"


async def text(parts: Any) -> str:
    return b"".join([part async for part in parts]).decode("utf-8", "surrogateescape")


@pytest.fixture
def forge(shell: Any, repo: Path, home: Path) -> Path:
    """Makes the URL lead to `repo`: what the network would bring, without a network."""
    config = f'[url "{repo}"]\n\tinsteadOf = {URL}\n[protocol]\n\tallow = always\n'
    (home / ".gitconfig").write_text(config)
    run = shell.run

    async def permissive(argv: tuple[str, ...], **options: Any) -> Any:
        return await run(
            tuple(word.replace("protocol.allow=never", "protocol.file.allow=always") for word in argv),
            **options,
        )

    shell.run = permissive
    return repo


async def test_a_clone_by_url(forge: Path, git: Git, shell: Any, home: Path) -> None:
    cloned = await clone_url(URL, shell, name="otter", directory=f"{home}/project")
    head = git(forge, "rev-parse", "main")
    assert (cloned.branch, cloned.base, cloned.notes) == ("corral/otter", head, ())
    assert git(home / "project", "rev-parse", "HEAD", "refs/corral/base") == f"{head}\n{head}"
    assert git(home / "project", "status", "--porcelain") == ""


async def test_a_branch_of_the_remote(forge: Path, git: Git, shell: Any, home: Path) -> None:
    cloned = await clone_url(URL, shell, name="otter", branch="topic", directory=f"{home}/project")
    assert cloned.base == git(forge, "rev-parse", "topic")
    assert git(home / "project", "symbolic-ref", "--short", "HEAD") == "topic"


async def test_what_is_missing_in_a_clone_is_noted(forge: Path, git: Git, shell: Any, home: Path) -> None:
    (forge / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = https://other.example/x\n')
    (forge / ".gitattributes").write_text("*.bin filter=lfs\n")
    git(forge, "add", "-A")
    git(forge, "commit", "-q", "-m", "more")
    cloned = await clone_url(URL, shell, name="otter", directory=f"{home}/project")
    assert [note.split()[0] for note in cloned.notes] == ["submodules", "files"]


async def test_an_empty_remote_leaves_nothing(
    forge: Path, git: Git, shell: Any, home: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "--bare", "empty.git")
    (home / ".gitconfig").write_text(f'[url "{tmp_path}/empty.git"]\n\tinsteadOf = {URL}\n')
    with pytest.raises(UpstreamFailed, match="no commits"):
        await clone_url(URL, shell, name="otter", directory=f"{home}/project")
    assert sorted(entry.name for entry in os.scandir(home)) == [".gitconfig"]


async def test_a_failed_clone_tells_why_and_leaves_nothing(shell: Any, home: Path) -> None:
    (home / ".gitconfig").write_text(f'[url "{home}/gone"]\n\tinsteadOf = {URL}\n')
    with pytest.raises(UpstreamFailed, match=r"cannot clone https://forge.example/o/project.git: fatal"):
        await clone_url(URL, shell, name="otter", directory=f"{home}/project")
    assert sorted(entry.name for entry in os.scandir(home)) == [".gitconfig"]


async def test_no_other_transport_is_used(repo: Path, shell: Any, home: Path) -> None:
    (home / ".gitconfig").write_text(f'[url "{repo}"]\n\tinsteadOf = {URL}\n')
    with pytest.raises(UpstreamFailed, match="transport 'file' not allowed"):
        await clone_url(URL, shell, name="otter", directory=f"{home}/project")


async def test_bad_urls_reach_no_sandbox(shell: Any) -> None:
    with pytest.raises(InvalidInput):
        await clone_url("ext::sh -c id", shell, name="otter")
    assert shell.commands == []


async def test_a_clone_into_a_directory_in_use(shell: Any, home: Path) -> None:
    (home / "file").write_text("x")
    with pytest.raises(Conflict):
        await clone_url(URL, shell, name="otter", directory=str(home))


async def test_a_diff_shows_all_that_is_not_ignored(repo: Path, git: Git, shell: Any, home: Path) -> None:
    clone = home / "project"
    await carry(str(repo), shell, name="otter", directory=str(clone))
    (clone / "committed").write_text("c\n")
    git(clone, "add", "committed")
    git(clone, "commit", "-q", "-m", "work")
    (clone / "staged").write_text("s\n")
    git(clone, "add", "staged")
    (clone / "a.txt").write_text("changed\n")
    (clone / "untracked\nname").write_text("u\n")
    (clone / "binary").write_bytes(bytes(range(256)))
    (clone / ".gitignore").write_text("ignored\n")
    (clone / "ignored").write_text("i\n")
    (clone / "b.txt").unlink()
    os.mkfifo(clone / "fifo")
    before = git(clone, "status", "--porcelain")
    patch = await text(diff(shell, str(clone)))
    for line in (
        "+c",
        "+s",
        "+changed",
        "+u",
        "+ignored",
        "-two",
        '+++ "b/untracked\\nname"',
        "GIT binary patch",
    ):
        assert f"\n{line}\n" in patch
    assert "+i\n" not in patch
    assert git(clone, "status", "--porcelain") == before
    git(repo, "apply", "--check", data=patch.encode("utf-8", "surrogateescape") + b"\n")


async def test_a_diff_from_a_given_commit(repo: Path, git: Git, shell: Any, home: Path) -> None:
    await carry(str(repo), shell, name="otter", directory=f"{home}/project")
    patch = await text(diff(shell, f"{home}/project", git(repo, "rev-parse", "topic")))
    assert "+two" in patch
    with pytest.raises(InvalidInput):
        await text(diff(shell, f"{home}/project", "--output=/etc/x"))


async def test_a_diff_of_what_is_not_there(shell: Any, home: Path) -> None:
    with pytest.raises(UpstreamFailed, match="no directory"):
        await text(diff(shell, f"{home}/absent"))


async def test_a_diff_ignores_external_programs(repo: Path, git: Git, shell: Any, home: Path) -> None:
    clone = home / "project"
    await carry(str(repo), shell, name="otter", directory=str(clone))
    git(clone, "config", "diff.external", "false")
    git(clone, "config", "diff.x.textconv", "false")
    (clone / ".gitattributes").write_text("* diff=x\n")
    (clone / "a.txt").write_text("changed\n")
    assert "+changed" in await text(diff(shell, str(clone)))


def test_git_is_recent_enough() -> None:
    version = subprocess.run(["git", "version"], capture_output=True, check=True, text=True).stdout.split()[2]
    assert tuple(map(int, version.split(".")[:2])) >= (2, 36)
