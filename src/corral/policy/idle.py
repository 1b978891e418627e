"""What happens to sandboxes that nobody uses, and to whom first when the host runs short. Pure.

A sandbox is idle while no process of it writes, computes or talks over the network, and nobody calls for it. What follows is
declared: its own policy, or the host's. Under memory pressure the longest idle go first, one at a time, as far as the
operator's setting says; nothing that is in use is touched, and whatever is done is told.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from corral.model.capacity import Holding, Resource, Room, Rules
from corral.model.lifecycle import State
from corral.model.sandbox import IdlePolicy
from corral.policy.admission import duration, plain, reserves

CPU_SHARE = 0.02
"""Of one core: who uses less does nothing that anybody waits for."""
NET_BYTES = 1024
"""Between two looks: less is the kernel's own talk."""
PRESSURE_PERCENT = 20.0
"""Share of the last ten seconds in which some process waited for memory."""


class Step(StrEnum):
    """What is done to an idle sandbox."""

    NONE = "none"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Vitals:
    """Counters that grow while a sandbox does something: CPU microseconds, bytes of its network, bytes of output."""

    cpu_usec: int = 0
    net: int = 0
    output: int = 0


def is_active(before: Vitals, after: Vitals, seconds: float) -> bool:
    """Whether it did something between two looks, `seconds` apart."""
    return (
        after.output != before.output
        or after.net - before.net >= NET_BYTES
        or after.cpu_usec - before.cpu_usec > CPU_SHARE * seconds * 1e6
    )


def due(policy: IdlePolicy, state: State, idle: float) -> Step:
    """What the policy asks for, of a sandbox that has been idle for so many seconds."""
    if policy.stop and idle >= policy.stop and state in (State.RUNNING, State.PAUSED, State.SUSPENDED):
        return Step.STOP
    if policy.pause and idle >= policy.pause and state is State.RUNNING:
        return Step.PAUSE
    return Step.NONE


def look_every(policy: IdlePolicy) -> float:
    """Seconds between two looks, so that a wait is not overstayed by much."""
    first = min((value for value in (policy.pause, policy.stop) if value), default=240.0)
    return min(max(first / 4, 1.0), 60.0)


def memory_pressed(room: Room, rules: Rules, waiting_percent: float | None) -> bool:
    """Whether the host is short of memory now: its processes wait for it, or half of its reserve is used."""
    if waiting_percent is not None and waiting_percent >= PRESSURE_PERCENT:
        return True
    reserve = reserves(room, rules)[Resource.MEMORY]
    return room.free.get(Resource.MEMORY, reserve) < reserve / 2


def disk_pressed(room: Room, rules: Rules) -> bool:
    """Whether half of the disk's reserve is used: soon the kernel could not write what it has promised to."""
    reserve = reserves(room, rules)[Resource.DISK]
    return room.free.get(Resource.DISK, reserve) < reserve / 2


def disk_floor(room: Room, rules: Rules) -> int:
    """Bytes of disk that sandboxes cannot have, however fast they write: a quarter of the reserve, for the host's own
    records."""
    return int(reserves(room, rules)[Resource.DISK] / 4)


def disk_relieved(room: Room, rules: Rules) -> bool:
    """Whether the whole reserve is free again."""
    return room.free.get(Resource.DISK, 0.0) >= reserves(room, rules)[Resource.DISK]


def in_order_to_go(holdings: Iterable[Holding], action: Step, idle_for: float) -> list[Holding]:
    """Under pressure: the sandboxes that have been idle at least `idle_for` seconds, and that `action` is something to, the
    longest first."""
    states = {Step.NONE: (), Step.PAUSE: (State.RUNNING,), Step.STOP: (State.RUNNING, State.PAUSED)}[action]
    idle = [item for item in holdings if item.state in states and item.idle >= idle_for]
    return sorted(idle, key=lambda item: -item.idle)


_IDLE, _SHORT = "idle for", "the host is short of memory"


def wakes_on_use(reason: str) -> bool:
    """Whether a paused sandbox was paused for nothing but that nobody used it: then a use lets it go on."""
    return reason.startswith((_IDLE, _SHORT))


def by_host(reason: str) -> bool:
    """Whether a paused sandbox was paused without anybody asking."""
    return wakes_on_use(reason) or reason.startswith(DISK_FULL)


def idle_reason(idle: float) -> str:
    """Why it was paused or stopped."""
    return f"{_IDLE} {duration(idle)}"


def pressure_reason(room: Room, idle: float) -> str:
    """Why it was paused or stopped."""
    free = plain(Resource.MEMORY, room.free.get(Resource.MEMORY, 0.0))
    return f"{_SHORT} ({free} free), and it was idle for {duration(idle)}"


def disk_reason(room: Room) -> str:
    """Why it was paused; also how such a sandbox is known again."""
    return f"{DISK_FULL}: {plain(Resource.DISK, room.free.get(Resource.DISK, 0.0))} left, and it was writing"


DISK_FULL = "the host's disk is nearly full"
