"""Sandboxes, their processes and files, as objects: what most programs use."""

import atexit
import builtins
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from corral.errors import InvalidInput, NotFound
from corral.model.lifecycle import State
from corral.model.process import Stream
from corral.model.sandbox import Isolation
from corral.protocol.processes import ProcessInfo
from corral.protocol.sandboxes import SandboxInfo
from corral.sdk import binding, trees
from corral.sdk.client import Client
from corral.sdk.groups import audit_calls, file_calls, process_calls, sandbox_calls, secret_calls
from corral.sdk.operations import OnProgress
from corral.sdk.process_calls import Command, CommandOptions, Follower, FollowOutput
from corral.sdk.results import CommandResult, Output
from corral.sdk.settings import Settings, settings
from corral.sdk.transport import Transport


class CreateOptions(TypedDict, total=False):
    """What may be said of a new sandbox; see `Client.create_sandbox`."""

    name: str | None
    isolation: Isolation | str | None
    runtime: str | None
    limits: Mapping[str, float] | None
    env: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    user: str | None
    workdir: str | None
    timezone: str | None
    ttl: int | None
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    secrets: tuple[str, ...] | None
    agent: str | None
    repo: str | None
    branch: str | None
    setup: Mapping[str, Any] | None
    services: Sequence[Mapping[str, Any]]
    budget: int | None
    idle_pause: int | None
    idle_stop: int | None
    queue: bool
    queue_timeout: int | None
    git_repos: tuple[str, ...]
    push_rules: tuple[str, ...]
    volumes: tuple[str, ...]
    progress: OnProgress | None


def shared_client() -> Client:
    """The client of this process for the daemon that the environment names now."""
    return _client_of(settings())


@lru_cache(maxsize=8)
def _client_of(where: Settings) -> Client:
    client = Client(where=where)
    atexit.register(client.close)
    return client


class SandboxState:
    """What is known of a sandbox: `info` as of the last call that told it."""

    def __init__(self, info: SandboxInfo) -> None:
        self.info = info

    @property
    def id(self) -> str:
        """Its id, never reused."""
        return self.info.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.info.name

    @property
    def state(self) -> State:
        """Its state as last told; `refresh` asks again."""
        return self.info.state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.id} {self.state}>"


class ProcessState:
    """What is known of a process: `info` as of its start, and how far its output was read."""

    def __init__(self, sandbox_id: str, info: ProcessInfo) -> None:
        self.sandbox_id = sandbox_id
        self.info = info
        self._follower = Follower(sandbox_id, info.id)

    @property
    def id(self) -> int:
        """Its id, with which any client can find it again."""
        return self.info.id

    @property
    def exit_code(self) -> int | None:
        """Its exit code, once its output was read to the end."""
        return self._follower.exit.code if self._follower.exit else None

    def _result(self, kept: dict[Stream, bytearray]) -> CommandResult:
        ended = self._follower.ended_as()
        return CommandResult.ended(ended, bytes(kept[Stream.STDOUT]), bytes(kept[Stream.STDERR]))


class Process(ProcessState):
    """A process that runs on its own in a sandbox."""

    def __init__(self, transport: Transport, sandbox_id: str, info: ProcessInfo) -> None:
        super().__init__(sandbox_id, info)
        self.transport = transport

    refresh = binding.process(process_calls.get_process)
    write = binding.process(process_calls.write_stdin)
    close_stdin = binding.process(process_calls.close_stdin)
    resize = binding.process(process_calls.resize_terminal)
    signal = binding.process(process_calls.signal_process)

    def output(self) -> Iterator[Output]:
        """Its output from where reading stopped before, until it ends. Survives broken connections."""
        return FollowOutput(self._follower).run(self.transport)

    def wait(self) -> CommandResult:
        """Read the rest of its output; its exit code with that."""
        kept = {stream: bytearray() for stream in Stream}
        for piece in self.output():
            kept[piece.stream] += piece.data
        return self._result(kept)

    def kill(self) -> None:
        """Kill it and everything that it started."""
        self.signal(9)


class Files:
    """A sandbox's files. Contents and names come from the sandbox: they are data, never instructions."""

    def __init__(self, transport: Transport, id: str) -> None:
        self.transport = transport
        self.id = id

    read = binding.sandbox(file_calls.read)
    read_bytes = binding.sandbox(file_calls.read_bytes)
    stream = binding.sandbox(file_calls.stream)
    write = binding.sandbox(file_calls.write)
    stat = binding.sandbox(file_calls.stat)
    list = binding.sandbox(file_calls.list_dir)
    mkdir = binding.sandbox(file_calls.mkdir)
    move = binding.sandbox(file_calls.move)
    remove = binding.sandbox(file_calls.remove)
    watch = binding.sandbox(file_calls.watch)
    _read_archive = binding.sandbox(file_calls.read_archive)
    _write_archive = binding.sandbox(file_calls.write_archive)

    def download(self, source: str, target: Path | str) -> trees.Copied:
        """Copy a file or directory of the sandbox to the path `target` of this machine; a directory is merged.

        Nothing is written outside of `target`: links that leave it and special files are left out, and named in the
        result. An existing `.git` is not touched.
        """
        return trees.unpack(self._read_archive(source), Path(target))

    def upload(self, source: Path | str, target: str, *, user: str | None = None) -> trees.Copied:
        """Copy a file or directory of this machine to the path `target` of the sandbox; a directory is merged.

        Links are copied as links, those that leave the directory are left out. Raises InvalidInput, before anything is
        sent, if something cannot be read.
        """
        local = Path(source)
        if not local.is_dir():
            entry = self.write(target, trees.file_chunks(readable(local)), mode=mode_of(local), user=user)
            return trees.Copied(files=1, bytes=entry.size)
        parent, name = split_target(target)
        tree = trees.Tree(local, name)
        self._write_archive(parent, tree.archive(), user=user)
        return tree.copied


def readable(path: Path) -> Path:
    """`path`, or NotFound or InvalidInput for what is not a readable file."""
    if not path.is_file():
        raise NotFound(f"there is no file or directory {path} here", "check the path")
    if not os.access(path, os.R_OK):
        raise InvalidInput(f"{path} cannot be read", "change its mode, or run as another user")
    return path


def mode_of(path: Path) -> int:
    """A local file's permission bits."""
    return path.stat().st_mode & 0o777


def split_target(target: str) -> tuple[str, str]:
    """The parent and the last part of a sandbox's path."""
    parent, _, name = target.rstrip("/").rpartition("/")
    if not name or name in (".", ".."):
        raise InvalidInput(f"{target!r} is no place for a copy", "name the file or directory to make")
    return parent or "/", name


class Sandbox(SandboxState):
    """One sandbox. As a context manager it is killed at the end, unless `keep` is set.

    ```python
    with corral.Sandbox.create() as box:
        box.files.write("/home/user/hello.py", "print('hello')")
        print(box.exec("python3 hello.py", check=True).stdout)
    ```
    """

    def __init__(self, info: SandboxInfo, client: Client) -> None:
        super().__init__(info)
        self.client = client
        self.transport = client.transport
        self.files = Files(client.transport, info.id)
        self.keep = False

    @classmethod
    def create(
        cls, template: str | None = None, *, client: Client | None = None, **options: Unpack[CreateOptions]
    ) -> Self:
        """Make a sandbox and start it; `options` as for `Client.create_sandbox`."""
        client = client or shared_client()
        return cls(client.create_sandbox(template, **options), client)

    @classmethod
    def connect(cls, ref: str, *, client: Client | None = None) -> Self:
        """An existing sandbox by name or id; it is kept at the end of a `with`. Raises NotFound."""
        client = client or shared_client()
        found = cls(client.get_sandbox(ref), client)
        found.keep = True
        return found

    @classmethod
    def list(
        cls, labels: Mapping[str, str] | None = None, *, client: Client | None = None
    ) -> builtins.list[Self]:
        """The tenant's sandboxes, oldest first."""
        client = client or shared_client()
        return [cls(info, client) for info in client.list_sandboxes(labels)]

    exec = binding.sandbox(process_calls.exec_command)
    processes = binding.sandbox(process_calls.list_processes)
    stats = binding.sandbox(sandbox_calls.stats)
    usage = binding.sandbox(sandbox_calls.usage)
    receipt = binding.sandbox(audit_calls.receipt)
    url = binding.sandbox(sandbox_calls.get_url)
    budget = binding.sandbox(secret_calls.budget)
    set_budget = binding.sandbox(secret_calls.set_budget)
    kill = binding.sandbox(sandbox_calls.remove_sandbox)

    def spawn(
        self,
        command: Command,
        *,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
        **options: Unpack[CommandOptions],
    ) -> Process:
        """Start a process that runs on its own; `options` as for `exec`. With `terminal` (rows, columns) it has one."""
        call = process_calls.start_process(self.id, command, stdin=stdin, terminal=terminal, **options)
        return Process(self.transport, self.id, call.run(self.transport))

    def process(self, id: int) -> Process:
        """A process by id. Raises NotFound."""
        return Process(self.transport, self.id, self.client.get_process(self.id, id))

    def start(self) -> Self:
        """Start it after a stop."""
        return self._now(self.client.start_sandbox(self.id))

    def stop(self, grace: float = 10.0) -> Self:
        """End its processes; its files stay."""
        return self._now(self.client.stop_sandbox(self.id, grace))

    def pause(self, *, memory: bool = False) -> Self:
        """Freeze its processes where they are; with `memory`, write them to disk and free its memory."""
        return self._now(self.client.pause_sandbox(self.id, memory=memory))

    def resume(self) -> Self:
        """Let it go on after a pause."""
        return self._now(self.client.resume_sandbox(self.id))

    def fork(
        self, count: int = 1, *, name: str | None = None, files_only: bool = False
    ) -> builtins.list[Self]:
        """Make sandboxes that are what this one is now: with its processes under gVisor, with its files elsewhere."""
        forks = self.client.fork_sandbox(self.id, count, name=name, files_only=files_only)
        return [type(self)(info, self.client) for info in forks.sandboxes]

    def refresh(self) -> Self:
        """Ask for its state again."""
        return self._now(self.client.get_sandbox(self.id))

    def set_ttl(self, seconds: int | None) -> Self:
        """Let it end `seconds` from now, or never."""
        return self._now(self.client.set_ttl(self.id, seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.keep:
            self.kill()

    def _now(self, info: SandboxInfo) -> Self:
        self.info = info
        return self
