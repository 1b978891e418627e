"""Carrying a repository of the host into a sandbox: its commits, branches and tags, and nothing else.

Objects are streamed as one pack from `git pack-objects` on the host into `git index-pack` in the sandbox:
no copy on disk between, and memory does not grow with the repository. The clone is made under a temporary
name and renamed when it is complete, so what is at its final place is whole.
"""

import contextlib
import secrets as randomness
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from corral.engine.tars import once
from corral.errors import CorralError, UpstreamFailed
from corral.model.ids import check_guest_path, check_name
from corral.work import guest
from corral.work.hostgit import failure
from corral.work.inspect import RepoState, inspect_repo
from corral.work.names import choose_branch, directory_name
from corral.work.ports import GuestShell

TIMEOUT = 1800.0
GUEST_HOME = "/home/user"


@dataclass(frozen=True, slots=True)
class CarriedRepo:
    """A repository in a sandbox: its directory there, the branch that is checked out, and the commit it
    started from.

    `notes` are sentences for the user: what was not carried, and what does not work as it does on the host.
    """

    directory: str
    branch: str
    base: str
    notes: tuple[str, ...]


async def carry(
    path: str,
    shell: GuestShell,
    *,
    name: str,
    branch: str | None = None,
    directory: str | None = None,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - enforced on both ends
) -> CarriedRepo:
    """Put the committed state of the repository at `path` into the sandbox `name`.

    `branch` is checked out: None or `auto` means a new `corral/<name>` at HEAD, a branch of the repository
    is taken as it is, any other is made at HEAD. `directory` must be absent or empty; by default
    /home/user/<repository's name>. Raises what `inspect_repo` raises; Conflict where the directory is in
    use; UpstreamFailed where git fails inside, and then nothing is left of it.
    """
    chosen = choose_branch(branch, check_name(name))
    state = await inspect_repo(path)
    target = destination(directory, str(state.path))
    refs = await _refs(state)
    start = refs.get(b"refs/heads/" + chosen.encode(), state.head)
    async with Placing(shell, target, state.object_format) as temporary:
        await _send_objects(state, refs.values(), shell, temporary, timeout)
        await _send_refs(state, refs, shell, temporary)
        await guest.run(
            shell, guest.FINISH, target, temporary, chosen, start, *_identity(state, name), state.origin or "",
            timeout=timeout,
        )  # fmt: skip
    return CarriedRepo(target, chosen, start, tuple(_notes(state)))


def destination(directory: str | None, source: str) -> str:
    """Where a clone of `source` goes in the guest. Raises InvalidInput."""
    chosen = check_guest_path(directory or f"{GUEST_HOME}/{directory_name(source)}")
    return str(PurePosixPath(chosen))


class Placing:
    """`async with` gives a temporary path beside the target, with an empty repository unless
    `object_format` is empty. What is still there at the end, because something failed, is removed.
    """

    def __init__(self, shell: GuestShell, target: str, object_format: str) -> None:
        self._shell = shell
        self._target = target
        self._format = object_format
        # Beside the target, so that the rename stays on one file system.
        parent, name = PurePosixPath(target).parent, PurePosixPath(target).name
        self._temporary = str(parent / f".{name[:64]}.{randomness.token_hex(8)}")

    async def __aenter__(self) -> str:
        await guest.run(self._shell, guest.PREPARE, self._target, self._temporary, self._format)
        return self._temporary

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            return
        with contextlib.suppress(CorralError):  # a sandbox that is gone has nothing left in it either
            await guest.run(self._shell, guest.DISCARD, self._temporary)


async def _refs(state: RepoState) -> dict[bytes, str]:
    """Branches and tags with the objects they point to."""
    found = {}
    separated = ("for-each-ref", "--format=%(objectname) %(refname)%00", "refs/heads", "refs/tags")
    async for entry in state.git.records(*separated):
        object_id, _, ref = entry.lstrip(b"\n").partition(b" ")
        if ref:
            found[ref] = object_id.decode("ascii")
    return found


async def _send_objects(
    state: RepoState,
    tips: Iterable[str],
    shell: GuestShell,
    temporary: str,
    timeout: float,  # noqa: ASYNC109
) -> None:
    if state.shallow:
        await guest.run(shell, guest.SHALLOW, temporary, stdin=once(await state.shallow_file()))
    wanted = "".join(f"{tip}\n" for tip in dict.fromkeys((state.head, *tips))).encode()
    pack = _Pack(state, wanted, timeout)
    try:
        async with contextlib.aclosing(pack.chunks()) as chunks:
            await guest.run(shell, guest.INDEX, temporary, stdin=chunks, timeout=timeout)
    except UpstreamFailed:
        if pack.failure is not None:  # the sandbox's git complains of the end of input that this caused
            raise pack.failure from None
        raise
    if pack.failure is not None:
        raise pack.failure


class _Pack:
    """The objects of a repository as a stream. A failure is kept, for the stream just ends for who reads
    it.
    """

    def __init__(self, state: RepoState, wanted: bytes, timeout: float) -> None:
        self._state = state
        self._wanted = wanted
        self._timeout = timeout
        self.failure: CorralError | None = None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        options = ["--revs", "--stdout", "--delta-base-offset", "--quiet"]
        if self._state.shallow:
            options.append("--shallow")
        async with self._state.git.stream("pack-objects", *options, timeout=self._timeout) as git:
            with contextlib.suppress(BrokenPipeError):  # it ended early: its exit code, below, tells why
                await git.write(self._wanted)
            git.close_stdin()
            async for data in git:
                yield data
            done = await git.wait()
        if not done.ok:
            self.failure = failure(done, self._state.path)


async def _send_refs(state: RepoState, refs: dict[bytes, str], shell: GuestShell, temporary: str) -> None:
    """Branches become those of a remote `origin`, as in any clone."""
    commands = [
        b"create %s\0%s\0" % (ref.replace(b"refs/heads/", b"refs/remotes/origin/", 1), tip.encode())
        for ref, tip in refs.items()
    ]
    if commands:
        await guest.run(shell, guest.REFS, temporary, stdin=once(b"".join(commands)))


def _identity(state: RepoState, name: str) -> tuple[str, str]:
    """Who commits in the sandbox: the repository's owner, or the sandbox."""
    return state.identity.name or f"Corral {name}", state.identity.email or f"{name}@corral.invalid"


def _notes(state: RepoState) -> Iterable[str]:
    if state.changed or state.untracked:
        yield (
            f"{state.changed} changed and {state.untracked} untracked files are not committed, and were not carried: "
            "commit them first if the sandbox needs them"
        )
    if state.submodules:
        shown = ", ".join(state.submodules[:5])
        yield f"{len(state.submodules)} submodules are empty in the sandbox: {shown}"
    if state.lfs:
        yield "files in Git LFS are pointers in the sandbox: their content was not carried"
    if state.shallow:
        yield "the repository is a shallow clone, and so is the sandbox's"
