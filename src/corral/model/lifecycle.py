"""The life of a sandbox, as one table.

```
              created           stop             start
  creating ─────────▶ running ───────▶ stopped ───────▶ starting ──▶ running
      │ failed          │  ▲ resume        ▲ exited
      ▼                 ▼  │               │
   failed             paused ──────────────┘
  running, paused ── suspend ──▶ suspending ── suspended ──▶ suspended ── resume ──▶ resuming ── started ──▶ running
                                     │ fail: running             ▲ │ stop: stopped       │
                                                                 └────────── fail ───────┘
  running, as a spare of a warm pool ── claim ──▶ creating
  any of running, paused, stopped, failed ── remove ──▶ removing ── removed ──▶ (gone)
```
"""

from enum import StrEnum

from corral.errors import Conflict


class State(StrEnum):
    """Where a sandbox is in its life."""

    CREATING = "creating"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    STOPPED = "stopped"
    FAILED = "failed"
    REMOVING = "removing"
    GONE = "gone"


STANDING_STILL = frozenset((State.PAUSED, State.SUSPENDING, State.SUSPENDED, State.RESUMING))
"""States in which a time to live does not run."""


class Event(StrEnum):
    """What can happen to a sandbox."""

    CREATED = "created"
    FAIL = "fail"
    START = "start"
    STARTED = "started"
    STOP = "stop"
    EXITED = "exited"
    PAUSE = "pause"
    RESUME = "resume"
    SUSPEND = "suspend"
    SUSPENDED = "suspended"
    REMOVE = "remove"
    REMOVED = "removed"
    CLAIM = "claim"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.CREATING, Event.CREATED): State.RUNNING,
    (State.CREATING, Event.FAIL): State.FAILED,
    (State.CREATING, Event.REMOVE): State.REMOVING,
    (State.STARTING, Event.STARTED): State.RUNNING,
    (State.STARTING, Event.FAIL): State.STOPPED,
    (State.RUNNING, Event.STOP): State.STOPPED,
    (State.RUNNING, Event.EXITED): State.STOPPED,
    (State.RUNNING, Event.PAUSE): State.PAUSED,
    (State.RUNNING, Event.REMOVE): State.REMOVING,
    (State.PAUSED, Event.RESUME): State.RUNNING,
    (State.PAUSED, Event.STOP): State.STOPPED,
    (State.PAUSED, Event.EXITED): State.STOPPED,
    (State.PAUSED, Event.REMOVE): State.REMOVING,
    (State.RUNNING, Event.SUSPEND): State.SUSPENDING,
    (State.PAUSED, Event.SUSPEND): State.SUSPENDING,
    (State.SUSPENDING, Event.SUSPENDED): State.SUSPENDED,
    (State.SUSPENDING, Event.FAIL): State.RUNNING,
    (State.SUSPENDED, Event.RESUME): State.RESUMING,
    (State.SUSPENDED, Event.STOP): State.STOPPED,
    (State.SUSPENDED, Event.REMOVE): State.REMOVING,
    (State.RESUMING, Event.STARTED): State.RUNNING,
    (State.RESUMING, Event.FAIL): State.SUSPENDED,
    (State.STOPPED, Event.START): State.STARTING,
    (State.STOPPED, Event.REMOVE): State.REMOVING,
    (State.FAILED, Event.REMOVE): State.REMOVING,
    (State.REMOVING, Event.REMOVED): State.GONE,
    (State.RUNNING, Event.CLAIM): State.CREATING,
}

_HINTS = {
    Event.PAUSE: "only a running sandbox can be paused",
    Event.RESUME: "only a paused or suspended sandbox can be resumed",
    Event.SUSPEND: "only a running or paused sandbox can be suspended",
    Event.START: "only a stopped sandbox can be started; one that is suspended can be resumed",
    Event.STOP: "only a running, paused or suspended sandbox can be stopped",
    Event.REMOVE: "it is being removed already",
}


def advance(state: State, event: Event) -> State:
    """The state after `event`; raise Conflict, and change nothing, for an event that the table does not list."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise Conflict(f"cannot {event} a sandbox that is {state}", _HINTS.get(event)) from None
