"""Commands that are run for their effect, in sandboxes of the engine's own: what they print, and what their end means."""

from collections.abc import Callable

from corral.engine.processes import StartRequest
from corral.errors import CommandFailed, Timeout, UpstreamFailed
from corral.model.process import Exit

STEP_SECONDS = 3600.0
"""The longest that one command of a build may take."""


class CommandLines:
    """Output of a command as lines: bounded, whatever it prints. `last` is the last of them."""

    _LONGEST = 4096

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._rest = b""
        self.last = ""

    def feed(self, data: bytes) -> None:
        """Take output as it comes."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > self._LONGEST:
            self._line(self._rest)
            self._rest = b""

    def end(self) -> None:
        """There is no more."""
        if self._rest:
            self._line(self._rest)

    def _line(self, line: bytes) -> None:
        text = line[: self._LONGEST].decode("utf-8", "replace")
        if text.strip():
            self.last = "".join(
                char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text
            )
            self._tell(self.last)


def check_exit(request: StartRequest, exit: Exit, *, last: str = "") -> None:
    """Raise the error that a command's end means; `last`: the last line that it printed, where nobody saw them."""
    shown = " ".join(request.argv[-1:] if len(request.argv) > 2 else request.argv)[:200]
    if exit.reason == "timeout":
        raise Timeout(f"`{shown}` took longer than {STEP_SECONDS:g} seconds")
    if exit.reason == "lost":
        raise UpstreamFailed(f"the build's sandbox ended while `{shown}` ran")
    if exit.code != 0:
        why = " for want of memory: give the build more, --memory" if exit.reason == "oom" else ""
        raise CommandFailed(
            f"`{shown}` failed with exit code {exit.code}{why}{f': {last}' if last else ''}",
            "see the lines above; what a build may reach is given by --allow",
        )
