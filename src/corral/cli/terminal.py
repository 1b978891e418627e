"""The caller's terminal: its size, raw mode, and putting it back whatever happens."""

import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from corral.errors import InvalidInput

DEFAULT_SIZE = (24, 80)
_RESET = b"\x1b[?1049l\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[0m"
"""Leave what a full-screen program may have left on: other screen, hidden cursor, mouse and paste reports, colours."""
_KNOWN_TERMS = ("xterm", "screen", "tmux", "linux", "vt100", "vt220", "rxvt", "alacritty", "ansi")


def size() -> tuple[int, int]:
    """Rows and columns of the terminal, or 24 × 80 where it does not tell; never 0."""
    for fd in (1, 0, 2):
        try:
            found = os.get_terminal_size(fd)
        except OSError:
            continue
        if found.lines > 0 and found.columns > 0:
            return min(found.lines, 4096), min(found.columns, 4096)
    return DEFAULT_SIZE


def environment() -> dict[str, str]:
    """Variables that tell programs what the terminal can do. A name that images do not know is replaced."""
    term = os.environ.get("TERM", "")
    known = term.split("-")[0] in _KNOWN_TERMS
    found = {"TERM": term if known else "xterm-256color"}
    if colour := os.environ.get("COLORTERM"):
        found["COLORTERM"] = colour[:32]
    return found


def need() -> None:
    """Raise InvalidInput unless input comes from a terminal."""
    if not os.isatty(0):
        raise InvalidInput(
            "-t needs a terminal, and standard input is none", "leave -t out, or run it in a terminal"
        )


@contextmanager
def raw(on_resize: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Give every key to the program until the block ends, by whatever way; `on_resize` is called by a signal handler.

    Yields a function to call once the program has ended by itself and has left its screen tidy.
    """
    saved = termios.tcgetattr(0)
    tidy = False

    def ended() -> None:
        nonlocal tidy
        tidy = True

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: on_resize()),
        signal.SIGTERM: signal.signal(signal.SIGTERM, end),
        signal.SIGHUP: signal.signal(signal.SIGHUP, end),
    }
    try:
        tty.setraw(0, termios.TCSADRAIN)
        yield ended
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _restore(saved, tidy=tidy)


def _restore(saved: list[object], *, tidy: bool) -> None:
    try:
        if not tidy:
            os.write(sys.stdout.fileno(), _RESET)
        termios.tcsetattr(0, termios.TCSADRAIN, saved)  # type: ignore[arg-type]  # what tcgetattr gave
    except (OSError, termios.error):
        # The terminal itself is gone: nothing is left to put back.
        return
