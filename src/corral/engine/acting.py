"""Who has what is done now done: what the audit log calls the actor (G-322)."""

from contextvars import ContextVar

_actor: ContextVar[str] = ContextVar("actor", default="")


def act_for(who: str) -> None:
    """From here on this task works for someone."""
    _actor.set(who)


def actor() -> str:
    """For whom this task works; empty where nobody asked, as for what the daemon does by itself."""
    return _actor.get()
