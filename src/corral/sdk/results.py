"""What commands give back."""

from dataclasses import dataclass

from corral.errors import CommandFailed, Timeout
from corral.model.process import Stream
from corral.protocol.processes import ExecResult, Exit


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that has ended. `exit_code` is 128 + n after signal n; `reason` is empty, `timeout`, `oom` or `lost`.

    `truncated`: more was written than was kept; what is kept is the beginning.
    """

    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool = False
    signal: int = 0
    reason: str = ""

    @classmethod
    def of(cls, result: ExecResult) -> "CommandResult":
        """From the API's reply."""
        return cls.ended(result.exit, result.stdout, result.stderr, truncated=result.truncated)

    @classmethod
    def ended(cls, exit: Exit, stdout: bytes, stderr: bytes, *, truncated: bool = False) -> "CommandResult":
        """From how a process ended and what it wrote."""
        return cls(exit.code, stdout, stderr, truncated, exit.signal, exit.reason)

    @property
    def stdout(self) -> str:
        """Its output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Its error output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    def check(self) -> "CommandResult":
        """Itself; or raise Timeout if its time limit passed, CommandFailed if it ended with another code than 0."""
        if self.reason == "timeout":
            raise Timeout("the command's time limit passed", "give it a larger `timeout`")
        if self.exit_code != 0:
            said = self.stderr.strip()[-500:] or self.stdout.strip()[-500:]
            raise CommandFailed(
                f"the command ended with exit code {self.exit_code}" + (f": {said}" if said else ""),
                exit_status=self.exit_code,
            )
        return self


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a process wrote, from byte `offset` of their stream."""

    stream: Stream
    offset: int
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as text. A character may be cut at the end of a piece: join bytes where that matters."""
        return self.data.decode("utf-8", "replace")
