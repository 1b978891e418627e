"""A daemon that is killed at the points of an operation, started again, and looked at: done or undone, and nothing left."""

import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.faults import pointed
from tests.faults.host_operations import reset
from tests.faults.operations import BOX, KEPT, MADE, RUN, STOP, VOLUME, Operation, is_made, state_of
from tests.faults.rule_operations import KEY, SECRET
from tests.traces import settled, traces, wait_for

from corral import Client
from corral.errors import Conflict, CorralError, NotFound
from corral.model.lifecycle import State


class PointedDaemon(Daemon):
    """A daemon that is killed where it is told to be."""

    program = ("-m", "tests.faults.pointed")
    deadly = 0

    @property
    def env(self) -> dict[str, str]:
        root = str(Path(__file__).resolve().parents[2])
        own = {pointed.SOCKET: self.orders, pointed.DEADLY: str(self.deadly), "PYTHONPATH": root}
        return {**super().env, **own}

    @property
    def orders(self) -> str:
        return f"/run/corral-points-{os.getpid()}"

    def order(self, text: str) -> int:
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rw") as stream:
            client.connect(self.orders)
            stream.write(f"{text}\n")
            stream.flush()
            return int(stream.readline())

    def start_cut(self, point: int) -> None:
        """Start it, and kill it at a point of that, or where there are fewer, after all of it."""
        self.deadly = point
        try:
            self.start()
        except pytest.fail.Exception:
            if self.process is None or self.process.returncode != -signal.SIGKILL:
                raise
        finally:
            self.deadly = 0
        self.kill()


@dataclass
class Scene:
    """`held` is what the installation holds before an operation, and after it; `counts` the steps of operations, and
    `starts` those of the next start after the last cut of each."""

    daemon: PointedDaemon
    operations: Mapping[str, Operation]
    held: frozenset[str] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)

    def points(self, name: str) -> int:
        """How many steps an operation takes, by doing it."""
        if name not in self.counts:
            self._ready(name)
            self.daemon.order("count")
            with self.daemon.client() as client:
                for act in self.operations[name].acts:
                    act(client)
            self.counts[name] = self.daemon.order("read")
            self.clear()
        return self.counts[name]

    def cut(self, name: str, point: int, in_start: int = 0) -> None:
        """Cut an operation at a point, and with `in_start` the next start at a point of that, and look at what is left."""
        self._ready(name)
        self.daemon.order(f"kill {point}")
        answered = self._act(name)
        self.daemon.kill()  # where there were fewer steps this time
        if in_start:
            self.daemon.start_cut(in_start)
        self.daemon.start()
        self.starts[name] = self.daemon.order("read")
        self._check(name, answered)
        self.clear()

    def cut_gateway(self, name: str, point: int) -> None:
        """End the gateway alone at a point: the daemon goes on, and starts another."""
        self._ready(name)
        process, former = self.daemon.process, self.daemon.gateway_pid()
        self.daemon.order(f"gateway {point}")
        answered = self._act(name)
        reached = self.daemon.order("read") >= point  # there can be fewer steps than in the rehearsal
        assert process is not None
        assert process.poll() is None
        if reached:
            wait_for(lambda: self.daemon.gateway_pid() not in (None, former), "no other gateway runs")
        self._check(name, answered)
        self.clear()

    def clear(self) -> None:
        """Remove all that a test makes; nothing else may be left."""
        with self.daemon.client() as client:
            sweep(client)
        settled(self.daemon, self.held)

    def keep(self) -> None:
        """Remember what the installation holds, once all that is made on first use is there."""
        with self.daemon.client() as client:
            sweep(client)  # what a run that was broken off has left
            client.create_sandbox(name="warm")
            client.create_sandbox(name="warm-2", isolation="gvisor")
            sweep(client)
        self.held = traces(self.daemon)

    def _ready(self, name: str) -> None:
        if self.daemon.process is None:  # a test before this one has failed
            self.daemon.start()
        with self.daemon.client() as client:
            for left in client.list_sandboxes():
                client.remove_sandbox(left.id)
            self.operations[name].ready(client)

    def _act(self, name: str) -> int:
        """How many of its acts were answered."""
        answered = 0
        with self.daemon.client() as client, suppress(CorralError):
            for act in self.operations[name].acts:
                act(client)
                answered += 1
        return answered

    def _check(self, name: str, answered: int) -> None:
        operation = self.operations[name]
        with self.daemon.client() as client:
            told = f"of {len(operation.acts)} acts {answered} were answered"
            state, seen = state_of(client), operation.look(client)
            assert state in operation.states(answered), f"{told}: it is {state}"
            assert not operation.seen or seen in operation.views(answered), f"{told}: there is {seen}"
            if state_of(client) is not None:
                _use(client, kept=operation.before is not None, stopping=operation.after is STOP)
            for other in client.list_sandboxes():
                if other.name != BOX and other.state is RUN:
                    assert client.exec_command(other.name, "echo alive").stdout == "alive\n", other.name
            if client.list_volumes():
                _use_volume(client, kept=operation.before is not None)
            if is_made(client):
                again = client.create_sandbox(MADE)
                if _has_shell(client, again.id):  # an image may have none
                    assert client.exec_command(again.id, "echo alive").stdout == "alive\n"


def _has_shell(client: Client, box: str) -> bool:
    try:
        client.stat_file(box, "/bin/sh")
    except NotFound:
        return False
    return True


def sweep(client: Client) -> None:
    """Remove all that operations make."""
    for pool in client.list_pools():
        client.remove_pool(pool.template)
    for sandbox in client.list_sandboxes():
        with suppress(NotFound):
            client.remove_sandbox(sandbox.id)
    for volume in client.list_volumes():
        client.remove_volume(volume.id)
    for template in client.list_templates():
        if template.name.startswith(("cut-", "setup-cut-")):
            client.remove_template(template.id)
    with suppress(NotFound):
        client.remove_secret(SECRET)
    for key in client.list_keys():
        if key.label == KEY:
            client.revoke_key(key.id)
    client.set_tenant_rates({"calls": "default"})
    reset(client)
    client.forget_steps()
    client.prune()


def _use(client: Client, *, kept: bool, stopping: bool) -> None:
    state = client.get_sandbox(BOX).state
    if state in (State.PAUSED, State.SUSPENDED):
        client.resume_sandbox(BOX)
    elif state is STOP:
        client.start_sandbox(BOX)
    try:
        assert client.exec_command(BOX, "echo alive", timeout=60).stdout == "alive\n"
    except (AssertionError, Conflict):
        if not stopping:
            raise
        wait_for(lambda: state_of(client) is STOP, "neither usable nor stopped")
        client.start_sandbox(BOX)
    if kept:
        assert client.read_file(BOX, KEPT) == "kept"


def _use_volume(client: Client, *, kept: bool) -> None:
    """It has what was in it, and can be written to."""
    mounting = client.create_sandbox(volumes=[f"{VOLUME}:/data"])
    told = client.exec_command(mounting.id, "cat /data/kept 2>/dev/null; echo >> /data/new").stdout
    assert told == ("kept" if kept else "")
