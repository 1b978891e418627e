"""Running a process in a sandbox with this command's own input and output.

The main thread follows output. Input is read and posted by a thread of its own, as it comes, so that a program can read
keys while it writes; new sizes of the terminal go through a queue, since a signal handler may not use the connection.
What the process does decides when the command ends: input that never ends holds nothing up.
"""

import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from corral.cli import terminal
from corral.cli.output import note
from corral.errors import Conflict, CorralError, DaemonUnreachable
from corral.model.process import Stream
from corral.protocol.processes import ProcessInfo

if TYPE_CHECKING:
    from corral.sdk.client import Client

_PIECE = 1024 * 1024
"""Bytes of input that one request carries: a request for each pipe's fill would take four times as long."""


class Session:
    """One process, joined to this command's standard streams."""

    def __init__(self, client: "Client", ref: str, info: ProcessInfo) -> None:
        self._client = client
        self._ref = ref
        self._info = info
        self._sizes: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._failure: CorralError | None = None
        self._interrupts = 0
        self._over = False

    def run(self, *, forward_input: bool) -> int:
        """Follow to the end; the exit code. Ctrl-C goes to the process, a second one kills it."""
        on_terminal = self._info.terminal is not None
        if forward_input:
            self._start(self._feed)
        if on_terminal:
            self._start(self._resize)
        mode = terminal.raw(self._size_changed) if on_terminal else nullcontext(lambda: None)
        try:
            with mode as ended:
                code = self._follow_through(ended)
        finally:
            self._over = True
        if self._failure is not None:
            raise self._failure
        return code

    def _follow_through(self, ended: Callable[[], None]) -> int:
        stdout, stderr = 0, 0
        while True:
            follow = self._client.follow_output(self._ref, self._info.id, stdout, stderr)
            try:
                for piece in follow:
                    after = piece.offset + len(piece.data)
                    if piece.stream is Stream.STDOUT:
                        stdout = after
                    else:
                        stderr = after
                    _write(1 if piece.stream is Stream.STDOUT else 2, piece.data)
                ended()
                return self._exit_code()
            except KeyboardInterrupt:
                self._interrupt()
            except SystemExit:
                self._signal(signal.SIGHUP)
                raise

    def _exit_code(self) -> int:
        exit = self._client.get_process(self._ref, self._info.id).exit
        if exit is None:
            raise DaemonUnreachable("the daemon lost the process before it ended")
        if exit.reason == "timeout":
            note("error: the command's time limit passed\nhint: raise it with --timeout")
            return 124
        return exit.code

    def _interrupt(self) -> None:
        self._interrupts += 1
        self._signal(signal.SIGINT if self._interrupts == 1 else signal.SIGKILL)

    def _signal(self, number: int) -> None:
        try:
            self._client.signal_process(self._ref, self._info.id, number)
        except CorralError as error:
            note(f"the process could not be signalled: {error.message}")

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True).start()

    def _size_changed(self) -> None:
        self._sizes.put(terminal.size())

    def _resize(self) -> None:
        while True:
            rows, cols = self._sizes.get()
            try:
                self._client.resize_terminal(self._ref, self._info.id, rows, cols)
            except CorralError:
                # A size that did not arrive is put right by the next one; output goes on meanwhile.
                continue

    def _feed(self) -> None:
        on_terminal = self._info.terminal is not None
        try:
            while (data := _read()) and not self._over:
                self._client.write_stdin(self._ref, self._info.id, data)
            if not on_terminal and not self._over:
                self._client.close_stdin(self._ref, self._info.id)
        except Conflict:
            return  # the process has ended or closed its input; its exit code tells
        except CorralError as error:
            # Input with a hole in it must not pass for the whole: end the process, and say why.
            self._failure = error
            self._signal(signal.SIGKILL)


def _read() -> bytes:
    """What is there now; nothing at its end."""
    try:
        data = os.read(0, _PIECE)
    except OSError:
        return b""
    with suppress(OSError):
        while data and len(data) < _PIECE and not os.isatty(0) and select.select([0], [], [], 0)[0]:
            more = os.read(0, _PIECE - len(data))
            if not more:
                break
            data += more
    return data


def _write(fd: int, data: bytes) -> None:
    sys.stdout.flush()
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
