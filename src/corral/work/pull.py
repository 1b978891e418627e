"""Fetching a sandbox's commits into a repository of the host.

The sandbox sends one pack. It goes through `index-pack --strict` into a quarantine, where every object is
checked as `fsck` does (no `.git`, `..` or other trick in a path, no broken link), then it is looked at, and
only then put into the repository, under `refs/corral/<sandbox>`. HEAD, branches, configuration, index and
work tree stay as they are: what to do with the commits is the user's choice, and the result says what to
look at first.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from corral.errors import Conflict, CorralError, Forbidden, HostError, TooLarge
from corral.host import process
from corral.model.ids import check_guest_path, check_name
from corral.work import guest, review
from corral.work.hostgit import HostGit, failure
from corral.work.inspect import RepoState, inspect_repo
from corral.work.names import check_branch, clean_text, is_branch, is_object_id
from corral.work.ports import GuestShell
from corral.work.quarantine import Quarantine

MAX_BYTES = 2 * 1024**3
"""The largest pack that is taken from a sandbox."""
TIMEOUT = 1800.0
_CHUNK = 256 * 1024

_SEND = guest.Script(
    """
cd -- "$1" || exit 1
{ printf '%s\\n' "$2"; [ -z "$3" ] || printf '^%s\\n' "$3"; } |
    git pack-objects --revs --stdout --thin --delta-base-offset --quiet
""",
    "pack the sandbox's commits",
)


@dataclass(frozen=True, slots=True)
class PulledRefs:
    """What a pull brought.

    `ref` in the repository at `repository` points to `commit`; it was `previous` before (None: it did not
    exist). `branch` is the sandbox's, None for a detached HEAD. `base`: where its history left the
    repository's, None if it shares none. `commits` since there, `files` changed since there. `findings`:
    those to look at before they are merged, at most 1,000 of `findings_total`. `uncommitted`: changes in
    the sandbox that are in no commit, as it says.
    """

    repository: str
    ref: str
    branch: str | None
    commit: str
    previous: str | None
    base: str | None
    commits: int
    files: int
    findings: tuple[review.Finding, ...]
    findings_total: int
    uncommitted: int


async def pull(
    shell: GuestShell,
    directory: str,
    target: str,
    *,
    name: str,
    scratch: Path,
    branch: str | None = None,
    max_bytes: int = MAX_BYTES,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - enforced on both ends
) -> PulledRefs:
    """Fetch `branch` (None: what is checked out now) of the sandbox's repository into the one at `target`.

    `scratch`: a directory of `quarantine.make_scratch`. Raises what `inspect_repo` raises; Conflict where
    the sandbox lacks the branch; TooLarge; Forbidden where the objects do not pass the check. After an
    error the repository is as it was.
    """
    ref = f"refs/corral/{check_name(name)}"
    if branch is not None:
        check_branch(branch)
    state = await inspect_repo(target)
    found = await guest.read_branch(shell, check_guest_path(directory), branch)
    _check_format(state, found.commit)
    async with Quarantine(scratch, state) as quarantine:
        pack = await _receive(quarantine, state, shell, directory, found, max_bytes, timeout)
        await _check_complete(quarantine.git, found.commit, timeout)
        result = await _describe(quarantine.git, state, found, ref)
        if pack is not None:
            await _store(state, pack, timeout)
    previous = await _set_ref(state, ref, found.commit, name)
    return replace(result, previous=previous)


def _check_format(state: RepoState, commit: str) -> None:
    if len(commit) != {"sha1": 40, "sha256": 64}.get(state.object_format):
        raise Conflict(
            f"{state.path} uses {state.object_format} ids, and the sandbox's repository does not",
            "pull into a clone with the same object format",
        )


async def _receive(
    quarantine: Quarantine,
    state: RepoState,
    shell: GuestShell,
    directory: str,
    found: guest.GuestBranch,
    max_bytes: int,
    timeout: float,  # noqa: ASYNC109
) -> Path | None:
    """The sandbox's pack, checked, in the quarantine; None where the repository has the commit already."""
    if await _has_commit(state.git, found.commit):
        return None
    # The sandbox leaves out what it has in common with us; it names that commit, we say whether we have it.
    common = found.base if found.base and await _has_commit(state.git, found.base) else ""
    options = ("--stdin", "--fix-thin", "--strict", f"--max-input-size={max_bytes}")
    packing = shell.stream_out(
        _SEND.argv(directory, found.commit, common), env=guest.ENV, cwd="/", timeout=timeout
    )
    async with quarantine.git.stream("index-pack", *options, timeout=timeout) as git:
        error = await _feed(git, packing, max_bytes)
        out = b"".join([data async for data in git])
        done = await git.wait()
    if error is not None:
        raise error
    if not done.ok:
        raise _rejected(done)
    digest = out.decode("ascii", "replace").split()[-1:]
    if not digest or not is_object_id(digest[0]):
        raise HostError("git index-pack named no pack", "run `git --version`: 2.36 or newer is needed")
    return quarantine.pack(digest[0])


async def _feed(git: process.Stream, packing: AsyncIterator[bytes], max_bytes: int) -> CorralError | None:
    """Pass the pack on, and end its input; the error that stopped the sending, if any. A git that stopped
    reading has its reason on its error output.
    """
    sent = 0
    try:
        async with aclosing(packing) as chunks:  # type: ignore[type-var]
            async for data in chunks:
                sent += len(data)
                if sent > max_bytes:
                    return TooLarge(
                        f"the sandbox's commits are larger than {max_bytes} bytes",
                        "push them from the sandbox, or copy single files with `corral cp`",
                    )
                await git.write(data)
    except BrokenPipeError:
        return None
    except CorralError as error:
        return error
    finally:
        git.close_stdin()
    return None


def _rejected(done: process.Completed) -> CorralError:
    text = clean_text(done.stderr)
    if "exceeds maximum allowed size" in text:
        return TooLarge("the sandbox's commits are too large", "copy single files with `corral cp`")
    if "No space left" in text or "out of memory" in text or done.timed_out:
        return failure(done, Path("the quarantine"))
    return Forbidden(
        f"what the sandbox sent is not a sound set of git objects, and was dropped: {text}",
        "look at it inside: `corral exec NAME git fsck`",
    )


async def _has_commit(git: HostGit, commit: str) -> bool:
    return (await git.run("cat-file", "-e", f"{commit}^{{commit}}")).ok


async def _check_complete(git: HostGit, commit: str, timeout: float) -> None:  # noqa: ASYNC109
    """Everything that the commit needs is there: a pack can be sound and still leave something out."""
    if not await _has_commit(git, commit):
        raise Forbidden(f"the sandbox did not send the commit {commit} that it named", "pull again")
    walk = await git.run("rev-list", "--objects", "--quiet", commit, "--not", "--all", timeout=timeout)
    if not walk.ok:
        raise Forbidden(
            f"the sandbox's history is incomplete: {clean_text(walk.stderr)}",
            "pull into the repository that the sandbox was made from",
        )


async def _describe(git: HostGit, state: RepoState, found: guest.GuestBranch, ref: str) -> PulledRefs:
    base = await _merge_base(git, state, found)
    counted = await git.read("rev-list", "--count", found.commit, *([f"^{base}"] if base else []))
    tree = base or await _empty_tree(git)
    files = total = 0
    listed: list[review.Finding] = []
    async for change in _changes(git, tree, found.commit):
        files += 1
        if flags := review.flags_of(change):
            total += 1
            if len(listed) < review.MAX_LISTED:
                listed.append(review.Finding(review.shown(change.path), flags))
    branch = found.ref.removeprefix("refs/heads/")
    return PulledRefs(
        repository=str(state.path),
        ref=ref,
        branch=branch if found.ref.startswith("refs/heads/") and is_branch(branch) else None,
        commit=found.commit,
        previous=None,
        base=base,
        commits=int(counted),
        files=files,
        findings=tuple(listed),
        findings_total=total,
        uncommitted=found.uncommitted,
    )


async def _merge_base(git: HostGit, state: RepoState, found: guest.GuestBranch) -> str | None:
    """Where the sandbox's history left ours: of the commit it says that it started from, if we have it,
    else of HEAD.
    """
    ours = found.base if found.base and await _has_commit(state.git, found.base) else state.head
    done = await git.run("merge-base", ours, found.commit)
    answer = done.stdout.decode("ascii", "replace").strip()
    return answer if done.ok and is_object_id(answer) else None


async def _empty_tree(git: HostGit) -> str:
    return (await git.read("hash-object", "-t", "tree", "--stdin", input=b"")).decode("ascii").strip()


async def _changes(git: HostGit, old: str, new: str) -> AsyncIterator[review.Change]:
    options = ("-r", "-z", "--raw", "--no-renames", "--no-ext-diff", "--ignore-submodules=none")
    header = b""
    async for entry in git.records("diff-tree", *options, old, new):
        if header:
            yield review.parse_raw(header, entry)
            header = b""
        else:
            header = entry


async def _store(state: RepoState, pack: Path, timeout: float) -> None:  # noqa: ASYNC109
    """Put the checked pack into the repository, written by its owner's git."""
    checked = state.git.with_environment({}, limit_memory=True)
    async with checked.stream("index-pack", "--stdin", timeout=timeout) as git:
        with await asyncio.to_thread(pack.open, "rb") as file:
            while data := await asyncio.to_thread(file.read, _CHUNK):
                try:
                    await git.write(data)
                except BrokenPipeError:
                    break
        git.close_stdin()
        _ = [data async for data in git]
        done = await git.wait()
    if not done.ok:
        raise failure(done, state.path)


async def _set_ref(state: RepoState, ref: str, commit: str, name: str) -> str | None:
    before = await state.git.run("rev-parse", "--verify", "--quiet", ref)
    await state.git.read("update-ref", "--create-reflog", "-m", f"corral pull {name}", ref, commit)
    previous = before.stdout.decode("ascii", "replace").strip()
    return previous if before.ok and is_object_id(previous) else None
