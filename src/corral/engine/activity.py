"""When each sandbox was last used: somebody called for it, or a process of it wrote something.

Time is counted by a clock that nobody sets, so that a jump of the wall clock makes nothing idle. After a restart of the
daemon each sandbox counts as used at that moment.
"""

import time
from collections.abc import Callable

from corral.model.ids import SandboxId


class Activity:
    """The last use of each sandbox."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun = now()
        self._last: dict[SandboxId, float] = {}

    def touch(self, sandbox: SandboxId) -> None:
        """It is used now."""
        self._last[sandbox] = self._now()

    def idle(self, sandbox: SandboxId) -> float:
        """Seconds since it was last used."""
        return self._now() - self._last.get(sandbox, self._begun)

    def forget(self, sandbox: SandboxId) -> None:
        """It is gone."""
        self._last.pop(sandbox, None)
