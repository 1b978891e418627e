"""Looking at a repository of the host before its work is carried into a sandbox, or fetched back into it."""

import asyncio
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from e2b_dockerfile_utils import PatternMatcher

from corral.errors import InvalidInput, NotFound
from corral.work.hostgit import HostGit, Owner, failure
from corral.work.names import identity_value, informative_origin, is_object_id

MAX_SUBMODULES = 1000
_FILTER = re.compile(r"filter\.(.+)\.[a-z]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who commits; None where the repository's owner has not told git."""

    name: str | None
    email: str | None


@dataclass(frozen=True, slots=True)
class RepoState:
    """A repository of the host.

    `path` is the top of the work tree, or the repository itself if it is bare. `branch` is None where HEAD
    is detached. `changed` and `untracked` count uncommitted files, which are not carried; an untracked
    directory counts as one. `origin` is where it comes from, in a form that a sandbox may know. `lfs`: some
    files are Git LFS pointers.
    """

    path: Path
    git_dir: Path
    objects: Path
    owner: Owner
    bare: bool
    head: str
    branch: str | None
    object_format: str
    shallow: bool
    changed: int
    untracked: int
    submodules: tuple[str, ...]
    lfs: bool
    identity: Identity
    origin: str | None

    @property
    def git(self) -> HostGit:
        """Git on this repository's git directory."""
        return HostGit(self.git_dir, self.owner, {"GIT_DIR": str(self.git_dir)})

    async def shallow_file(self) -> bytes:
        """The commits at which a shallow repository ends, as git keeps them."""
        return await asyncio.to_thread((self.objects.parent / "shallow").read_bytes)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a repository's parts are."""

    path: Path
    git_dir: Path
    common_dir: Path
    bare: bool
    object_format: str
    shallow: bool


async def inspect_repo(path: str) -> RepoState:
    """What is at `path`, an absolute path at or below the top of a work tree, or of a bare repository.

    Raises InvalidInput (no repository, no commits, `/`), NotFound (no such path, or a worktree's main
    repository is gone), Forbidden (files of several users).
    """
    directory = _checked_directory(path)
    owner = Owner.of(directory)
    place = await _locate(HostGit(directory, owner))
    git = HostGit(place.path, owner)
    config = await _config(git, owner)
    git = git.with_settings(_without_filters(config))
    head, branch = await _head(git, place.path)
    changed, untracked = (0, 0) if place.bare else await _uncommitted(git)
    return RepoState(
        path=place.path,
        git_dir=place.git_dir,
        objects=place.common_dir / "objects",
        owner=owner,
        bare=place.bare,
        head=head,
        branch=branch,
        object_format=place.object_format,
        shallow=place.shallow,
        changed=changed,
        untracked=untracked,
        submodules=await _submodules(git, head),
        lfs=await _uses_lfs(git, head),
        identity=Identity(
            identity_value(config.get("user.name", "")), identity_value(config.get("user.email", ""))
        ),
        origin=informative_origin(config.get("remote.origin.url", "")),
    )


def _checked_directory(path: str) -> Path:
    if not path.startswith("/") or not _is_plain(path):
        raise InvalidInput(
            "the repository's path is not valid", "give an absolute path without control characters"
        )
    directory = Path(os.path.realpath(path))
    if directory == Path("/"):
        raise InvalidInput("/ is not accepted as a repository", "give the directory of one project")
    if not directory.exists():
        raise NotFound(f"{path} does not exist on the daemon's host", "give the path of a repository there")
    if not directory.is_dir():
        raise InvalidInput(f"{path} is not a directory", "give the directory of a repository")
    return directory


def _is_plain(path: str) -> bool:
    # Bytes that are not UTF-8 arrive as lone surrogates, which are not "printable" but harmless.
    return all(c.isprintable() or 0xDC80 <= ord(c) <= 0xDCFF for c in path)


async def _locate(git: HostGit) -> _Place:
    questions = (
        "--is-bare-repository", "--is-inside-work-tree", "--show-object-format", "--is-shallow-repository",
    )  # fmt: skip
    done = await git.run("rev-parse", *questions, "--absolute-git-dir")
    if not done.ok:
        raise failure(done, git.directory)
    *answers, git_dir = os.fsdecode(done.stdout).split("\n", 4)
    bare, inside, shallow = answers[0] == "true", answers[1] == "true", answers[3] == "true"
    if not bare and not inside:
        raise InvalidInput(
            f"{git.directory} is inside a git directory",
            "give the top of the work tree, or a bare repository",
        )
    common = await _path(git, "--git-common-dir")
    top = Path(git_dir.removesuffix("\n")) if bare else await _path(git, "--show-toplevel")
    if top == Path("/"):
        raise InvalidInput("the repository's work tree is /", "give the directory of one project")
    return _Place(top, Path(git_dir.removesuffix("\n")), common, bare, answers[2], shallow)


async def _path(git: HostGit, question: str) -> Path:
    raw = await git.read("rev-parse", "--path-format=absolute", question)
    return Path(os.fsdecode(raw.removesuffix(b"\n")))


async def _head(git: HostGit, path: Path) -> tuple[str, str | None]:
    done = await git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    head = done.stdout.decode("ascii", "replace").strip()
    if not done.ok or not is_object_id(head):
        raise InvalidInput(f"{path} has no commits on its current branch", "commit something there first")
    ref = await git.run("symbolic-ref", "--quiet", "HEAD")
    name = os.fsdecode(ref.stdout.removesuffix(b"\n"))
    return head, name.removeprefix("refs/heads/") if ref.ok else None


async def _config(git: HostGit, owner: Owner) -> dict[str, str]:
    """Settings of the repository and of its owner, as data: reading them runs nothing."""
    of_owner = {"HOME": owner.home, "GIT_CONFIG_GLOBAL": f"{owner.home}/.gitconfig"}
    done = await git.with_environment(of_owner, limit_memory=False).run(
        "config", "--list", "-z", "--includes"
    )
    if not done.ok:
        raise failure(done, git.directory)
    entries = (entry.partition("\n") for entry in os.fsdecode(done.stdout).split("\0"))
    return {key: value for key, _, value in entries}


def _without_filters(config: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Settings that take every configured content filter out of use."""
    names = {match[1] for key in config if (match := _FILTER.fullmatch(key)) and "=" not in match[1]}
    kinds = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    return tuple((f"filter.{name}.{kind}", value) for name in sorted(names) for kind, value in kinds)


async def _uncommitted(git: HostGit) -> tuple[int, int]:
    """Changed and untracked files of the work tree, counted as they are listed."""
    options = (
        "--porcelain=v1",
        "-z",
        "--no-renames",
        "--untracked-files=normal",
        "--ignore-submodules=dirty",
    )
    changed = untracked = 0
    async for entry in git.records("status", *options):
        if entry.startswith(b"??"):
            untracked += 1
        else:
            changed += 1
    return changed, untracked


async def _submodules(git: HostGit, head: str) -> tuple[str, ...]:
    found: list[str] = []
    async for entry in git.records("ls-tree", "-r", "-z", "--full-tree", head):
        if entry.startswith(b"160000 ") and len(found) < MAX_SUBMODULES:
            found.append(entry.partition(b"\t")[2].decode("utf-8", "backslashreplace"))
    return tuple(found)


async def _uses_lfs(git: HostGit, head: str) -> bool:
    pattern = ("grep", "--quiet", "--no-textconv", "-I", "-F", "-e", "filter=lfs", head)
    done = await git.run(*pattern, "--", ":(top,glob)**/.gitattributes")
    return done.ok


async def files_digest(
    path: str, branch: str | None, patterns: tuple[str, ...], *, required: bool = True
) -> str:
    """A digest of the files that match `patterns` (as of .dockerignore) in the commit that a sandbox of this branch starts from:
    their paths, modes and contents. No file is read: git knows their digests.

    `path` is one that `inspect_repo` has found. Raises InvalidInput where they match nothing and are `required`.
    """
    directory = _checked_directory(path)
    git = HostGit(directory, Owner.of(directory))
    start = await _start(git, branch)
    literal = tuple(pattern for pattern in patterns if not set(pattern) & set("*?[\\!"))
    limit = ("--", *literal) if len(literal) == len(patterns) else ()
    try:
        matcher = PatternMatcher(list(patterns))
    except ValueError as error:
        raise InvalidInput(
            f"a pattern of the setup's files is malformed: {error}", "see its brackets"
        ) from None
    total, found = hashlib.sha256(), 0
    async for entry in git.records("ls-tree", "-r", "-z", "--full-tree", start, *limit):
        name = os.fsdecode(entry.partition(b"\t")[2])
        if matcher.matches(name):
            found += 1
            total.update(len(entry).to_bytes(8, "big") + entry)
    if not found and required:
        raise InvalidInput(
            f"no committed file of the repository matches {', '.join(patterns)[:200]}",
            "see `files` in corral.toml, or commit them: a sandbox gets what is committed",
        )
    return total.hexdigest()


async def _start(git: HostGit, branch: str | None) -> str:
    """The commit that a sandbox of a branch starts from: the branch's, or HEAD's where there is no such branch."""
    names = ("HEAD",) if branch is None else (f"refs/heads/{branch}", "HEAD")
    for name in names:
        done = await git.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        commit = done.stdout.decode("ascii", "replace").strip()
        if done.ok and is_object_id(commit):
            return commit
    raise InvalidInput(f"{git.directory} has no commits", "commit something first")
