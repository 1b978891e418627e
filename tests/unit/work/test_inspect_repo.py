"""What is told of a repository before it is carried."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput, NotFound
from corral.work.inspect import _without_filters, inspect_repo
from corral.work.names import identity_value, informative_origin

Git = Callable[..., str]


def link(target: Path | str, at: Path) -> None:
    at.symlink_to(target)


def rename(old: Path, new: Path) -> None:
    old.rename(new)


async def test_an_ordinary_repository(repo: Path, git: Git) -> None:
    state = await inspect_repo(str(repo))
    assert state.path == repo
    assert (state.head, state.branch) == (git(repo, "rev-parse", "HEAD"), "main")
    assert not state.bare
    assert not state.shallow
    assert (state.changed, state.untracked, state.submodules, state.lfs) == (0, 0, (), False)
    assert state.object_format == "sha1"
    assert state.identity.name == "Repo Owner"


async def test_a_directory_below_the_top_means_the_repository(repo: Path) -> None:
    (repo / "sub").mkdir()
    assert (await inspect_repo(f"{repo}/sub")).path == repo


async def test_a_link_to_a_repository_is_followed(repo: Path, tmp_path: Path) -> None:
    link(repo, tmp_path / "link")
    assert (await inspect_repo(f"{tmp_path}/link")).path == repo


async def test_uncommitted_work_is_counted(repo: Path, git: Git) -> None:
    (repo / "a.txt").write_text("changed\n")
    (repo / "staged\nname").write_text("x")
    git(repo, "add", "staged\nname")
    (repo / "new.txt").write_text("x")
    (repo / "dir").mkdir()
    (repo / "dir" / "1").write_text("x")
    (repo / "dir" / "2").write_text("x")
    (repo / ".gitignore").write_text("ignored\n")
    (repo / "ignored").write_text("x")
    state = await inspect_repo(str(repo))
    assert (state.changed, state.untracked) == (2, 3)


async def test_detached_head(repo: Path, git: Git) -> None:
    git(repo, "checkout", "-q", "--detach", "topic")
    state = await inspect_repo(str(repo))
    assert (state.head, state.branch) == (git(repo, "rev-parse", "topic"), None)


async def test_bare(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    state = await inspect_repo(f"{tmp_path}/bare.git")
    assert state.bare
    assert state.path == tmp_path / "bare.git"
    assert state.objects == tmp_path / "bare.git" / "objects"


async def test_linked_worktree(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", f"{tmp_path}/tree", "topic")
    state = await inspect_repo(f"{tmp_path}/tree")
    assert (state.path, state.branch) == (tmp_path / "tree", "topic")
    assert state.objects == repo / ".git" / "objects"


async def test_linked_worktree_without_its_repository(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", f"{tmp_path}/tree", "topic")
    rename(repo, tmp_path / "moved")
    with pytest.raises(NotFound, match=r"/project/\.git/worktrees/tree"):
        await inspect_repo(f"{tmp_path}/tree")


async def test_sha256(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", "modern")
    git(tmp_path / "modern", "commit", "-q", "--allow-empty", "-m", "x")
    state = await inspect_repo(f"{tmp_path}/modern")
    assert (state.object_format, len(state.head)) == ("sha256", 64)


async def test_submodules_and_lfs_are_reported(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(repo), "library")
    git(repo, "submodule", "--quiet", "add", f"{tmp_path}/library", "vendor/library")
    (repo / "assets").mkdir()
    (repo / "assets" / ".gitattributes").write_text("*.bin filter=lfs diff=lfs\n")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "more")
    state = await inspect_repo(str(repo))
    assert state.submodules == ("vendor/library",)
    assert state.lfs


@pytest.mark.parametrize("path", ["/", "/..", "//", "relative", "", "/tmp/x\ny", "/tmp/\0"])
async def test_bad_paths(path: str) -> None:
    with pytest.raises(InvalidInput):
        await inspect_repo(path)


async def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await inspect_repo(f"{tmp_path}/absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="not a directory"):
        await inspect_repo(f"{tmp_path}/file")
    with pytest.raises(InvalidInput, match="not a git repository"):
        await inspect_repo(str(tmp_path))


async def test_no_commits(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "-q", "empty")
    with pytest.raises(InvalidInput, match="no commits"):
        await inspect_repo(f"{tmp_path}/empty")


async def test_inside_the_git_directory(repo: Path) -> None:
    with pytest.raises(InvalidInput, match="inside a git directory"):
        await inspect_repo(f"{repo}/.git")


async def test_a_repository_whose_work_tree_is_the_root(repo: Path, git: Git) -> None:
    git(repo, "config", "core.worktree", "/")
    with pytest.raises(InvalidInput):
        await inspect_repo(str(repo))


async def test_a_path_that_is_not_utf8(tmp_path: Path, repo: Path) -> None:
    odd = tmp_path / os.fsdecode(b"odd\xff \"'\\")
    rename(repo, odd)
    assert (await inspect_repo(str(odd))).path == odd


async def test_nothing_that_the_configuration_names_is_run(repo: Path, git: Git, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    for key in (
        "core.fsmonitor", "core.pager", "core.sshCommand", "diff.external", "filter.x.clean", "filter.x.smudge",
        "filter.x.process", "diff.x.textconv", "core.askPass", "credential.helper", "core.editor",
    ):  # fmt: skip
        git(repo, "config", key, str(trap))
    (repo / ".gitattributes").write_text("* filter=x diff=x\n")
    hook = repo / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(trap.read_text())
    hook.chmod(0o755)
    (repo / "a.txt").write_text("eno\n")
    os.utime(repo / "b.txt", (1, 1))
    await inspect_repo(str(repo))
    assert not (tmp_path / "sprung").exists()


async def test_credentials_in_the_origin_are_dropped(repo: Path, git: Git) -> None:
    git(repo, "remote", "add", "origin", "https://user:hunter2hunter2@forge.example/o/r.git")
    assert (await inspect_repo(str(repo))).origin == "https://forge.example/o/r.git"


words = st.sampled_from(
    [
        "https://",
        "ssh://",
        "git@",
        "user:pw@",
        "h.example",
        ":8443",
        "/",
        "acme/app",
        "..",
        "?x",
        "#y",
        "[::1]",
        "\n",
        " ",
    ]
)
addresses = st.lists(words, max_size=6).map("".join) | st.text(max_size=40)


@given(addresses)
def test_an_origin_that_a_sandbox_may_know_holds_no_credential(url: str) -> None:
    """G-1: HTTPS to a name, and nothing that git could take for more; or none."""
    found = informative_origin(url)
    if found is not None:
        assert found.startswith("https://")
        assert found.isprintable()
        assert not set(found) & set(" ?#")
        assert "pw@" not in found
        assert informative_origin(found) == found


@given(st.text(max_size=300))
def test_a_name_is_one_that_git_can_write(value: str) -> None:
    found = identity_value(value)
    assert found is None or (
        found == value.strip() and 0 < len(found) <= 256 and not set(found) & set("<>\n\0")
    )


@given(st.lists(st.text("filter.clean=x \n", min_size=1, max_size=20), max_size=6))
def test_no_filter_stays_in_use(names: list[str]) -> None:
    """G-278: whatever it is called, except for a name that git cannot set from outside."""
    config = {f"filter.{name}.{kind}": "evil" for name in names for kind in ("clean", "process")}
    taken = dict(_without_filters(config))
    for name in names:
        if "=" not in name:
            assert taken[f"filter.{name}.clean"] == taken[f"filter.{name}.process"] == ""
            assert taken[f"filter.{name}.required"] == "false"
