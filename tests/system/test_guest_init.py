"""The guest's init, as PID 1 of plain namespaces over the host's own files, driven through a real link."""

import asyncio
import ctypes
import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from corral.drivers.guest_link import FifoLink, clear_spool, make_fifos
from corral.engine.session import Live, Session
from corral.errors import Conflict, CorralError, InvalidInput
from corral.host import mounts, process, syscalls
from corral.host.programs import find_program
from corral.host.tasks import TaskOwner
from corral.model.ids import ProcessId
from corral.model.process import ProcessInfo, ProcessSpec, Stream, TerminalSize
from corral.wire import guest

pytestmark = pytest.mark.root

RT_SIGACTION = {"x86_64": 13, "aarch64": 134}[os.uname().machine]
LIBC_OWN = 32  # a signal that libc keeps to itself
_SETUP = """
mount -t tmpfs tmpfs /run && mkdir -p /run/corral/io && mount --bind "$1" /run/corral/io &&
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts /dev/pts &&
mount --bind /dev/pts/ptmx /dev/ptmx && mount -t proc proc /proc && exec "$2"
"""


@dataclass
class Guest:
    """A running init, and a session with it that can be dropped and taken up again."""

    place: Path
    spool: Path
    pid: int
    session: Session | None = None
    tasks: TaskOwner = field(default_factory=TaskOwner)

    async def connect(self) -> Session:
        """What a daemon does at its start."""
        link = FifoLink(self.place, self.spool, os.pidfd_open(self.pid))
        self.session = Session(link, self.tasks, "test")
        await self.session.open()
        return self.session

    def drop(self) -> None:
        """What the end of a daemon does."""
        if self.session is not None:
            self.session.detach()
            self.session = None

    async def start(self, *argv: str, env: dict[str, str] | None = None, **spec: object) -> Live:
        """Start a process as root in /, unless said otherwise."""
        if self.session is None:
            raise Conflict("no session")
        given = {"user": "root", "cwd": "/", **spec}
        wanted = ProcessSpec(argv=argv, **given)  # type: ignore[arg-type]
        return await self.session.start(lambda id: ProcessInfo(id, wanted, datetime.now(UTC)), env or {})

    async def run(
        self, *argv: str, env: dict[str, str] | None = None, **spec: object
    ) -> tuple[int, bytes, bytes]:
        """Exit code, stdout, stderr."""
        live = await self.start(*argv, env=env, **spec)
        return await self.finish(live)

    async def finish(self, live: Live) -> tuple[int, bytes, bytes]:
        """The same, of a process that runs."""
        await until(live, lambda: live.ended)
        if live.failure is not None:
            raise live.failure
        assert live.info.exit is not None
        return live.info.exit.code, self.output(live), self.output(live, Stream.STDERR)

    def output(self, live: Live, stream: Stream = Stream.STDOUT) -> bytes:
        """All of it as yet."""
        assert self.session is not None
        data = b""
        while piece := self.session.read(live, stream, len(data), 1 << 20):
            data += piece
        return data

    def processes(self) -> list[str]:
        """Names of all processes in the guest but its init."""
        inside = Path(f"/proc/{self.pid}/ns/pid").readlink()
        names = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            try:
                if (entry / "ns/pid").readlink() == inside:
                    names.append((entry / "comm").read_text().strip())
            except OSError:
                continue  # gone meanwhile, or a zombie
        return names


async def until(live: Live, condition: Callable[[], bool]) -> None:
    """Wait for a state that the guest reports."""
    while True:
        change = live.change.next()
        if condition():
            return
        await asyncio.shield(change)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that only the host's kernel knows, which tells nobody."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.005)


@asynccontextmanager
async def running_guest(folder: Path, spool: Path | None = None) -> AsyncIterator[Guest]:
    place, spool = folder / "run", spool or folder / "io"
    place.mkdir()
    spool.mkdir(exist_ok=True)
    make_fifos(place)
    ends = [os.open(place / name, os.O_RDWR) for name in ("in", "out")]
    init = str(find_program("corral-init"))
    child = process.spawn(
        [
            "unshare",
            "--pid",
            "--mount",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            _SETUP,
            "sh",
            str(spool),
            init,
        ],
        stdin=ends[0],
        stdout=ends[1],
    )
    for end in ends:
        os.close(end)
    await eventually(lambda: bool(children_of(child.pid)))
    pid = children_of(child.pid)[0]
    guest = Guest(place, spool, pid)
    try:
        async with guest.tasks:
            await guest.connect()
            yield guest
            guest.drop()
    finally:
        await child.kill_and_wait()


def descriptors_of(pid: int) -> list[Path]:
    """Its open files."""
    return list(Path(f"/proc/{pid}/fd").iterdir())


def children_of(pid: int) -> list[int]:
    """Process numbers, zombies included."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Guest]:
    async with running_guest(tmp_path) as guest:
        yield guest


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("set -e; false", 1)],
)
async def test_exit_code(box: Guest, script: str, code: int) -> None:
    assert (await box.run("sh", "-c", script))[0] == code


async def test_command_that_does_not_exist_is_127(box: Guest) -> None:
    code, _, err = await box.run("no-such-command")
    assert code == 127
    assert err == b"corral: no-such-command: command not found\n"


async def test_file_that_is_not_executable_is_126(box: Guest) -> None:
    code, _, err = await box.run("/etc/passwd")
    assert code == 126
    assert b"Permission denied" in err


async def test_script_without_interpreter_line_is_run_by_sh(box: Guest, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    assert await box.run(str(script), "a b") == (0, f"{script} a b\n".encode(), b"")


async def test_streams_stay_apart(box: Guest) -> None:
    assert await box.run("sh", "-c", "echo out; echo err >&2") == (0, b"out\n", b"err\n")


async def test_arguments_and_environment_pass_unchanged(box: Guest) -> None:
    argv = ["printf", "%s|", "a b", "\"quotes'", "", "line\nline", "ü", "\udcff"]
    assert (await box.run(*argv))[1].decode(
        "utf-8", "surrogateescape"
    ) == "a b|\"quotes'||line\nline|ü|\udcff|"
    assert (await box.run("sh", "-c", 'echo "$A"', env={"A": "x y"}))[1] == b"x y\n"


async def test_binary_output_is_exact(box: Guest) -> None:
    script = "import sys,random; sys.stdout.buffer.write(random.Random(1).randbytes(10_000_000))"
    code, out, _ = await box.run(find_python(), "-c", script)
    import random

    assert code == 0
    assert out == random.Random(1).randbytes(10_000_000)


def find_python() -> str:
    return str(find_program("python3"))


async def test_stdin_is_at_its_end_unless_asked_for(box: Guest) -> None:
    assert await box.run("cat") == (0, b"", b"")


async def test_large_input_comes_back_whole(box: Guest) -> None:
    data = os.urandom(20_000_000)
    live = await box.start("cat", stdin=True)
    assert box.session is not None
    await box.session.feed(live, data)
    await box.session.close_stdin(live)
    code, out, _ = await box.finish(live)
    assert code == 0
    assert out == data


async def test_input_that_nobody_reads_is_consumed(box: Guest) -> None:
    live = await box.start("sh", "-c", "exec <&-; echo closed; sleep 1000", stdin=True)
    assert box.session is not None
    await until(live, lambda: box.output(live) == b"closed\n")
    await box.session.feed(live, b"x" * 1_000_000)
    assert live.report is not None
    await box.session.send(guest.kill(live.info.id))
    assert (await box.finish(live))[0] == 137


async def test_exit_is_published_after_the_last_byte(box: Guest) -> None:
    for _ in range(50):
        code, out, _ = await box.run("sh", "-c", "head -c 200000 /dev/zero")
        assert (code, len(out)) == (0, 200_000)


async def test_background_process_does_not_delay_the_exit_and_lives_on(box: Guest) -> None:
    code, out, _ = await box.run(
        "sh", "-c", "(trap '' HUP; while :; do echo x || exit; sleep 0.01; done) & echo started"
    )
    assert code == 0
    assert b"started\n" in out
    assert "sh" in box.processes()


async def test_prompt_without_newline_is_delivered_at_once(box: Guest) -> None:
    live = await box.start("sh", "-c", "printf '> '; read line; echo got $line", stdin=True)
    await until(live, lambda: box.output(live) == b"> ")
    assert box.session is not None
    await box.session.feed(live, b"hello\n")
    assert (await box.finish(live))[1] == b"> got hello\n"


async def test_users_groups_and_defaults(box: Guest) -> None:
    code, out, _ = await box.run("sh", "-c", "id -u; id -g; echo $HOME $USER $LOGNAME; umask", user="nobody")
    assert (code, out.split(b"\n")[2:]) == (0, [b"/nonexistent nobody nobody", b"0022", b""])
    assert (await box.run("id", "-u", user="12345"))[1] == b"12345\n"
    assert (await box.run("sh", "-c", "id -u; id -g", user="12345:77"))[1] == b"12345\n77\n"
    assert (await box.run("sh", "-c", "echo $HOME", env={"HOME": "/elsewhere"}))[1] == b"/elsewhere\n"


async def test_root_is_known_where_there_is_no_table_of_users(box: Guest, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    inside = ["nsenter", "--target", str(box.pid), "--mount"]
    await process.run(
        [*inside, "mount", "--bind", str(tmp_path / "empty"), "/etc/passwd"], timeout=60, check=True
    )
    assert (await box.run("sh", "-c", "id -u; id -g; echo $HOME $USER"))[1] == b"0\n0\n/ root\n"
    with pytest.raises(InvalidInput, match="no user 'nobody'"):
        await box.run("true", user="nobody")


async def test_no_descriptor_or_privilege_of_init_reaches_a_process(box: Guest) -> None:
    _, out, _ = await box.run(
        find_python(), "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    )
    assert out == b"[0, 1, 2, 3]\n"  # 3 is the listing itself
    _, out, _ = await box.run("grep", "CapBnd", "/proc/self/status")
    assert not int(out.split()[1], 16) & 1 << 19  # CAP_SYS_PTRACE
    assert (await box.run("readlink", "/proc/1/fd/0"))[0] != 0


async def test_what_never_ran_is_never_told_to_run(box: Guest) -> None:
    for _ in range(300):
        live = await box.start("true", user="nosuch")
        await until(live, lambda live=live: live.report is not None)  # type: ignore[misc]
        assert live.report is not None
        assert live.report.state is guest.GuestState.FAILED


async def test_start_failures_are_told_apart(box: Guest) -> None:
    with pytest.raises(InvalidInput, match="no user 'nosuch'"):
        await box.run("true", user="nosuch")
    with pytest.raises(InvalidInput, match="working directory '/nowhere'"):
        await box.run("true", cwd="/nowhere")
    with pytest.raises(CorralError, match="working directory '/root'"):
        await box.run("true", cwd="/root", user="nobody")
    assert (await box.run("pwd", cwd="/tmp"))[1] == b"/tmp\n"  # the guest goes on


async def test_terminal_has_its_size_at_once_and_follows_it(box: Guest) -> None:
    script = "stty size; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done"
    live = await box.start("sh", "-c", script, terminal=TerminalSize(33, 101))
    await until(live, lambda: box.output(live).endswith(b"ready\r\n"))
    assert box.session is not None
    await box.session.send(guest.resize(live.info.id, TerminalSize(50, 90)))
    assert (await box.finish(live))[:2] == (5, b"33 101\r\nready\r\n50 90\r\n")


async def test_terminal_input_interrupt_and_end(box: Guest) -> None:
    assert box.session is not None
    live = await box.start("cat", terminal=TerminalSize(24, 80))
    await box.session.feed(live, b"abc\n")
    await until(live, lambda: box.output(live) == b"abc\r\nabc\r\n")
    await box.session.close_stdin(live)
    assert (await box.finish(live))[0] == 0
    live = await box.start("sleep", "1000", terminal=TerminalSize(24, 80))
    await until(live, lambda: live.report is not None)
    await box.session.feed(live, b"\x03")
    assert (await box.finish(live))[0] == 130


async def test_signals_that_the_daemons_starter_ignored_are_not_ignored_inside(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGRTMAX, LIBC_OWN)
    former = {number: _set_action(number, struct.pack("4Q", 1, 0, 0, 0)) for number in numbers}
    try:
        async with running_guest(tmp_path) as box:
            code, out, _ = await box.run("grep", "SigIgn", "/proc/self/status")
    finally:
        for number, action in former.items():
            _set_action(number, action)
    assert (code, out.split()) == (0, [b"SigIgn:", b"0000000000000000"])


def _set_action(number: int, action: bytes) -> bytes:
    """rt_sigaction(2) itself, for a libc refuses the signals that it keeps to itself. Returns the former action."""
    libc, former = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(32)
    if libc.syscall(RT_SIGACTION, number, action, former, 8):
        raise OSError(ctypes.get_errno(), "rt_sigaction")
    return former.raw


async def test_terminal_belongs_to_its_user_and_interactive_shell_returns(box: Guest) -> None:
    code, out, _ = await box.run("sh", "-c", "stat -c %u $(tty)", user="12345", terminal=TerminalSize(24, 80))
    assert (code, out) == (0, b"12345\r\n")
    assert (await box.run("bash", "-ic", "true"))[0] == 0
    assert (await box.run("bash", "-ic", "exit 3", terminal=TerminalSize(24, 80)))[0] == 3


async def test_unknown_terminal_name_falls_back(box: Guest) -> None:
    code, out, _ = await box.run(
        "sh", "-c", "echo $TERM", env={"TERM": "no-such-terminal"}, terminal=TerminalSize(24, 80)
    )
    assert code == 0
    assert out.strip() in (b"xterm-256color", b"xterm", b"vt100")


@pytest.mark.parametrize("terminal", [None, TerminalSize(24, 80)])
async def test_kill_takes_the_whole_tree(box: Guest, terminal: TerminalSize | None) -> None:
    script = "setsid sleep 1001 & (setsid sh -c 'sleep 1002 & sleep 1003' &) ; nohup sleep 1004 & sleep 1005"
    other = await box.start("sleep", "1006")
    live = await box.start("sh", "-c", script, terminal=terminal)
    await eventually(lambda: box.processes().count("sleep") == 6)
    assert box.session is not None
    await box.session.send(guest.kill(live.info.id))
    await until(live, lambda: live.ended)
    await eventually(lambda: box.processes() == ["sleep"])
    assert not other.ended


async def test_kill_reaches_what_a_finished_process_left_behind(box: Guest) -> None:
    live = await box.start("sh", "-c", "setsid sleep 1001 & true")
    await until(live, lambda: live.ended)
    assert box.session is not None
    await box.session.send(guest.kill(live.info.id))
    await eventually(lambda: not box.processes())


async def test_kill_wins_against_a_fork_bomb(box: Guest) -> None:
    script = "ulimit -u 300; bomb() { bomb | bomb & }; bomb; sleep 1000"
    live = await box.start("bash", "-c", script, user="54321")
    await eventually(lambda: len(box.processes()) > 50)
    assert box.session is not None
    await box.session.send(guest.kill(live.info.id))
    await eventually(lambda: not box.processes())


async def test_signal_goes_to_one_process_group_only(box: Guest) -> None:
    first = await box.start(
        "sh", "-c", "trap 'echo caught; exit 9' USR1; echo up; while :; do sleep 0.02; done"
    )
    second = await box.start("sleep", "1000")
    await until(first, lambda: box.output(first) == b"up\n")
    assert box.session is not None
    await box.session.send(guest.signal(first.info.id, 10))
    assert (await box.finish(first))[0] == 9
    assert not second.ended


async def test_no_zombies_after_many_processes(box: Guest) -> None:
    for _ in range(10):
        batch = [await box.start("sh", "-c", "true & true & exit 3") for _ in range(50)]
        for live in batch:
            assert (await box.finish(live))[0] == 3
    assert box.session is not None
    for live in list(box.session.processes.values()):
        await box.session.forget(live)
    assert (await box.run("true"))[0] == 0
    assert children_of(box.pid) == []
    assert len(descriptors_of(box.pid)) < 16


async def test_many_at_once(box: Guest) -> None:
    lives = [await box.start("sh", "-c", f"read x; echo {n} $x", stdin=True) for n in range(300)]
    assert box.session is not None
    for live in lives:
        await box.session.feed(live, b"go\n")
    for n, live in enumerate(lives):
        assert (await box.finish(live))[:2] == (0, f"{n} go\n".encode())


async def test_processes_outlive_the_daemon(box: Guest, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    waiting = await box.start("sh", "-c", f"echo before; read x <{go}; echo after $x; exit 6")
    talking = await box.start("cat", stdin=True)
    await until(waiting, lambda: box.output(waiting) == b"before\n")
    assert box.session is not None
    await box.session.feed(talking, b"one\n")
    box.drop()
    go.write_text("news\n")
    await eventually(lambda: "sh" not in box.processes())
    session = await box.connect()
    waiting, talking = session.processes[waiting.info.id], session.processes[talking.info.id]
    assert (await box.finish(waiting))[:2] == (6, b"before\nafter news\n")
    await session.feed(talking, b"two\n")
    await session.close_stdin(talking)
    assert (await box.finish(talking))[:2] == (0, b"one\ntwo\n")


async def test_much_happens_while_no_daemon_listens(box: Guest) -> None:
    """More reports than a FIFO holds: none may be lost, and the guest may not hang."""
    lives = [
        await box.start("sh", "-c", f"for i in $(seq 200); do echo {n}; done; exit {n % 100}")
        for n in range(200)
    ]
    box.drop()
    await eventually(lambda: not box.processes())
    session = await box.connect()
    for n, live in enumerate(lives):
        code, out, _ = await box.finish(session.processes[live.info.id])
        assert (code, out) == (n % 100, f"{n}\n".encode() * 200)


async def test_half_a_command_of_a_dead_daemon_is_dropped(box: Guest) -> None:
    frames = guest.exec_frames(ProcessId(77), argv=["echo", "x" * 9000], env={}, cwd="/", user="root")
    assert box.session is not None
    await box.session.send(*frames[:-1])
    box.drop()
    await box.connect()
    assert await box.run("echo", "whole") == (0, b"whole\n", b"")


async def test_wrong_frames_do_not_stop_init(box: Guest) -> None:
    live = await box.start("sleep", "1000")
    await until(live, lambda: live.report is not None)
    fd = os.open(box.place / "in", os.O_WRONLY)
    for kind in (*range(2, 9), 11, 12, 64, 255):  # all but those that would end something
        for ident in (0, 0xFFFFFFFF, live.info.id):
            if kind != 8:
                os.write(fd, struct.pack("<BBHI", kind, 0, 1, ident) + b"\0")
    os.write(fd, b"\x03\x00\xff\xff" + b"\xff" * 100)
    os.close(fd)
    await eventually(lambda: not unread(box.place / "in"))
    box.drop()
    await box.connect()
    assert await box.run("echo", "alive") == (0, b"alive\n", b"")


async def test_what_is_announced_is_found_by_whoever_starts_then(box: Guest) -> None:
    def send(*frames: bytes) -> None:
        fd = os.open(box.place / "in", os.O_WRONLY)
        for frame in frames:
            os.write(fd, frame)
        os.close(fd)

    send(guest.announce("/run/told/.name", b"one"))
    shown = "umask 0; stat -c '%u:%g %a' /run/told /run/told/.name; cat /run/told/.name"
    assert await box.run("sh", "-c", shown) == (0, b"0:0 755\n0:0 644\none", b"")
    await box.run(
        "sh", "-c", "cd /run; echo kept >kept; ln -sf /run/kept told/.name; mkfifo told/.name.new blocked"
    )
    send(guest.announce("/run/told/.name", b"another"), guest.announce("/run/kept/below", b"x"))
    send(guest.announce("/tmp/elsewhere", b"x"), guest.announce("/run/blocked", b"x"))
    found = "cat told/.name kept blocked; ls -A told; test ! -e /tmp/elsewhere && ! test -L told/.name"
    assert await box.run("sh", "-c", f"cd /run; {found}") == (0, b"anotherkept\nx.name\n", b"")


def unread(fifo: Path) -> int:
    """Bytes in a FIFO."""
    fd = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4), "little")
    finally:
        os.close(fd)


async def test_spool_that_the_guest_replaced_reads_as_empty(box: Guest) -> None:
    live = await box.start("sh", "-c", "echo x; sleep 1000")
    await until(live, lambda: box.output(live) == b"x\n")
    path = box.spool / f"{live.info.id}.out"
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert box.output(live) == b""
    path.unlink()
    os.mkfifo(path)
    assert box.output(live) == b""
    path.unlink()
    path.mkdir()
    assert box.output(live) == b""
    assert box.session is not None
    await box.session.send(guest.kill(live.info.id))
    await box.session.forget(live)


async def test_spool_is_freed_from_the_front(box: Guest) -> None:
    live = await box.start("sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; printf end")
    await until(live, lambda: live.ended)
    link = FifoLink(box.place, box.spool, os.pidfd_open(box.pid))
    link.free_spool(live.info.id, Stream.STDOUT, 990_000)
    data = link.read_spool(live.info.id, Stream.STDOUT, 0, 2_000_000)
    link.close()
    assert len(data) == 1_000_003
    assert data[:900_000].strip(b"\0") == b""
    assert data.endswith(b"x" * 10_000 + b"end")


async def test_full_disk_drops_output_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    syscalls.mount("tmpfs", str(folder), "tmpfs", 0, "size=1m")
    try:
        async with running_guest(tmp_path, folder) as box:
            live = await box.start("sh", "-c", "head -c 3000000 /dev/zero; exit 4")
            assert (await box.finish(live))[0] == 4
            assert live.report is not None
            assert live.report.flags & guest.GuestFlag.STDOUT_TRUNCATED
    finally:
        mounts.unmount(folder)


async def test_shutdown_terminates_then_kills(box: Guest) -> None:
    polite = await box.start(
        "sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    )
    stubborn = await box.start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done")
    shell = await box.start("bash", "-i", terminal=TerminalSize(24, 80))
    await until(polite, lambda: box.output(polite) == b"up\n")
    await until(stubborn, lambda: box.output(stubborn) == b"up\n")
    assert box.session is not None
    await box.session.send(guest.shutdown(0.3))
    await until(stubborn, lambda: stubborn.ended)
    await until(shell, lambda: shell.ended)
    assert box.output(polite) == b"up\nbye\n"
    assert polite.info.exit is not None
    assert polite.info.exit.code == 0
    await eventually(lambda: box.session is not None and box.session.closed)


async def test_stale_spool_is_cleared_before_a_start(tmp_path: Path) -> None:
    place, spool = tmp_path / "run", tmp_path / "io"
    place.mkdir()
    spool.mkdir()
    make_fifos(place)
    (place / "processes" / "1.json").write_text("{}")
    for name in ("1.out", "2.out", "2.err", "junk"):
        (spool / name).write_text("x")
    (spool / "3.out").mkdir()
    clear_spool(spool, place)
    assert sorted(path.name for path in spool.iterdir()) == ["1.out", "3.out"]


# -- the files commands
# ---------------------------------------------------------------------------------------------


def framed(*pieces: bytes) -> bytes:
    return b"".join(len(piece).to_bytes(4, "big") + piece for piece in (*pieces, b""))


def files(*argv: str, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([find_program("corral-init"), *argv], input=data, capture_output=True, check=False)


def test_write_replaces_and_makes_parents(tmp_path: Path) -> None:
    target = tmp_path / "a/b/file"
    assert files("write", str(target), "640", "123", "456", data=framed(b"one")).returncode == 0
    assert (
        files(
            "write", str(target), "600", "123", "456", data=framed(b"two" * 50_000, b"two" * 50_000)
        ).returncode
        == 0
    )
    status = target.stat()
    assert target.read_bytes() == b"two" * 100_000
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o600, 123, 456)
    assert (tmp_path / "a").stat().st_uid == 123
    assert [path.name for path in target.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("cut", [0, 3, 4, 6, 7, 9])
def test_a_write_whose_input_ends_too_early_changes_nothing(tmp_path: Path, cut: int) -> None:
    (tmp_path / "file").write_text("former")
    assert files("write", str(tmp_path / "file"), "600", "0", "0", data=framed(b"new")[:cut]).returncode == 5
    assert (tmp_path / "file").read_text() == "former"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_write_goes_through_links_and_refuses_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "fifo")
    assert files("write", str(tmp_path / "link"), "644", "0", "0", data=framed(b"new")).returncode == 0
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    assert files("write", str(tmp_path / "fifo"), "644", "0", "0").returncode == 3
    assert files("write", str(tmp_path), "644", "0", "0").returncode == 3
    assert files("write", str(tmp_path / "real" / "below"), "644", "0", "0").returncode == 3


def test_mkdir_move_and_remove(tmp_path: Path) -> None:
    folder = tmp_path / "x/y"
    assert files("mkdir", str(folder), "750", "12", "34").stdout == b"made\n"
    assert files("mkdir", str(folder), "750", "12", "34").stdout == b"existed\n"
    assert (folder.stat().st_mode & 0o7777, folder.stat().st_uid) == (0o750, 12)
    (folder / "f").write_text("x")
    (folder / "outside").symlink_to("/etc")
    assert files("move", str(folder), str(tmp_path / "z")).returncode == 0
    assert files("move", str(folder), str(tmp_path / "q")).returncode == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "f").write_text("x")
    assert files("move", str(tmp_path / "z"), str(tmp_path / "full")).returncode == 3
    assert files("remove", str(tmp_path / "z")).returncode == 0
    assert not (tmp_path / "z").exists()
    assert Path("/etc/passwd").exists()
    assert files("remove", str(tmp_path / "z")).returncode == 2


def test_remove_of_a_deep_and_wide_tree(tmp_path: Path) -> None:
    script = "import os\nfor i in range(600):\n os.mkdir('d'); open('f','w').close(); os.chdir('d')"
    top = tmp_path / "top"
    top.mkdir()
    subprocess.run(["python3", "-c", script], cwd=top, check=True)
    assert files("remove", str(top)).returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv", [["write", "relative", "644", "0", "0"], ["write", "/x", "9", "0", "0"], ["nonsense"]]
)
def test_wrong_use_is_refused(argv: list[str]) -> None:
    done = files(*argv)
    assert done.returncode == 5
    assert re.match(rb"usage: ", done.stderr)
