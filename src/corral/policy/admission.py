"""Whether the host can carry one more sandbox, and who is next of those who wait.

Theory of operation. A limit says what a sandbox may use at most, and most use a small part of it. So two things are
counted. What is **measured**: free memory, disk and processes of the host, whoever uses them. And what is **expected**: each
sandbox is taken to need its limit divided by the over-commit factor, until it is measured to use more. What it has not used
of that is still to come, so it is not free. A new one fits if what it is expected to need is free, beside the host's reserve.

With a factor of 1 no promise can be broken; with a large one, the measured values decide alone. CPU time is shared fairly
by the kernel, so by default it is not counted.

Those who wait are served in turn by tenant, so that nobody's hundred creates stand before somebody's one. Whoever is next
is not overtaken by a smaller one; only a tenant that is at its own bound stands aside.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from corral.model.capacity import Amounts, Holding, Line, Resource, Room, Rules, Shortage, Ticket, Whose
from corral.model.ids import TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Limits

HANDLES = 16.0
"""File handles that a running sandbox takes of the daemon, gateway included."""

SMALLEST_PART = 20
MOST_NAMED = 4
"""Sandboxes that an advice names."""

_LIVE = (State.CREATING, State.STARTING, State.RUNNING)
_BINARY = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


def promised(limits: Limits) -> Amounts:
    """What a running sandbox may use at most, of what is counted."""
    return {
        Resource.MEMORY: float(limits.memory),
        Resource.CPUS: limits.cpus,
        Resource.PIDS: float(limits.pids),
        Resource.DISK: float(limits.disk),
        Resource.HANDLES: HANDLES,
    }


def expected(holding: Holding, rules: Rules) -> Amounts:
    """What it is taken to need. A paused one needs no more than it has; a stopped one only its disk."""
    most = promised(holding.limits)
    factors = {**rules.overcommit, Resource.HANDLES: 1.0}
    need = {resource: amount / factors[resource] for resource, amount in most.items() if resource in factors}
    if holding.state in _LIVE:
        return need
    kept = (Resource.DISK, Resource.HANDLES) if holding.state is State.PAUSED else (Resource.DISK,)
    return {resource: amount for resource, amount in need.items() if resource in kept}


def outstanding(holding: Holding, rules: Rules) -> Amounts:
    """What of that it does not use yet."""
    return _unused(expected(holding, rules), holding)


def _unused(need: Amounts, holding: Holding) -> Amounts:
    return {resource: max(0.0, amount - holding.used.get(resource, 0.0)) for resource, amount in need.items()}


def free_room(room: Room, rules: Rules, holdings: Iterable[Holding]) -> Amounts:
    """What a new sandbox may take. Negative where more is promised than there is."""
    free = dict(room.free)
    for resource, reserve in reserves(room, rules).items():
        free[resource] = free.get(resource, 0.0) - reserve
    needs: dict[tuple[Limits, State], Amounts] = {}  # a thousand sandboxes mostly have the same limits
    for holding in holdings:
        kind = holding.limits, holding.state
        need = needs.get(kind)
        if need is None:
            need = needs[kind] = expected(holding, rules)
        for resource, amount in _unused(need, holding).items():
            free[resource] = free.get(resource, 0.0) - amount
    return free


def reserves(room: Room, rules: Rules) -> Amounts:
    """What is left to the host; of a small one no more than a twentieth."""
    wanted = {Resource.MEMORY: float(rules.reserve_memory), Resource.DISK: float(rules.reserve_disk)}
    return {
        resource: min(amount, room.total.get(resource, 0.0) / SMALLEST_PART)
        for resource, amount in wanted.items()
    }


def shortage(new: Holding, room: Room, rules: Rules, holdings: Sequence[Holding]) -> Shortage | None:
    """The first thing that is too little for `new`, which may be among `holdings` in another state; None if it fits."""
    others = [holding for holding in holdings if holding.id != new.id]
    return _tenant_shortage(new, rules, others) or host_shortage(new, room, rules, others)


def host_shortage(new: Holding, room: Room, rules: Rules, others: Sequence[Holding]) -> Shortage | None:
    """The same of what the host has, whatever the tenant may have."""
    free = free_room(room, rules, others)
    for resource, need in outstanding(new, rules).items():
        if need > free.get(resource, 0.0):
            return Shortage(Whose.HOST, resource, need, free.get(resource, 0.0))
    return None


def never_fits(new: Holding, room: Room, rules: Rules) -> bool:
    """Whether there would be no room for it on the same host with nothing else on it."""
    empty = Room(room.total, room.total)
    return shortage(replace(new, used={}), empty, rules, ()) is not None


def _tenant_shortage(new: Holding, rules: Rules, others: Iterable[Holding]) -> Shortage | None:
    own = [item for item in others if item.tenant == new.tenant and item.state in _LIVE]
    if rules.tenant_sandboxes is not None and len(own) + 1 > rules.tenant_sandboxes:
        left = rules.tenant_sandboxes - len(own)
        return Shortage(Whose.TENANT, Resource.SANDBOXES, 1, left, rules.tenant_sandboxes)
    if rules.tenant_memory is not None:
        free = rules.tenant_memory - sum(item.limits.memory for item in own)
        if new.limits.memory > free:
            return Shortage(Whose.TENANT, Resource.MEMORY, new.limits.memory, free, rules.tenant_memory)
    return None


def reason(short: Shortage) -> str:
    """The numbers in words: `needs 4.0 GiB of memory, 2.1 GiB free`."""
    if short.resource is Resource.SANDBOXES:
        return f"your tenant runs as many sandboxes as it may: {plain(short.resource, short.bound)}"
    amounts = (
        f"needs {amount(short.resource, short.needed)}, {plain(short.resource, max(0.0, short.free))} free"
    )
    if short.whose is Whose.HOST:
        return amounts
    return f"{amounts} of the {plain(short.resource, short.bound)} that your tenant may have"


def advice(
    short: Shortage, tenant: TenantId, holdings: Iterable[Holding], rules: Rules, *, queued: bool
) -> str:
    """What to do: those of the tenant's own sandboxes whose end would make the room, the most idle ones; and the queue."""
    gains = {item.id: _gain(short, item, rules) for item in holdings if item.tenant == tenant}
    own = sorted((item for item in holdings if gains.get(item.id)), key=lambda item: -item.idle)
    found = _makes_room(short.needed - short.free, own, gains)
    parts = []
    if found:
        verb = "remove" if short.resource is Resource.DISK else "stop"
        parts.append(f"{verb} {' and '.join(_what(short, item, gains[item.id]) for item in found)}")
    if not queued:
        parts.append("wait for room with --queue")
    parts.append("have the bound raised" if short.resource is Resource.SANDBOXES else "ask for less")
    return ", or ".join(parts)


def _makes_room(lacking: float, own: Sequence[Holding], gains: Mapping[str, float]) -> Sequence[Holding]:
    """One that is enough, or as few as are; none where too many would have to go."""
    for count in range(1, MOST_NAMED + 1):
        if count == 1:
            enough = [item for item in own if gains[item.id] >= lacking]
            if enough:
                return enough[:1]
        elif sum(gains[item.id] for item in own[:count]) >= lacking:
            return own[:count]
    return ()


def _gain(short: Shortage, holding: Holding, rules: Rules) -> float:
    """How much would be free without it."""
    if short.whose is Whose.TENANT:
        bound = {Resource.SANDBOXES: 1.0, Resource.MEMORY: float(holding.limits.memory)}
        return bound[short.resource] if holding.state is State.RUNNING else 0.0
    if holding.state not in (State.RUNNING, State.PAUSED, State.STOPPED, State.SUSPENDED):
        return 0.0
    if holding.state in (State.STOPPED, State.SUSPENDED) and short.resource is not Resource.DISK:
        return 0.0
    return _counted(holding, rules, short.resource)


def _what(short: Shortage, holding: Holding, gain: float) -> str:
    uses = holding.used.get(short.resource, 0.0) or gain
    has = "" if short.resource is Resource.SANDBOXES else f"{plain(short.resource, uses)}, "
    idle = f"idle {duration(holding.idle)}" if holding.idle >= 60 else "in use"
    return f"{holding.name} ({has}{idle})"


# -- the queue --------------------------------------------------------------------------------------------------------


def in_turn(tickets: Iterable[Ticket], served: Mapping[TenantId, int]) -> list[Ticket]:
    """Those who wait, the next first: each tenant's first, then each one's second, and so on. Among equals the tenant that
    was served longest ago; `served` tells the number of the turn in which it was."""
    ordered: list[tuple[int, int, Ticket]] = []
    places: dict[TenantId, int] = {}
    for ticket in sorted(tickets, key=lambda item: item.number):
        place = places.get(ticket.tenant, 0)
        places[ticket.tenant] = place + 1
        ordered.append((place, served.get(ticket.tenant, -1), ticket))
    return [ticket for *_, ticket in sorted(ordered, key=lambda item: (item[0], item[1], item[2].number))]


def next_served(
    waiting: Iterable[Ticket], room: Room, rules: Rules, holdings: Sequence[Holding]
) -> Ticket | None:
    """The one who may go on now, of those who wait in turn; None while the next one does not fit."""
    aside: set[TenantId] = set()
    for ticket in waiting:
        if ticket.tenant in aside:
            continue
        short = shortage(ticket.holding, room, rules, holdings)
        if short is None:
            return ticket
        if short.whose is Whose.HOST:
            return None
        aside.add(ticket.tenant)
    return None


# -- what is shown ----------------------------------------------------------------------------------------------------


def overview(room: Room, rules: Rules, holdings: Sequence[Holding]) -> list[Line]:
    """Each resource of the host, and how it stands."""
    free = free_room(room, rules, holdings)
    lines = []
    for resource, total in room.total.items():
        counted = resource in rules.overcommit or resource is Resource.HANDLES
        live = [item for item in holdings if item.state in _LIVE or resource is Resource.DISK]
        lines.append(
            Line(
                resource,
                total,
                reserves(room, rules).get(resource, 0.0),
                total - room.free.get(resource, total),
                sum(promised(item.limits)[resource] for item in live),
                sum(_counted(item, rules, resource) for item in holdings),
                max(0.0, free[resource]) if counted else None,
            )
        )
    return lines


def _counted(holding: Holding, rules: Rules, resource: Resource) -> float:
    return max(expected(holding, rules).get(resource, 0.0), holding.used.get(resource, 0.0))


def running(holding: Holding) -> Holding:
    """The same sandbox, once it runs."""
    return replace(holding, state=State.RUNNING)


def amount(resource: Resource, value: float) -> str:
    """`4.0 GiB of memory`, `2 cores`, `16 processes`."""
    names = {
        Resource.MEMORY: "of memory",
        Resource.DISK: "of disk",
        Resource.CPUS: "cores",
        Resource.PIDS: "processes",
        Resource.HANDLES: "file handles",
        Resource.SANDBOXES: "sandboxes",
    }
    return f"{plain(resource, value)} {names[resource]}"


def plain(resource: Resource, value: float) -> str:
    """The number alone, bytes in binary units."""
    if resource not in (Resource.MEMORY, Resource.DISK):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    for unit, name in _BINARY:
        if value >= unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """In the largest unit: `2 h`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
