"""Interactive commands on a real pseudo-terminal against a real sandbox."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.root

PATIENCE = 30.0


def _as_of_a_shell() -> None:
    """What a shell that has the terminal gives its programs; whoever runs the tests may have interrupts ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A terminal with a command of ours in it."""

    def __init__(self, daemon: Any, rows: int, cols: int, *args: str) -> None:
        self.master, self._slave = pty.openpty()
        self.resize(rows, cols)
        self.before = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "corral.cli.main", *args],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**daemon.env, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=_as_of_a_shell,
        )
        self.seen = b""

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))

    def send(self, data: bytes) -> None:
        os.write(self.master, data)

    def until(self, text: bytes) -> bytes:
        """Read until `text` has come."""
        while text not in self.seen:
            if not select.select([self.master], [], [], PATIENCE)[0]:
                pytest.fail(f"{text!r} did not come; seen: {self.seen[-2000:]!r}")
            self.seen += os.read(self.master, 65536)
        before, _, self.seen = self.seen.partition(text)
        return before

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self.process.poll() is None:
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536)
        return self.process.returncode

    def restored(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._slave)
        os.close(self.master)


@pytest.fixture
def terminal(daemon: Any) -> Iterator[Callable[..., Terminal]]:
    daemon.cli("create", "--name", "tty")
    opened: list[Terminal] = []

    def start(*args: str, rows: int = 37, cols: int = 101) -> Terminal:
        opened.append(Terminal(daemon, rows, cols, *args))
        return opened[-1]

    yield start
    for item in opened:
        item.close()


def test_the_size_is_right_before_the_first_byte_proc1_proc2(terminal: Callable[..., Terminal]) -> None:
    shown = terminal("exec", "-it", "tty", "--", "stty", "size")
    assert shown.end() == 0
    assert b"37 101" in shown.seen
    assert shown.restored()


def test_a_new_size_reaches_the_program_proc2(terminal: Callable[..., Terminal]) -> None:
    program = "trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done"
    shown = terminal("exec", "-it", "tty", "--", "bash", "-c", program)
    shown.until(b"ready")
    shown.resize(50, 120)
    shown.until(b"50 120")
    assert shown.end() == 5


def test_keys_reach_the_program_as_they_are_typed_proc4(terminal: Callable[..., Terminal]) -> None:
    program = "stty raw -echo; echo ready; dd bs=1 count=1 2>/dev/null | od -An -tx1; dd bs=1 count=1 2>/dev/null | od -An -tx1"
    shown = terminal("exec", "-it", "tty", "--", "sh", "-c", program)
    shown.until(b"ready")
    shown.send(b"\x03")
    shown.until(b"03")
    shown.send(b"q")
    shown.until(b"71")
    assert shown.end() == 0
    assert shown.restored()


def test_a_shell_has_a_prompt_jobs_and_an_end_proc11_proc18(terminal: Callable[..., Terminal]) -> None:
    shown = terminal("shell", "tty")
    shown.until(b"$ ")
    shown.send(b"echo $((20 + 3)) $TERM; tty\n")
    shown.until(b"23 xterm-256color")
    shown.until(b"/dev/pts/")
    shown.send(b"sh -c 'echo st\"\"arted; sleep 1000'\n")
    shown.until(b"started")
    shown.send(b"\x03")
    shown.until(b"$ ")
    shown.send(b"exit 9\n")
    assert shown.end() == 9
    assert shown.restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_client_that_is_ended_restores_the_terminal_and_hangs_up(
    daemon: Any, terminal: Callable[..., Terminal], number: signal.Signals
) -> None:
    shown = terminal("exec", "-it", "tty", "--", "sh", "-c", "echo ready; sleep 1000")
    shown.until(b"ready")
    shown.process.send_signal(number)
    assert shown.end() == 128 + number
    assert shown.restored()
    with daemon.client() as client:
        process = client.list_processes("tty")[-1].id
        for _ in client.follow_output("tty", process):
            pass
        exit = client.get_process("tty", process).exit
    assert exit is not None
    assert exit.signal == signal.SIGHUP


def test_without_t_there_is_no_terminal_proc3(terminal: Callable[..., Terminal]) -> None:
    shown = terminal(
        "exec", "-i", "tty", "--", "sh", "-c", "test -t 0 || test -t 1 || echo none; read x; echo got $x"
    )
    shown.until(b"none")
    shown.send(b"line\n")
    shown.until(b"got line")
    assert shown.end() == 0


def test_interrupt_goes_to_the_program_and_its_code_comes_back(terminal: Callable[..., Terminal]) -> None:
    program = (
        "import signal, sys\ntry:\n print('ready', flush=True); signal.pause()\n"
        "except KeyboardInterrupt:\n print('caught', flush=True); sys.exit(6)"
    )
    shown = terminal("exec", "tty", "--", "python3", "-c", program)
    shown.until(b"ready")
    shown.send(b"\x03")
    shown.until(b"caught")
    assert shown.end() == 6


def test_guest_text_outside_of_exec_cannot_drive_the_terminal(
    daemon: Any, terminal: Callable[..., Terminal]
) -> None:
    daemon.cli("exec", "--detach", "--tag", "agent", "tty", "--", "printf", "a\\033]0;evil\\007b\\n")
    shown = terminal("logs", "-f", "tty")
    assert shown.end() == 0
    assert b"a\\x1b]0;evil\\x07b" in shown.seen
    daemon.cli("exec", "tty", "--", "touch", "/home/user/e\x1b[2Jvil")
    listed = terminal("files", "ls", "tty")
    assert listed.end() == 0
    assert b"e\x1b[2Jvil" not in listed.seen
    assert b"\\x1b[2Jvil" in listed.seen.replace(b"\r\n", b"")
