"""Carrying a repository into a sandbox."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from corral.errors import Conflict, HostError, InvalidInput, UpstreamFailed
from corral.work.carry import carry
from corral.work.diff import diff
from corral.work.ports import GuestShell

Git = Callable[..., str]


@pytest.fixture
def place(home: Path) -> str:
    return f"{home}/work/project"


def names(directory: str | Path) -> list[bytes]:
    found = (os.fsencode(entry.name) for entry in Path(directory).iterdir())
    return sorted(name for name in found if name != b".git")


def write(path: Path) -> None:
    path.write_text("x")


def remove(path: Path) -> None:
    path.unlink()


def link(target: str, at: Path) -> None:
    at.symlink_to(target)


def target(link: str) -> str:
    return str(Path(link).readlink())


def left_over(place: str) -> list[str]:
    """What is beside the clone."""
    parent = Path(place).parent
    return (
        [entry.name for entry in parent.iterdir() if entry.name != Path(place).name]
        if parent.exists()
        else []
    )


async def test_the_shell_is_a_guest_shell(shell: Any) -> None:
    port: GuestShell = shell
    assert (await port.run(("true",)))[0] == 0


async def test_a_clone_on_its_own_branch(repo: Path, git: Git, shell: Any, place: str) -> None:
    carried = await carry(str(repo), shell, name="otter", directory=place)
    head = git(repo, "rev-parse", "HEAD")
    assert (carried.directory, carried.branch, carried.base, carried.notes) == (
        place,
        "corral/otter",
        head,
        (),
    )
    clone = Path(place)
    assert names(clone) == [b"a.txt", b"b.txt"]
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "symbolic-ref", "HEAD") == "refs/heads/corral/otter"
    assert git(clone, "rev-parse", "refs/corral/base") == head
    assert git(clone, "rev-parse", "origin/topic", "v1") == git(repo, "rev-parse", "topic", "v1")
    assert git(clone, "fsck", "--full", "--strict") == ""
    assert left_over(place) == []


async def test_the_owners_name_and_origin_go_with_it_and_no_path_of_the_host(
    repo: Path, git: Git, shell: Any, place: str
) -> None:
    git(repo, "config", "user.email", "owner@example.org")
    git(repo, "remote", "add", "origin", "git@forge.example:o/r.git")
    await carry(str(repo), shell, name="otter", directory=place)
    config = (Path(place) / ".git" / "config").read_text()
    assert "name = Repo Owner" in config
    assert "email = owner@example.org" in config
    assert "url = https://forge.example/o/r.git" in config
    assert str(repo) not in config


async def test_an_unusable_identity_is_replaced(repo: Path, git: Git, shell: Any, place: str) -> None:
    git(repo, "config", "user.name", "x\n[core]\n\tpager = evil")
    git(repo, "config", "user.email", "<>")
    await carry(str(repo), shell, name="otter", directory=place)
    config = (Path(place) / ".git" / "config").read_text()
    assert "name = Corral otter" in config
    assert "email = otter@corral.invalid" in config


async def test_a_named_branch(repo: Path, git: Git, shell: Any, home: Path) -> None:
    there = await carry(str(repo), shell, name="otter", branch="topic", directory=f"{home}/1")
    assert there.base == git(repo, "rev-parse", "topic")
    made = await carry(str(repo), shell, name="otter", branch="brand/new", directory=f"{home}/2")
    assert made.base == git(repo, "rev-parse", "main")
    assert git(home / "2", "symbolic-ref", "--short", "HEAD") == "brand/new"


@pytest.mark.parametrize("branch", ["--upload-pack=x", "a..b", ""])
async def test_bad_branches_change_nothing(repo: Path, shell: Any, place: str, branch: str) -> None:
    with pytest.raises(InvalidInput):
        await carry(str(repo), shell, name="otter", branch=branch, directory=place)
    assert shell.commands == []


async def test_detached_worktree_and_bare(
    repo: Path, git: Git, shell: Any, home: Path, tmp_path: Path
) -> None:
    git(repo, "worktree", "add", "-q", "--detach", f"{tmp_path}/tree", "topic")
    carried = await carry(f"{tmp_path}/tree", shell, name="otter", directory=f"{home}/tree")
    assert carried.base == git(repo, "rev-parse", "topic")
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    carried = await carry(f"{tmp_path}/bare.git", shell, name="otter", directory=f"{home}/bare")
    assert names(home / "bare") == [b"a.txt", b"b.txt"]


async def test_an_unreferenced_detached_commit(repo: Path, git: Git, shell: Any, place: str) -> None:
    git(repo, "checkout", "-q", "--detach")
    git(repo, "commit", "-q", "--allow-empty", "-m", "on no branch")
    carried = await carry(str(repo), shell, name="otter", directory=place)
    assert carried.base == git(repo, "rev-parse", "HEAD")


async def test_a_shallow_clone(repo: Path, git: Git, shell: Any, place: str, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", "shallow")
    carried = await carry(f"{tmp_path}/shallow", shell, name="otter", directory=place)
    assert git(Path(place), "rev-list", "--count", "HEAD") == "1"
    assert any("shallow" in note for note in carried.notes)


async def test_sha256(git: Git, shell: Any, place: str, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", "modern")
    git(tmp_path / "modern", "commit", "-q", "--allow-empty", "-m", "x")
    carried = await carry(f"{tmp_path}/modern", shell, name="otter", directory=place)
    assert carried.base == git(Path(place), "rev-parse", "HEAD")


async def test_odd_names_and_links_arrive_as_they_are(repo: Path, git: Git, shell: Any, place: str) -> None:
    odd = [b"line\nbreak", b"latin\xe9", b" lead", b"tab\there", "ünï".encode(), b"quote\"'"]
    for name in odd:
        write(repo / os.fsdecode(name))
    link("/etc/passwd", repo / "outside")
    link("a.txt", repo / "inside")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "odd")
    await carry(str(repo), shell, name="otter", directory=place)
    assert set(odd) <= set(names(place))
    assert target(f"{place}/outside") == "/etc/passwd"
    assert git(Path(place), "status", "--porcelain") == ""


async def test_line_ends_do_not_show_as_changes(repo: Path, git: Git, shell: Any, place: str) -> None:
    git(repo, "config", "core.autocrlf", "true")
    (repo / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "crlf")
    await carry(str(repo), shell, name="otter", directory=place)
    assert git(Path(place), "status", "--porcelain") == ""
    assert b"".join([part async for part in diff(shell, place)]) == b""


async def test_notes_say_what_was_not_carried(
    repo: Path, git: Git, shell: Any, place: str, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "-q", str(repo), "library")
    git(repo, "submodule", "--quiet", "add", f"{tmp_path}/library", "vendor")
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "more")
    (repo / "a.txt").write_text("changed")
    (repo / "new").write_text("new")
    notes = " ".join((await carry(str(repo), shell, name="otter", directory=place)).notes)
    for words in ("1 changed and 1 untracked", "1 submodules are empty in the sandbox: vendor", "Git LFS"):
        assert words in notes
    assert (Path(place) / "a.txt").read_text() == "one\n"


async def test_a_directory_in_use_is_left_alone(repo: Path, shell: Any, home: Path) -> None:
    (home / "full").mkdir()
    (home / "full" / "file").write_text("mine")
    with pytest.raises(Conflict, match="in use"):
        await carry(str(repo), shell, name="otter", directory=f"{home}/full")
    link("full", home / "link")
    with pytest.raises(Conflict, match="in use"):
        await carry(str(repo), shell, name="otter", directory=f"{home}/link")
    assert names(home) == [b"full", b"link"]
    (home / "empty").mkdir()
    await carry(str(repo), shell, name="otter", directory=f"{home}/empty")


async def test_a_damaged_repository_leaves_nothing(repo: Path, git: Git, shell: Any, place: str) -> None:
    blob = git(repo, "rev-parse", "HEAD:a.txt")
    remove(repo / ".git" / "objects" / blob[:2] / blob[2:])
    with pytest.raises(HostError, match=r"git failed in .*project"):
        await carry(str(repo), shell, name="otter", directory=place)
    assert names(Path(place).parent) == []


async def test_a_guest_that_fails_leaves_nothing(repo: Path, shell: Any, place: str) -> None:
    run = shell.run

    async def no_checkout(argv: tuple[str, ...], **options: Any) -> tuple[int, bytes, bytes]:
        if "checkout" in argv[2]:
            return 1, b"", b"fatal: \x1b[31mdisk is full\n"
        result: tuple[int, bytes, bytes] = await run(argv, **options)
        return result

    shell.run = no_checkout
    with pytest.raises(UpstreamFailed, match=r"fatal: \[31mdisk is full"):
        await carry(str(repo), shell, name="otter", directory=place)
    assert names(Path(place).parent) == []


async def test_a_guest_that_stops_reading_does_not_hang(repo: Path, git: Git, shell: Any, place: str) -> None:
    (repo / "big").write_bytes(os.urandom(4 << 20))
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "big")
    run = shell.run

    async def no_reading(
        argv: tuple[str, ...], stdin: AsyncIterator[bytes] | None = None, **options: Any
    ) -> Any:
        if stdin is not None:
            return 1, b"", b"killed"
        return await run(argv, **options)

    shell.run = no_reading
    with pytest.raises(UpstreamFailed, match="killed"):
        await carry(str(repo), shell, name="otter", directory=place)


async def test_a_hundred_thousand_files(git: Git, shell: Any, place: str, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "large.git")
    stream = [b"commit refs/heads/main\ncommitter A <a@b> 1 +0000\ndata 1\nx\n"]
    stream += [b"M 644 inline d%d/f%d\ndata 1\n%d\n" % (i % 500, i, i % 10) for i in range(100_000)]
    git(tmp_path / "large.git", "fast-import", "--quiet", data=b"".join(stream))
    carried = await carry(f"{tmp_path}/large.git", shell, name="otter", directory=place)
    assert git(Path(place), "status", "--porcelain") == ""
    assert len(names(place)) == 500
    assert carried.base == git(tmp_path / "large.git", "rev-parse", "main")
