"""OCI runtimes as outside programs: what Corral needs of one, how one is called, and what its answers mean.

A runtime is used for two things only: to start PID 1 from a bundle, and to clean up after its end. All the
rest (signals, waiting, freezing, limits, processes) goes to the kernel or to PID 1 directly, which is faster
and has no state of a runtime's to get out of step with. So one class serves all runtimes; their differences
are `RuntimeTraits`.
"""

import asyncio
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from corral.errors import CorralError, DiskFull, HostError, NoCapacity, Unsupported
from corral.host import process
from corral.host.pipes import nowhere
from corral.model.sandbox import Isolation

_RUN_SECONDS = 60.0
_SAVE_SECONDS = 600.0
_MAX_LOG = 256 * 1024


@dataclass(frozen=True, slots=True)
class RuntimeTraits:
    """How a runtime differs from others. `flags` stand before the subcommand, `suid_flags` too where a
    template has sudo.

    `own_kernel`: the guest makes no calls of the host's kernel, so a seccomp profile for it and a view of the
    host's sysfs are useless, and what the host changes in its root is not seen inside. `saves_memory`: what runs can be
    saved, and go on from there.
    """

    name: str
    isolation: Isolation
    flags: tuple[str, ...] = ()
    suid_flags: tuple[str, ...] = ()
    own_kernel: bool = False
    saves_memory: bool = False


class Runtime:
    """One runtime program and its state directory below the run directory. `launcher`: the command line that runs it.

    Starting needs a bundle directory with `config.json`; `pid` (the host's number of PID 1, or of the process
    that holds the guest's kernel) and `runtime.log` are written into it.
    """

    def __init__(
        self, traits: RuntimeTraits, program: Path, state: Path, launcher: Sequence[str] = ()
    ) -> None:
        self.traits = traits
        self._launcher = launcher
        self._program = program
        self._state = state

    async def start(
        self,
        container: str,
        bundle: Path,
        stdin: int,
        stdout: int,
        *,
        suid: bool,
        hold: int,
        image: Path | None = None,
    ) -> int:
        """Start PID 1 with these descriptors, or go on from a saved `image`; its process number on the host. The
        runtime keeps `hold` open as long as it runs, also where it outlives the daemon. Raises what
        `classify_failure` says; then call `forget`.
        """
        log = bundle / "runtime.log"
        pid_file = bundle / "pid"
        pid_file.unlink(missing_ok=True)
        verb = ("run",) if image is None else ("restore", "--image-path", str(image))
        with nowhere() as stderr:
            child = process.spawn(
                [
                    *self._command(log, suid=suid),
                    *(*verb, "--detach", "--bundle", str(bundle), "--pid-file", str(pid_file), container),
                ],
                stdin=stdin,
                stdout=stdout,
                stderr=process.DEVNULL if self.traits.own_kernel else stderr,
                pass_fds=(hold,),
            )
        code = await _finish(child, _RUN_SECONDS)
        if code != 0:
            raise classify_failure(self.traits.name, code, _tail(log))
        return read_pid(pid_file)

    async def run(self, container: str, bundle: Path) -> None:
        """Run a bundle to its end. Raises what `classify_failure` says unless it ended with status 0."""
        log = bundle / "runtime.log"
        with nowhere() as stream:
            child = process.spawn(
                [*self._command(log), "run", "--bundle", str(bundle), container],
                stdin=stream,
                stdout=stream,
                stderr=stream,
            )
        code = await _finish(child, _RUN_SECONDS)
        if code != 0:
            raise classify_failure(self.traits.name, code, _tail(log))

    async def pause(self, container: str, log: Path) -> None:
        """Let the guest's processes stand still, while its kernel can be talked to. Raises HostError."""
        await self._tell(log, "pause", container)

    async def resume(self, container: str, log: Path) -> None:
        """Let paused ones go on. Raises HostError, also where they are not paused."""
        await self._tell(log, "resume", container)

    async def save(self, container: str, image: Path, log: Path) -> None:
        """Write what runs into the directory `image`. Paused before, it is paused after. Raises HostError, DiskFull."""
        await self._tell(
            log, "checkpoint", "--leave-running", "--compression=none", "--image-path", str(image), container
        )

    def identity(self) -> str:
        """Changes with the program: what one saved, only the same one can read. Blocks for as long as to read it."""
        status = self._program.stat()
        return f"{self.traits.name} {_digest_of(self._program, status.st_size, status.st_mtime_ns)[:16]}"

    async def _tell(self, log: Path, verb: str, *words: str) -> None:
        await asyncio.to_thread(log.unlink, missing_ok=True)
        code = await _finish(process.spawn([*self._command(log), verb, *words]), _SAVE_SECONDS)
        if code != 0:
            raise classify_failure(self.traits.name, code, _tail(log), verb)

    def forget(self, container: str) -> None:
        """Drop what the runtime keeps of a container whose processes and cgroups are gone. Idempotent, blocks
        for a moment.

        That is all that a runtime's own `delete` would do then. It takes 13 ms, and runsc's refuses as long
        as the host's init has not reaped the sandbox.
        """
        with suppress(FileNotFoundError):  # it has started none yet
            # No pattern for `glob`: each would be compiled, and the last few hundred kept.
            for path in [path for path in self._state.iterdir() if container in path.name]:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def exec_command(self, container: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` as root in a running container, with the caller's own stdio."""
        return [*self._command(Path(os.devnull)), "exec", "--user", "0:0", container, *argv]

    def _command(self, log: Path, *, suid: bool = False) -> list[str]:
        return [
            *self._launcher,
            str(self._program),
            *("--root", str(self._state), "--log", str(log), "--log-format", "json"),
            *self.traits.flags,
            *(self.traits.suid_flags if suid else ()),
        ]


async def _finish(child: process.Child, seconds: float) -> int:
    """The exit code; 128 + n for a signal. The runtime is killed when its time has passed, or the caller is
    cancelled."""
    try:
        status = await child.wait(seconds)
    except TimeoutError:
        raise HostError(
            f"{Path(child.argv[0]).name} did not answer within {seconds:.0f} seconds",
            "the host is overloaded: try again",
        ) from None
    finally:
        if child.running:
            await child.kill_and_wait()
    return status if status >= 0 else 128 - status


def _tail(log: Path) -> str:
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_LOG))
        return file.read(_MAX_LOG).decode("utf-8", "replace")
    return ""


@functools.lru_cache(maxsize=8)
def _digest_of(program: Path, _size: int, _mtime: int) -> str:
    with program.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_pid(path: Path) -> int:
    """The number in a runtime's pid file. Raises HostError if it holds none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError) as error:
        raise HostError(f"the runtime left no process number in {path.name}: {error}") from error


def last_error(log: str) -> str:
    """The message of the last error in a runtime's JSON log, else its last line; at most 500 characters."""
    last = ""
    for line in log.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            last = line.strip() or last
            continue
        if isinstance(record, Mapping) and record.get("level") in ("error", "fatal", "warning", "panic"):
            last = str(record.get("msg", "")) or last
    return last[-500:]


_CAUSES: tuple[tuple[tuple[str, ...], type[CorralError]], ...] = (
    (("no space left", "disk quota exceeded"), DiskFull),
    (("cannot allocate memory", "resource temporarily unavailable", "too many open files"), NoCapacity),
    (
        ("not supported", "unsupported", "function not implemented", "unknown cgroup", "invalid argument"),
        Unsupported,
    ),
)


def classify_failure(runtime: str, code: int, log: str, verb: str = "start") -> CorralError:
    """What a runtime's failed call to `verb` a sandbox means, from its exit code and its log."""
    reason = last_error(log) or f"exit code {code}"
    text = reason.lower()
    for signs, kind in _CAUSES:
        if any(sign in text for sign in signs):
            return kind(f"{runtime} could not {verb} the sandbox: {reason}")
    return HostError(f"{runtime} failed: {reason}")
