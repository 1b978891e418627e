"""What fits, who is next, and that no order of events gives out more than there is."""

from hypothesis import given
from hypothesis import strategies as st

from corral.model.capacity import Holding, Resource, Room, Rules, Ticket, Whose
from corral.model.ids import TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import GIB, MIB, Limits
from corral.policy import admission

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")
HANDLES = {Resource.HANDLES: 10_000.0, Resource.DISK: 1000.0 * GIB}
STRICT = Rules({Resource.MEMORY: 1.0}, reserve_memory=0, reserve_disk=0)


def room(memory: float, free: float | None = None) -> Room:
    return Room(
        {Resource.MEMORY: memory, **HANDLES}, {Resource.MEMORY: memory if free is None else free, **HANDLES}
    )


def box(
    id: str,
    gib: float = 4,
    state: State = State.RUNNING,
    used: float = 0,
    tenant: TenantId = A,
    idle: float = 0,
) -> Holding:
    limits = Limits(memory=int(gib * GIB))
    return Holding(id, id, tenant, limits, state, {Resource.MEMORY: used * GIB} if used else {}, idle)


def test_limits_count_in_full_without_over_commit() -> None:
    assert admission.shortage(box("new"), room(8 * GIB), STRICT, [box("one")]) is None
    short = admission.shortage(box("new"), room(8 * GIB), STRICT, [box("one"), box("two", 1)])
    assert short is not None
    assert (short.whose, short.resource, short.needed, short.free) == (
        Whose.HOST,
        Resource.MEMORY,
        4 * GIB,
        3 * GIB,
    )
    assert admission.reason(short) == "needs 4.0 GiB of memory, 3.0 GiB free"


def test_what_is_used_is_not_counted_twice() -> None:
    """`one` uses 3 of its 4 GiB, which the host's free memory shows already."""
    others = [box("one", used=3)]
    assert admission.shortage(box("new"), room(8 * GIB, 5 * GIB), STRICT, others) is None


def test_with_over_commit_the_measured_decides() -> None:
    rules = Rules({Resource.MEMORY: 64.0}, reserve_memory=GIB // 2, reserve_disk=0)
    many = [box(f"b{n}") for n in range(100)]
    assert admission.shortage(box("new"), room(24 * GIB, 20 * GIB), rules, many) is None
    short = admission.shortage(box("new"), room(24 * GIB, 600 * MIB), rules, [])
    assert short is None
    short = admission.shortage(box("new"), room(24 * GIB, 560 * MIB), rules, [])
    assert short is not None
    assert short.needed == 64 * MIB


def test_a_paused_one_needs_no_more_than_it_has_and_a_stopped_one_nothing() -> None:
    others = [box("p", state=State.PAUSED), box("s", state=State.STOPPED)]
    assert admission.shortage(box("new", 8), room(8 * GIB), STRICT, others) is None


def test_one_that_starts_again_is_not_counted_against_itself() -> None:
    stopped = box("one", 8, State.STOPPED)
    assert admission.shortage(admission.running(stopped), room(8 * GIB), STRICT, [stopped]) is None


def test_a_tenant_has_a_bound_of_its_own() -> None:
    rules = Rules({}, 0, 0, tenant_sandboxes=1, tenant_memory=None)
    short = admission.shortage(box("new"), room(99 * GIB), rules, [box("one")])
    assert short is not None
    assert short.whose is Whose.TENANT
    assert admission.shortage(box("new", tenant=B), room(99 * GIB), rules, [box("one")]) is None
    bounded = Rules({}, 0, 0, tenant_memory=5 * GIB)
    assert admission.shortage(box("new"), room(99 * GIB), bounded, [box("one")]) is not None
    assert admission.shortage(box("new", 1), room(99 * GIB), bounded, [box("one")]) is None


def test_a_small_host_is_not_all_reserve() -> None:
    rules = Rules({Resource.MEMORY: 64.0}, reserve_memory=64 * GIB, reserve_disk=0)
    assert admission.shortage(box("new"), room(GIB), rules, []) is None


def test_advice_names_the_longest_idle_whose_end_is_enough_and_never_anothers() -> None:
    others = [
        box("busy", used=4, idle=1),
        box("brave-otter", used=3.9, idle=7200),
        box("small", 1, used=0.5, idle=9000),
        box("foreign", used=9, tenant=B, idle=99999),
    ]
    short = admission.shortage(box("new"), room(24 * GIB, 2.1 * GIB), STRICT, others)
    assert short is not None
    said = admission.advice(short, A, others, STRICT, queued=False)
    assert said.startswith("stop brave-otter (3.9 GiB, idle 2 h), or wait for room with --queue"), said
    assert "foreign" not in said
    assert "foreign" in admission.advice(short, B, others, STRICT, queued=True)


def test_advice_names_as_few_as_are_enough() -> None:
    others = [box(f"b{n}", 1, used=1, idle=n * 60) for n in range(8)]
    short = admission.shortage(box("new", 2), room(8 * GIB, 0), STRICT, others)
    assert short is not None
    assert admission.advice(short, A, others, STRICT, queued=True).startswith(
        "stop b7 (1.0 GiB, idle 7 min) and b6 (1.0 GiB, idle 6 min), or"
    )
    far = admission.shortage(box("new", 8), room(8 * GIB, 0), STRICT, others)
    assert far is not None
    assert admission.advice(far, A, others, STRICT, queued=True) == "ask for less"


def tickets(*tenants: TenantId, gib: float = 4) -> list[Ticket]:
    return [
        Ticket(n, tenant, box(f"t{n}", gib, State.STARTING, tenant=tenant))
        for n, tenant in enumerate(tenants)
    ]


def test_tenants_take_turns() -> None:
    waiting = admission.in_turn(tickets(A, A, A, B, C, B), {})
    assert [(t.tenant, t.number) for t in waiting] == [(A, 0), (B, 3), (C, 4), (A, 1), (B, 5), (A, 2)]
    served_a = admission.in_turn(tickets(A, A, B, C), {A: 7, C: 3})
    assert [t.tenant for t in served_a] == [B, C, A, A]


def test_the_next_one_is_not_overtaken_by_a_smaller_one() -> None:
    large, small = Ticket(1, A, box("l", 8, tenant=A)), Ticket(2, B, box("s", 1, tenant=B))
    assert admission.next_served([large, small], room(4 * GIB), STRICT, []) is None
    assert admission.next_served([large, small], room(8 * GIB), STRICT, []) == large


def test_a_tenant_at_its_own_bound_stands_aside() -> None:
    rules = Rules({Resource.MEMORY: 1.0}, 0, 0, tenant_sandboxes=1)
    waiting = tickets(A, A, B)
    found = admission.next_served(waiting, room(99 * GIB), rules, [box("one")])
    assert found is not None
    assert found.tenant == B


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.floats(0.1, 4), st.booleans()), min_size=1, max_size=40
    ),
    st.floats(0.5, 16),
)
def test_never_more_is_given_out_than_there_is(
    events: list[tuple[TenantId, float, bool]], total: float
) -> None:
    """Whatever comes and goes, in whatever order: those admitted fit together, and the queue moves on."""
    held: list[Holding] = []
    waiting: list[Ticket] = []
    served: dict[TenantId, int] = {}
    host = room(total * GIB)
    for number, (tenant, gib, ends) in enumerate(events):
        if ends and held:
            held.pop(0)
        waiting.append(Ticket(number, tenant, box(f"n{number}", gib, State.RUNNING, tenant=tenant)))
        while found := admission.next_served(admission.in_turn(waiting, served), host, STRICT, held):
            waiting.remove(found)
            held.append(found.holding)
            served[found.tenant] = number
        assert sum(item.limits.memory for item in held) <= total * GIB
        first = admission.in_turn(waiting, served)
        if first:
            assert admission.shortage(first[0].holding, host, STRICT, held) is not None


def test_sizes_and_times_in_words() -> None:
    assert admission.plain(Resource.MEMORY, 512 * MIB) == "512.0 MiB"
    assert admission.plain(Resource.CPUS, 1.5) == "1.5"
    assert admission.plain(Resource.DISK, 10) == "10 B"
    assert [admission.duration(s) for s in (5, 90, 7200, 200_000)] == ["5 s", "1 min", "2 h", "2 d"]


def test_overview_adds_up() -> None:
    lines = {
        line.resource: line
        for line in admission.overview(room(8 * GIB, 6 * GIB), STRICT, [box("one", used=1)])
    }
    memory = lines[Resource.MEMORY]
    assert (memory.total, memory.used, memory.promised, memory.expected, memory.free) == (
        8 * GIB, 2 * GIB, 4 * GIB, 4 * GIB, 3 * GIB,
    )  # fmt: skip
    assert lines[Resource.DISK].free is None
