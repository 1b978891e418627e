"""What moving repositories needs of a sandbox."""

from collections.abc import AsyncIterator
from typing import Protocol


class GuestShell(Protocol):
    """Commands in one running sandbox. All that they print is hostile.

    `user` None is the sandbox's default user. `timeout` in seconds: the command is killed and Timeout
    raised when it has passed. A cancelled call kills its command.
    """

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: AsyncIterator[bytes] | None = None,
        timeout: float = 600.0,  # noqa: ASYNC109 - enforced inside the sandbox
    ) -> tuple[int, bytes, bytes]:
        """Run to the end: exit code, and the first MiB or more of stdout and stderr. A command that ends
        before it has read all of `stdin` is no error here: its exit code tells.
        """

    def stream_out(
        self,
        argv: tuple[str, ...],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 600.0,
    ) -> AsyncIterator[bytes]:
        """Its stdout as it comes, of any size. Raises UpstreamFailed at the end if it failed."""
