"""Time, and what is told of long work."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

Progress = Callable[[str], None]
"""Told one line of what long work is doing now."""


class Clock(Protocol):
    """Time, as an argument."""

    def now(self) -> datetime:
        """Aware, UTC."""
