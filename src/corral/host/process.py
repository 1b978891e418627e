"""The one spawner of outside programs.

Children are started with `subprocess` (vfork, 0.5 ms) and watched through a pidfd registered with the
running event loop. No SIGCHLD handler and no child watcher takes part, so that asyncio's and uvloop's loops
behave alike and a loop may run in any thread. Each child leads its own session: it has no terminal to ask
questions on, and it is killed with everything it started. What still escapes is a program that makes a
session of its own; cgroups are for those. What is run to its end is also killed by the kernel when the daemon is: else
it would go on for nobody, and write where the next daemon tidies up.

A child's standard input is /dev/null or an anonymous file, never the daemon's. Its environment is a short
list of the daemon's variables, and what the caller adds. Secrets are passed by `input`, never by argument.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corral.errors import HostError, Unsupported
from corral.host.pipes import Collector, Pipes, input_file
from corral.host.programs import find_program, search_path

DEVNULL = subprocess.DEVNULL
CHUNK = 256 * 1024
# After SIGKILL a process can stay for as long as the kernel holds it in an uninterruptible call.
_KILL_PATIENCE = 10.0
_INHERITED = (
    *("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("NODE_EXTRA_CA_CERTS", "CORRAL_CACHE_DIR", "CORRAL_DATA_DIR"),
)


@dataclass(frozen=True, slots=True)
class Completed:
    """How a program ended.

    `exit_code` is 128 + signal where a signal ended it. `truncated`: one of the outputs went over the limit
    and its rest was dropped. `timed_out`: it was killed, with its process group, when its time had passed.
    """

    argv: tuple[str, ...]
    exit_code: int
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def last_line(self) -> str:
        """The last line of its error output (else of its output), at most 500 characters: why it failed."""
        text = (self.stderr.strip() or self.stdout.strip()).decode("utf-8", "replace")
        return text.rpartition("\n")[2][-500:]

    def check(self) -> Self:
        """Itself; raises HostError, with the program's own last line, unless it is `ok`."""
        if self.ok:
            return self
        program = Path(self.argv[0]).name
        if self.timed_out:
            raise HostError(f"{program} did not finish in time and was killed: {self.last_line}")
        raise HostError(f"{program} failed with exit code {self.exit_code}: {self.last_line}")


class Child:
    """A running program. Belongs to the event loop that it was spawned on."""

    def __init__(self, process: "subprocess.Popen[bytes]", argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self.pid = process.pid
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        status = self._process.poll()
        if status is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if not self._exited.done():
            self._exited.set_result(status)

    @property
    def running(self) -> bool:
        """Whether it has not been seen to end."""
        return not self._exited.done()

    @property
    def returncode(self) -> int | None:
        """None while it runs, then its status; minus the signal where one ended it."""
        return self._exited.result() if self._exited.done() else None

    async def wait(self, timeout: float | None = None) -> int:  # noqa: ASYNC109 - a kill must follow, not a cancel
        """Its status (minus the signal where one ended it). Raises TimeoutError, and leaves it running."""
        return await asyncio.wait_for(asyncio.shield(self._exited), timeout)

    def send_signal(self, number: int) -> None:
        """Signal the program itself. Nothing happens if it has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL to it and all of its process group. Nothing happens if it has ended."""
        if self.running:  # not reaped yet: the number cannot have passed to another process
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def kill_and_wait(self) -> None:
        """Kill it and wait, for at most ten seconds, until it is gone."""
        self.kill()
        with contextlib.suppress(TimeoutError):
            await self.wait(_KILL_PATIENCE)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A child's environment: the harmless part of the daemon's own (home, locale, proxies, CA files), and
    `extra`.
    """
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env.setdefault("LANG", "C.UTF-8")
    env["PATH"] = search_path()
    return {**env, **(extra or {})}


def spawn(
    argv: Sequence[str],
    *,
    stdin: int = DEVNULL,
    stdout: int = DEVNULL,
    stderr: int = DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    pass_fds: Collection[int] = (),
    user: int | None = None,
    group: int | None = None,
    extra_groups: Sequence[int] | None = None,
    survives: bool = True,
) -> Child:
    """Start a program whose life the caller owns; needs a running event loop.

    `stdin`, `stdout`, `stderr`: descriptors, which stay the caller's. `env` is added to `environment()`.
    With `user` or `group` it runs under those ids, and with no supplementary groups unless given. One that does not
    `survive` the calling thread's end is killed with it, unless it takes other ids. Raises
    Unsupported if the program is missing, HostError if it cannot be started.
    """
    if (user is not None or group is not None) and extra_groups is None:
        extra_groups = ()
    program = argv[0] if "/" in argv[0] else str(find_program(argv[0]))
    tied = () if survives else (str(find_program("setpriv")), "--pdeathsig", "KILL", "--")
    try:
        if tied and not os.access(program, os.X_OK):
            raise FileNotFoundError(f"{program} cannot be run")
        process = subprocess.Popen(
            [*tied, program, *argv[1:]],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment(env),
            cwd=cwd,
            pass_fds=tuple(pass_fds),
            user=user,
            group=group,
            extra_groups=extra_groups,
            start_new_session=True,
            bufsize=0,
        )
    except FileNotFoundError as error:
        if not Path(program).exists():
            raise Unsupported(f"the program {program} does not exist on this host") from error
        raise HostError(f"cannot start {program}: {error}") from error
    except (OSError, ValueError) as error:
        raise HostError(f"cannot start {program}: {error}") from error
    return Child(process, argv)


async def run(
    argv: Sequence[str],
    *,
    timeout: float,  # noqa: ASYNC109 - a kill of the whole group must follow, not a cancel
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    output_limit: int = 1 << 20,
    check: bool = False,
    pass_fds: Collection[int] = (),
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run a program to its end.

    `timeout` in seconds; then, and on cancellation, its process group is killed. `output_limit` bytes of
    each output are kept, the rest is dropped. `on_line` sees each line of both outputs as it comes. What
    the program leaves in the background is not waited for. With `check`, raises HostError where it did not
    succeed.
    """
    with Pipes(output_limit, on_line) as pipes, input_file(input) as stdin:
        child = spawn(
            argv, stdin=stdin, stdout=pipes.out.write_end, stderr=pipes.err.write_end,
            env=env, cwd=cwd, pass_fds=pass_fds, survives=False,
        )  # fmt: skip
        pipes.listen(on_error=child.kill)
        timed_out = False
        try:
            await child.wait(timeout)
        except TimeoutError:
            timed_out = True
        finally:
            if child.running:
                await child.kill_and_wait()
        pipes.drain()
        done = _completed(child, pipes.out, pipes.err, timed_out=timed_out)
    return done.check() if check else done


class Stream:
    """A running program with pipes at both ends, for data of any size in bounded memory. Made by
    `stream()`.
    """

    def __init__(self, child: Child, stdin: int, stdout: int, stderr: "Collector") -> None:
        self._child = child
        self._stdin: int | None = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._loop = asyncio.get_running_loop()
        self.timed_out = False

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._child.pid

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raises BrokenPipeError if the program no longer reads."""
        view = memoryview(data)
        while view:
            if self._stdin is None:
                raise BrokenPipeError("the input is closed")
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await self._ready(self._stdin, self._loop.add_writer, self._loop.remove_writer)

    def close_stdin(self) -> None:
        """End its input. Idempotent."""
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    async def read(self, size: int = CHUNK) -> bytes:
        """At most `size` bytes of its output; empty at the end."""
        while True:
            try:
                return os.read(self._stdout, size)
            except BlockingIOError:
                await self._ready(self._stdout, self._loop.add_reader, self._loop.remove_reader)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def wait(self) -> Completed:
        """End its input and wait for its end. Read its output first, or it may never end before its time is
        up.
        """
        self.close_stdin()
        await self._child.wait()
        self._stderr.drain()
        return _completed(self._child, None, self._stderr, timed_out=self.timed_out)

    async def _ready(self, fd: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        add(fd, _wake, ready)
        try:
            await ready
        finally:
            remove(fd)

    def expire(self) -> None:
        """Kill it because its time has passed."""
        self.timed_out = True
        self._child.kill()

    async def close(self) -> None:
        """Kill it if it runs, and close everything."""
        self.close_stdin()
        try:
            if self._child.running:
                await self._child.kill_and_wait()
        finally:
            os.close(self._stdout)


@contextlib.asynccontextmanager
async def stream(
    argv: Sequence[str],
    *,
    timeout: float,  # noqa: ASYNC109 - a kill of the whole group must follow, not a cancel
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    stderr_limit: int = 1 << 16,
    on_line: Callable[[str], None] | None = None,
    pass_fds: Collection[int] = (),
) -> AsyncIterator[Stream]:
    """Run a program whose input is written and output read piece by piece. It is killed when the block is
    left before its end, and `timeout` seconds after its start. `on_line` sees the lines of its error
    output.
    """
    with Pipes(stderr_limit, on_line) as pipes:
        stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
        try:
            child = spawn(
                argv, stdin=stdin_read, stdout=pipes.out.write_end, stderr=pipes.err.write_end,
                env=env, cwd=cwd, pass_fds=pass_fds, survives=False,
            )  # fmt: skip
        except BaseException:
            os.close(stdin_write)
            raise
        finally:
            os.close(stdin_read)
        os.set_blocking(stdin_write, False)
        pipes.err.listen(on_error=child.kill)
        handle = Stream(child, stdin_write, pipes.out.detach(), pipes.err)
        timer = asyncio.get_running_loop().call_later(timeout, handle.expire)
        try:
            yield handle
        finally:
            timer.cancel()
            await handle.close()


def _wake(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _completed(child: Child, out: Collector | None, err: Collector, *, timed_out: bool) -> Completed:
    status = child.returncode
    if status is None:
        raise HostError(
            f"{child.argv[0]} (process {child.pid}) was killed and does not go away",
            "the kernel holds it in an uninterruptible call: look at the host's disks and kernel log",
        )
    number = -status if status < 0 else None
    return Completed(
        argv=child.argv,
        exit_code=128 + number if number else status,
        signal=number,
        stdout=out.kept() if out else b"",
        stderr=err.kept(),
        timed_out=timed_out,
        truncated=err.truncated or (out is not None and out.truncated),
    )
