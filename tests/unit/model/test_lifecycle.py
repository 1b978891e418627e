"""The lifecycle table, state by event."""

import pytest

from corral.errors import Conflict
from corral.model.lifecycle import TRANSITIONS, Event, State, advance


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_state_and_event_either_advances_or_refuses(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(Conflict) as caught:
            advance(state, event)
        assert state.value in caught.value.message
        assert caught.value.hint


def test_every_state_can_be_left_for_removal_or_is_on_its_way_there() -> None:
    for state in State:
        if state in (State.GONE, State.REMOVING, State.STARTING, State.SUSPENDING, State.RESUMING):
            continue
        assert advance(state, Event.REMOVE) is State.REMOVING


def test_nothing_leaves_gone() -> None:
    assert not [event for state, event in TRANSITIONS if state is State.GONE]
