"""States of sandboxes as E2B's clients know them."""

from corral.model.lifecycle import State

WITH_MEMORY = (State.PAUSED, State.SUSPENDING, State.SUSPENDED, State.RESUMING)
"""Paused with its processes: in memory or on disk."""
PAUSED_STATES = (*WITH_MEMORY, State.STOPPED)
"""Paused: a stopped sandbox is one that was paused without its memory."""
KNOWN = (State.RUNNING, State.STARTING, *PAUSED_STATES)
"""States in which requests for a sandbox's own service are looked at."""
