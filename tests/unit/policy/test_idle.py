"""When a sandbox counts as idle, and what follows."""

import pytest

from corral.model.capacity import Holding, Resource, Room, Rules
from corral.model.ids import TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import GIB, MIB, IdlePolicy, Limits
from corral.policy import idle
from corral.policy.idle import Step, Vitals

T = TenantId("t")


@pytest.mark.parametrize(
    ("after", "active"),
    [
        (Vitals(1000, 500, 10), False),
        (Vitals(1000 + 150_000, 500, 10), False),  # 1.5 % of ten seconds
        (Vitals(1000 + 300_000, 500, 10), True),
        (Vitals(1000, 500 + 1023, 10), False),
        (Vitals(1000, 500 + 1024, 10), True),
        (Vitals(1000, 500, 11), True),
    ],
)
def test_what_is_activity(after: Vitals, active: bool) -> None:
    assert idle.is_active(Vitals(1000, 500, 10), after, 10.0) is active


@pytest.mark.parametrize(
    ("policy", "state", "seconds", "step"),
    [
        (IdlePolicy(60, 600), State.RUNNING, 59, Step.NONE),
        (IdlePolicy(60, 600), State.RUNNING, 60, Step.PAUSE),
        (IdlePolicy(60, 600), State.PAUSED, 61, Step.NONE),
        (IdlePolicy(60, 600), State.PAUSED, 600, Step.STOP),
        (IdlePolicy(60, 600), State.RUNNING, 600, Step.STOP),
        (IdlePolicy(None, 600), State.RUNNING, 599, Step.NONE),
        (IdlePolicy(0, 0), State.RUNNING, 1e9, Step.NONE),
        (IdlePolicy(60, 600), State.STOPPED, 1e9, Step.NONE),
        (IdlePolicy(60, 600), State.SUSPENDED, 599, Step.NONE),
        (IdlePolicy(60, 600), State.SUSPENDED, 600, Step.STOP),
        (IdlePolicy(60, 600), State.CREATING, 1e9, Step.NONE),
    ],
)
def test_policy(policy: IdlePolicy, state: State, seconds: float, step: Step) -> None:
    assert idle.due(policy, state, seconds) is step


def test_looks_are_rare_and_often_enough() -> None:
    assert idle.look_every(IdlePolicy()) == 60.0
    assert idle.look_every(IdlePolicy(pause=40)) == 10.0
    assert idle.look_every(IdlePolicy(pause=2)) == 1.0
    assert idle.look_every(IdlePolicy(pause=0, stop=86400)) == 60.0


def _room(memory: float = 8 * GIB, disk: float = 100 * GIB) -> Room:
    total = {Resource.MEMORY: 24.0 * GIB, Resource.DISK: 200.0 * GIB}
    return Room(total, {Resource.MEMORY: memory, Resource.DISK: disk})


def test_memory_pressure() -> None:
    rules = Rules(reserve_memory=512 * MIB)
    assert not idle.memory_pressed(_room(), rules, None)
    assert not idle.memory_pressed(_room(), rules, 19.9)
    assert idle.memory_pressed(_room(), rules, 20.0)
    assert idle.memory_pressed(_room(memory=255 * MIB), rules, 0.0)
    assert not idle.memory_pressed(_room(memory=257 * MIB), rules, 0.0)


def test_disk_pressure_has_a_gap_between_on_and_off() -> None:
    rules = Rules(reserve_disk=512 * MIB)
    assert idle.disk_pressed(_room(disk=255 * MIB), rules)
    assert not idle.disk_pressed(_room(disk=300 * MIB), rules)
    assert not idle.disk_relieved(_room(disk=300 * MIB), rules)
    assert idle.disk_relieved(_room(disk=512 * MIB), rules)


def test_the_longest_idle_goes_first_and_nobody_in_use() -> None:
    def box(id: str, seconds: float, state: State = State.RUNNING) -> Holding:
        return Holding(id, id, T, Limits(), state, {}, seconds)

    boxes = [box("a", 700), box("b", 900), box("used", 10), box("p", 2000, State.PAUSED)]

    def order(action: Step) -> list[str]:
        return [item.id for item in idle.in_order_to_go(boxes, action, 600)]

    assert order(Step.PAUSE) == ["b", "a"]
    assert order(Step.STOP) == ["p", "b", "a"]
    assert order(Step.NONE) == []


def test_only_what_the_host_paused_wakes_on_use() -> None:
    assert idle.wakes_on_use(idle.idle_reason(3600))
    assert idle.wakes_on_use(idle.pressure_reason(_room(), 700))
    assert not idle.wakes_on_use("")
    assert not idle.wakes_on_use(idle.disk_reason(_room()))
    assert idle.idle_reason(3600) == "idle for 1 h"
