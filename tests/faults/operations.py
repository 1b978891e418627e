"""What is cut at every point: the operations of sandboxes, pools and volumes. `template_operations` and `rule_operations` have
the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.traces import wait_for

from corral import Client
from corral.errors import NotFound
from corral.model.lifecycle import State

BOX, MADE, POOL, VOLUME = "cut", "cut-made", "base", "cut-volume"
KEPT = "/home/user/kept"
SMALL = {"memory": 64 << 20}
Act = Callable[[Client], object]
Look = Callable[[Client], Any]


def nothing(client: Client) -> None:
    """Nothing is needed, or seen."""


@dataclass(frozen=True)
class Operation:
    """`ready`, then `acts`, one after the other, which are cut.

    `before` and `after` are states of the sandbox `cut`, after all of them; None: there is none. `look` shows what else they
    change, and is to give one of `seen` afterwards: the first before all of them, then one after each.
    """

    ready: Act
    acts: tuple[Act, ...]
    before: State | None = None
    after: State | None = None
    look: Look = nothing
    seen: tuple[object, ...] = ()

    def states(self, answered: int) -> set[State | None]:
        """Those that the sandbox may be in."""
        return {self.after} if answered == len(self.acts) else {self.before, self.after}

    def views(self, answered: int) -> tuple[object, ...]:
        """What may be seen: all that was answered is done, and what was not is done or undone."""
        return self.seen[answered : answered + 2]


def running(client: Client, isolation: str = "container", **options: Any) -> None:
    """The sandbox, with a file."""
    client.create_sandbox(name=BOX, isolation=isolation, **options)
    client.write_file(BOX, KEPT, "kept")


def stopped(client: Client) -> None:
    """The same, stopped."""
    running(client)
    client.stop_sandbox(BOX, 0)


def _paused(client: Client) -> None:
    running(client)
    client.pause_sandbox(BOX)


def guarded(client: Client) -> None:
    """The same, in gVisor."""
    running(client, "gvisor")


def _suspended(client: Client) -> None:
    guarded(client)
    client.pause_sandbox(BOX, memory=True)


def _checkpointed(client: Client) -> None:
    running(client)
    client.checkpoint(BOX, MADE)


def pooled(client: Client) -> None:
    """A pool that is full."""
    client.set_pool(POOL, 1, limits=SMALL)
    wait_for(lambda: client.list_pools()[0].ready == 1, "the pool is not filled")


def _with_volume(client: Client) -> None:
    client.create_volume(VOLUME)


def _mounting(client: Client, isolation: str = "container") -> None:
    _with_volume(client)
    running(client, isolation, volumes=[f"{VOLUME}:/data"])
    client.write_file(BOX, "/data/kept", "kept")


def _mounting_stopped(client: Client) -> None:
    _mounting(client)
    client.stop_sandbox(BOX, 0)


def state_of(client: Client, name: str = BOX) -> State | None:
    """A sandbox's state; None: there is none."""
    try:
        return client.get_sandbox(name).state
    except NotFound:
        return None


def is_made(client: Client) -> bool:
    """Whether there is the template that is made."""
    return MADE in {template.name for template in client.list_templates()}


def _volumes(client: Client) -> list[str]:
    return [volume.name for volume in client.list_volumes()]


RUN, STOP = State.RUNNING, State.STOPPED
OPERATIONS = {
    "create": Operation(nothing, (lambda c: c.create_sandbox(name=BOX, allow=["example.org"]),), None, RUN),
    "create in gVisor": Operation(
        nothing, (lambda c: c.create_sandbox(name=BOX, isolation="gvisor"),), None, RUN
    ),
    "start": Operation(stopped, (lambda c: c.start_sandbox(BOX),), STOP, RUN),
    "stop": Operation(running, (lambda c: c.stop_sandbox(BOX, 5),), RUN, STOP),
    "resume": Operation(_paused, (lambda c: c.resume_sandbox(BOX),), State.PAUSED, RUN),
    "pause": Operation(running, (lambda c: c.pause_sandbox(BOX),), RUN, State.PAUSED),
    "suspend": Operation(guarded, (lambda c: c.pause_sandbox(BOX, memory=True),), RUN, State.SUSPENDED),
    "wake": Operation(_suspended, (lambda c: c.resume_sandbox(BOX),), State.SUSPENDED, RUN),
    "remove": Operation(running, (lambda c: c.remove_sandbox(BOX),), RUN, None),
    "remove a stopped one": Operation(stopped, (lambda c: c.remove_sandbox(BOX),), STOP, None),
    "remove a suspended one": Operation(
        _suspended, (lambda c: c.remove_sandbox(BOX),), State.SUSPENDED, None
    ),
    "checkpoint": Operation(running, (lambda c: c.checkpoint(BOX, MADE),), RUN, RUN, is_made, (False, True)),
    "checkpoint with memory": Operation(
        guarded, (lambda c: c.checkpoint(BOX, MADE, memory=True),), RUN, RUN, is_made, (False, True)
    ),
    "create from a checkpoint": Operation(
        _checkpointed, (lambda c: c.create_sandbox(MADE, name=f"{BOX}-2"),), RUN, RUN, is_made, (True, True)
    ),
    "fork": Operation(guarded, (lambda c: c.fork_sandbox(BOX, 2),), RUN, RUN),
    "fork of files": Operation(running, (lambda c: c.fork_sandbox(BOX, 2),), RUN, RUN),
    "remove a template": Operation(
        _checkpointed, (lambda c: c.remove_template(MADE),), RUN, RUN, is_made, (True, False)
    ),
    "fill a pool": Operation(nothing, (pooled,)),
    "claim from a pool": Operation(
        pooled, (lambda c: c.create_sandbox(POOL, name=BOX, limits=SMALL),), None, RUN
    ),
    "run a command": Operation(running, (lambda c: c.exec_command(BOX, "echo x > /tmp/x"),), RUN, RUN),
    "time to live": Operation(running, (lambda c: c.set_ttl(BOX, 3600),), RUN, RUN),
    "make a volume": Operation(
        nothing, (lambda c: c.create_volume(VOLUME),), look=_volumes, seen=([], [VOLUME])
    ),
    "remove a volume": Operation(
        _with_volume, (lambda c: c.remove_volume(VOLUME),), look=_volumes, seen=([VOLUME], [])
    ),
    "create with a volume": Operation(
        _with_volume,
        (lambda c: c.create_sandbox(name=BOX, volumes=[f"{VOLUME}:/data"]),),
        None,
        RUN,
        _volumes,
        ([VOLUME], [VOLUME]),
    ),
    "start with a volume": Operation(
        _mounting_stopped, (lambda c: c.start_sandbox(BOX),), STOP, RUN, _volumes, ([VOLUME], [VOLUME])
    ),
    "suspend with a volume": Operation(
        lambda c: _mounting(c, "gvisor"),
        (lambda c: c.pause_sandbox(BOX, memory=True),),
        RUN,
        State.SUSPENDED,
        _volumes,
        ([VOLUME], [VOLUME]),
    ),
    "read in a volume of a stopped one": Operation(
        _mounting_stopped,
        (lambda c: c.read_file(BOX, "/data/kept"),),
        STOP,
        STOP,
        _volumes,
        ([VOLUME], [VOLUME]),
    ),
}
