"""Fetching a sandbox's commits: the sandbox may send whatever it likes."""

import asyncio
import hashlib
import os
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from corral.errors import Conflict, CorralError, Forbidden, InvalidInput, TooLarge, UpstreamFailed
from corral.work.carry import carry
from corral.work.pull import pull
from corral.work.quarantine import Quarantine, make_scratch
from corral.work.review import Flag

Git = Callable[..., str]
REF = "refs/corral/otter"


@pytest.fixture
async def clone(repo: Path, shell: Any, home: Path) -> Path:
    """The repository, carried into the sandbox."""
    await carry(str(repo), shell, name="otter", directory=f"{home}/project")
    return home / "project"


def commit(git: Git, clone: Path, files: dict[str, str], message: str = "work") -> str:
    for name, content in files.items():
        path = clone / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", message)
    return git(clone, "rev-parse", "HEAD")


def snapshot(repo: Path) -> dict[str, bytes]:
    """Everything in a repository that a pull must not touch."""
    kept = {}
    for path in repo.rglob("*"):
        inside = path.relative_to(repo).as_posix()
        if path.is_file() and not inside.startswith(
            (".git/objects/", ".git/refs/corral", ".git/logs/refs/corral")
        ):
            kept[inside] = path.read_bytes()
    return kept


def left(scratch: Path) -> list[str]:
    return [entry.name for entry in scratch.iterdir()]


# what is pulled


async def test_commits_arrive_and_nothing_else_changes(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    base = git(repo, "rev-parse", "HEAD")
    commit(git, clone, {"c.txt": "1\n"})
    head = commit(git, clone, {"c.txt": "2\n", "d/e": "3\n"})
    (clone / "loose end").write_text("x")
    before = snapshot(repo)
    pulled = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert (pulled.repository, pulled.ref, pulled.branch) == (str(repo), REF, "corral/otter")
    assert (pulled.commit, pulled.base, pulled.previous) == (head, base, None)
    assert (pulled.commits, pulled.files, pulled.uncommitted) == (2, 2, 1)
    assert pulled.findings == ()
    assert git(repo, "rev-parse", REF) == head
    assert git(repo, "show", f"{REF}:c.txt") == "2"
    assert git(repo, "fsck", "--full", "--strict") == ""
    assert snapshot(repo) == before
    assert left(scratch) == []


async def test_pulling_again_moves_the_ref(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    first = commit(git, clone, {"c": "1"})
    await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    again = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert (again.commit, again.previous) == (first, first)
    git(clone, "commit", "-q", "--amend", "-m", "amended")
    amended = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert (amended.previous, amended.commits) == (first, 1)
    assert git(repo, "reflog", "show", "--format=%gs", REF).split("\n")[0] == "corral pull otter"


async def test_nothing_new(repo: Path, clone: Path, git: Git, shell: Any, scratch: Path) -> None:
    pulled = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert (pulled.commits, pulled.files) == (0, 0)
    assert git(repo, "rev-parse", REF) == git(repo, "rev-parse", "main")


async def test_the_branch_that_is_checked_out_now(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    git(clone, "checkout", "-q", "-b", "renamed")
    head = commit(git, clone, {"c": "1"})
    pulled = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert (pulled.branch, pulled.commit) == ("renamed", head)
    git(clone, "checkout", "-q", "--detach", "HEAD~1")
    pulled = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert pulled.branch is None
    pulled = await pull(shell, str(clone), str(repo), name="otter", branch="renamed", scratch=scratch)
    assert pulled.commit == head


async def test_into_another_clone_that_lacks_the_base(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "fresh")
    git(tmp_path / "fresh", "commit", "-q", "--allow-empty", "-m", "unrelated")
    head = commit(git, clone, {"c": "1"})
    pulled = await pull(shell, str(clone), f"{tmp_path}/fresh", name="otter", scratch=scratch)
    assert (pulled.base, pulled.commits, pulled.files) == (None, 3, 3)
    assert git(tmp_path / "fresh", "rev-parse", REF) == head


async def test_into_bare_worktree_and_shallow_repositories(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path, tmp_path: Path
) -> None:
    head = commit(git, clone, {"c": "1"})
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    git(repo, "worktree", "add", "-q", f"{tmp_path}/tree", "topic")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", "shallow")
    for target in ("bare.git", "tree", "shallow"):
        pulled = await pull(shell, str(clone), f"{tmp_path}/{target}", name="otter", scratch=scratch)
        assert pulled.commits == 1
        assert git(tmp_path / target, "rev-parse", REF) == head


async def test_out_of_a_shallow_sandbox(
    repo: Path, git: Git, shell: Any, scratch: Path, tmp_path: Path, home: Path
) -> None:
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", "shallow")
    await carry(f"{tmp_path}/shallow", shell, name="otter", directory=f"{home}/project")
    head = commit(git, home / "project", {"c": "1"})
    pulled = await pull(shell, f"{home}/project", f"{tmp_path}/shallow", name="otter", scratch=scratch)
    assert (pulled.commit, pulled.commits) == (head, 1)


async def test_object_formats_must_agree(
    clone: Path, git: Git, shell: Any, scratch: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", "modern")
    git(tmp_path / "modern", "commit", "-q", "--allow-empty", "-m", "x")
    with pytest.raises(Conflict, match="sha256"):
        await pull(shell, str(clone), f"{tmp_path}/modern", name="otter", scratch=scratch)


async def test_a_repository_with_an_awkward_path(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    odd = repo.with_name("odd:\"name\\ '#")
    rename(repo, odd)
    head = commit(git, clone, {"c": "1"})
    assert (await pull(shell, str(clone), str(odd), name="otter", scratch=scratch)).commit == head


def rename(old: Path, new: Path) -> None:
    old.rename(new)


def link(target: str, at: Path) -> None:
    at.symlink_to(target)


async def test_what_runs_on_the_host_is_listed(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    files = (
        ".vscode/tasks.json",
        "sub/Makefile",
        ".envrc",
        ".claude/settings.json",
        ".husky/pre-commit",
        "src/plain.py",
    )
    link("/etc/passwd", clone / "link")
    (clone / "run.sh").write_text("#!/bin/sh\n")
    (clone / "run.sh").chmod(0o755)
    (clone / ".gitmodules").write_text('[submodule "m"]\n\tpath = m\n\turl = https://thief.example/m\n')
    git(clone, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},m")
    (clone / "m").mkdir()
    commit(git, clone, dict.fromkeys(files, "x"))
    commit(git, clone, {"bad\x1bname/Makefile": "x"})
    pulled = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    found = {finding.path: finding.flags for finding in pulled.findings}
    assert found == {
        **dict.fromkeys((*files[:-1], "bad\\x1bname/Makefile"), (Flag.RUNS_ON_HOST,)),
        "link": (Flag.SYMLINK,),
        "run.sh": (Flag.EXECUTABLE,),
        ".gitmodules": (Flag.CHANGES_GIT,),
        "m": (Flag.SUBMODULE,),
    }
    assert pulled.findings_total == len(found)


# what is refused


async def refused(
    kind: type[CorralError],
    shell: Any,
    clone: Path,
    repo: Path,
    scratch: Path,
    match: str | None = None,
    **options: Any,
) -> None:
    """Pulling raises `kind`, and the repository and the scratch directory are as they were."""
    before = snapshot(repo)
    packs = sorted(path.name for path in (repo / ".git" / "objects" / "pack").iterdir())
    with pytest.raises(kind, match=match):
        await pull(shell, str(clone), str(repo), name="otter", scratch=scratch, **options)
    assert snapshot(repo) == before
    assert not (repo / ".git" / "refs" / "corral").exists()
    assert sorted(path.name for path in (repo / ".git" / "objects" / "pack").iterdir()) == packs
    assert left(scratch) == []


@pytest.mark.parametrize("name", ["../../heads/main", "a/b", "", "..", "A"])
async def test_bad_sandbox_names(repo: Path, shell: Any, scratch: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        await pull(shell, "/x", str(repo), name=name, scratch=scratch)
    assert shell.commands == []


@pytest.mark.parametrize("branch", ["--all", "../x", "a..b", "a\nb"])
async def test_bad_branches(repo: Path, shell: Any, scratch: Path, branch: str) -> None:
    with pytest.raises(InvalidInput):
        await pull(shell, "/x", str(repo), name="otter", branch=branch, scratch=scratch)
    assert shell.commands == []


async def test_missing_branch_and_directory(repo: Path, clone: Path, shell: Any, scratch: Path) -> None:
    await refused(Conflict, shell, clone, repo, scratch, "branch", branch="absent")
    await refused(Conflict, shell, clone / "absent", repo, scratch, "no directory")


def evil_tree(git: Git, clone: Path, *entries: tuple[str, str]) -> str:
    """A commit whose tree has entries that git itself would never make; the branch points to it."""
    blob = git(clone, "hash-object", "-w", "--stdin", data=b"#!/bin/sh\nid\n")
    raw = b"".join(
        f"{mode} {name}".encode()
        + b"\0"
        + bytes.fromhex(blob if mode != "40000" else git(clone, "rev-parse", "HEAD^{tree}"))
        for mode, name in entries
    )
    tree = git(clone, "hash-object", "-t", "tree", "--literally", "-w", "--stdin", data=raw)
    made = git(clone, "commit-tree", tree, "-p", "HEAD", "-m", "evil")
    git(clone, "update-ref", "refs/heads/corral/otter", made)
    return made


@pytest.mark.parametrize(
    "entries",
    [
        [("40000", ".git")],
        [("40000", ".GIT")],
        [("40000", "git~1")],
        [("40000", ".g\u200cit")],
        [("40000", "..")],
        [("40000", ".")],
        [("100644", "a/b")],
        [("120000", ".gitmodules")],
        [("100644", "same"), ("100644", "same")],
        [("100644", "b"), ("100644", "a")],
    ],
)
async def test_trees_that_escape_are_refused(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path, entries: list[tuple[str, str]]
) -> None:
    evil_tree(git, clone, *entries)
    await refused(Forbidden, shell, clone, repo, scratch, "not a sound set of git objects")


async def test_a_submodule_that_would_run_a_command_is_refused(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    commit(
        git,
        clone,
        {".gitmodules": '[submodule "x"]\n\tpath = -x\n\turl = --upload-pack=id\n\tupdate = !id\n'},
    )
    await refused(Forbidden, shell, clone, repo, scratch, "gitmodules")


def sending(shell: Any, data: Callable[[], AsyncIterator[bytes]]) -> None:
    """The sandbox sends `data` in place of its pack."""
    shell.stream_out = lambda *args, **options: data()


def pack(*objects: tuple[int, bytes]) -> bytes:
    """A pack of whole objects: (type number, content)."""
    made = b"PACK" + struct.pack(">II", 2, len(objects))
    for kind, content in objects:
        size = len(content)
        head, size = (kind << 4) | (size & 15), size >> 4
        while size:
            made += bytes([head | 0x80])
            head, size = size & 0x7F, size >> 7
        made += bytes([head]) + zlib.compress(content)
    return made + hashlib.sha1(made).digest()


@pytest.mark.parametrize(
    "data",
    [b"", b"garbage", b"PACK" + b"\xff" * 50, pack((3, b"x"))[:-5], b"# v2 git bundle\n\n", pack((0, b""))],
)
async def test_garbage_is_refused(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path, data: bytes
) -> None:
    commit(git, clone, {"c": "1"})

    async def garbage() -> AsyncIterator[bytes]:
        yield data

    sending(shell, garbage)
    await refused(Forbidden, shell, clone, repo, scratch)


async def test_a_sound_pack_without_the_commit_is_refused(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    commit(git, clone, {"c": "1"})

    async def something_else() -> AsyncIterator[bytes]:
        yield pack((3, b"not what was named"))

    sending(shell, something_else)
    await refused(Forbidden, shell, clone, repo, scratch, "did not send the commit")


async def test_a_commit_without_its_files_is_refused(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    head = commit(git, clone, {"c": "1"})
    body = git(clone, "cat-file", "commit", head).encode() + b"\n"

    async def half() -> AsyncIterator[bytes]:
        yield pack((1, body))

    sending(shell, half)
    await refused(Forbidden, shell, clone, repo, scratch)


async def test_too_much_is_refused_while_it_comes(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    commit(git, clone, {"c": "1"})
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield (
                os.urandom(65536)
                if sent > 1
                else b"PACK" + struct.pack(">II", 2, 1) + b"\xbf\xff\xff\xff\x7f\x78\x01"
            )

    sending(shell, endless)
    with pytest.raises(CorralError) as caught:
        await pull(shell, str(clone), str(repo), name="otter", scratch=scratch, max_bytes=1 << 20)
    assert isinstance(caught.value, TooLarge | Forbidden)
    assert sent < 100
    assert left(scratch) == []


async def test_too_large_a_pack(repo: Path, clone: Path, git: Git, shell: Any, scratch: Path) -> None:
    """G-277: and what is taken in meanwhile lies at a place that nobody can guess."""
    names = {Quarantine(scratch, cast(Any, None)).path.name for _ in range(100)}
    assert (len(names), min(map(len, names)) > 32) == (100, True)
    (clone / "big").write_bytes(os.urandom(1 << 20))
    commit(git, clone, {"c": "1"})
    await refused(TooLarge, shell, clone, repo, scratch, max_bytes=100_000)


async def test_a_sandbox_that_dies_while_it_sends(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    commit(git, clone, {"c": "1"})

    async def dying() -> AsyncIterator[bytes]:
        yield b"PACK"
        raise UpstreamFailed("the sandbox ended")

    sending(shell, dying)
    await refused(UpstreamFailed, shell, clone, repo, scratch, "ended")


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"\n\n\n\n", b"refs/heads/x\n--upload-pack=x\nnone\n0\n", b"refs/heads/x\n" + b"a" * 39 + b"\nnone\n0\n",
        b"refs/heads/x\n" + b"a" * 40 + b"\nnone\nmany\n", b"\xff" * 100,
    ],
)  # fmt: skip
async def test_nonsense_about_the_branch_is_refused(
    repo: Path, clone: Path, shell: Any, scratch: Path, answer: bytes
) -> None:
    async def lie(*args: Any, **options: Any) -> tuple[int, bytes, bytes]:
        return 0, answer, b""

    shell.run = lie
    await refused(UpstreamFailed, shell, clone, repo, scratch, "no sense")


async def test_a_lie_about_the_branch_name_and_the_base_is_harmless(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path
) -> None:
    head = commit(git, clone, {"c": "1"})

    async def lie(*args: Any, **options: Any) -> tuple[int, bytes, bytes]:
        return 0, f"refs/heads/../../config\n{head}\n{'e' * 40}\n99999999999999\n".encode(), b""

    shell.run = lie
    pulled = await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert (pulled.branch, pulled.commit, pulled.uncommitted) == (None, head, 10**6)


async def test_hooks_of_neither_side_run(
    repo: Path, clone: Path, git: Git, shell: Any, scratch: Path, tmp_path: Path
) -> None:
    for place in (repo, clone):
        for hook in ("reference-transaction", "post-receive", "update", "post-update", "pre-receive"):
            path = place / ".git" / "hooks" / hook
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\necho {place.name} >> {tmp_path}/sprung\n")
            path.chmod(0o755)
    commit_env = git(clone, "-c", "core.hooksPath=/dev/null", "commit", "-q", "--allow-empty", "-m", "x")
    assert commit_env == ""
    await pull(shell, str(clone), str(repo), name="otter", scratch=scratch)
    assert not (tmp_path / "sprung").exists()


# together, and after a crash


async def test_pulls_at_once(repo: Path, clone: Path, git: Git, shell: Any, scratch: Path) -> None:
    heads = {}
    for number in range(6):
        git(clone, "checkout", "-q", "-b", f"b{number}", "corral/otter")
        heads[f"b{number}"] = commit(git, clone, {"c": str(number)})
    async with asyncio.TaskGroup() as tasks:
        for number in range(6):
            branch = f"b{number}"
            tasks.create_task(pull(shell, str(clone), str(repo), name=branch, branch=branch, scratch=scratch))
            tasks.create_task(pull(shell, str(clone), str(repo), name="same", branch=branch, scratch=scratch))
    for branch, head in heads.items():
        assert git(repo, "rev-parse", f"refs/corral/{branch}") == head
    assert git(repo, "rev-parse", "refs/corral/same") in heads.values()
    assert git(repo, "fsck", "--full", "--strict") == ""
    assert left(scratch) == []


def test_scratch_directories(tmp_path: Path) -> None:
    scratch = make_scratch(tmp_path / "a" / "b")
    assert scratch.stat().st_mode & 0o777 == 0o711
    (scratch / "pull-1" / "objects").mkdir(parents=True)
    (scratch / "mine").mkdir()
    assert left(make_scratch(scratch)) == ["mine"]
