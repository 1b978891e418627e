"""What its audit records say of a request that is under way: one id for all of them, what it moved, how long it took.

The id is told to whoever asked, so that what an agent was shown is found in the log. What a request moved is known at its
end. So it is recorded then; if it lasts, once before, that it was let through, and at its end again.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

LATER = 2.0
"""Seconds after which a request that goes on is recorded."""

_current: ContextVar[str] = ContextVar("request_id", default="")


def begin() -> None:
    """A request begins in this task."""
    _current.set(secrets.token_hex(8))


def request_id() -> str:
    """The id of the request that this task works on; empty if there is none."""
    return _current.get()


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that the sandbox sent and received."""

    sent: int = 0
    received: int = 0


NOTHING = Moved()


class Note(Protocol):
    """Records that a request was let through, or (`ended`) is over after that was recorded."""

    def __call__(self, *, ended: bool = False, moved: Moved = NOTHING, ms: int = 0) -> None: ...


class Passing:
    """Record a request that is let through while this is entered. `lasts`: it is taken to go on for long."""

    def __init__(self, note: Note, moved: Callable[[], Moved], *, lasts: bool = False) -> None:
        self._note = note
        self._moved = moved
        self._noted = lasts
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        if self._noted:
            self._note()
        else:
            self._timer = loop.call_later(LATER, self._still)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        took = asyncio.get_running_loop().time() - self._began
        self._note(ended=self._noted, moved=self._moved(), ms=round(took * 1000))

    def _still(self) -> None:
        self._noted = True
        self._note()
