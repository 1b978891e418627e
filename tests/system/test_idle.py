"""Sandboxes that nobody uses rest by policy, and go on with the next command; who is in use is left alone."""

from collections.abc import Iterator

import pytest
from tests.conftest import Daemon

from corral import Client
from corral.model.lifecycle import State

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as found:
        yield found


def _next(client: Client, name: str, state: State, after: int = 0) -> str:
    """Wait until a sandbox enters a state; the reason."""
    for event in client.events(after):
        if getattr(event, "name", None) == name and getattr(event, "state", None) == state:
            return str(event.reason)
    raise AssertionError


@pytest.mark.parametrize(("isolation", "rest"), [("container", State.PAUSED), ("gvisor", State.SUSPENDED)])
def test_an_idle_sandbox_rests_and_goes_on_with_the_next_command(
    client: Client, isolation: str, rest: State
) -> None:
    box = client.create_sandbox(name="idle", isolation=isolation, idle_pause=1)
    kept = client.start_process("idle", ["sh", "-c", "read line; echo $line"], stdin=True)
    assert _next(client, "idle", rest).startswith("idle for")
    assert client.exec_command("idle", "echo awake").stdout == "awake\n"
    assert client.get_sandbox(box.id).state is State.RUNNING
    client.write_stdin("idle", kept.id, b"still here\n")
    client.close_stdin("idle", kept.id)
    said = b"".join(piece.data for piece in client.follow_output("idle", kept.id) if hasattr(piece, "data"))
    assert said == b"still here\n"


def test_one_that_computes_is_in_use_and_one_that_is_stopped_by_policy_says_why(client: Client) -> None:
    client.create_sandbox(name="busy", idle_pause=2)
    client.start_process("busy", ["sh", "-c", "while :; do :; done"])
    client.create_sandbox(name="idle", idle_stop=3)
    assert _next(client, "idle", State.STOPPED).startswith("idle for")
    assert client.get_sandbox("idle").reason.startswith("idle for")
    assert client.get_sandbox("busy").state is State.RUNNING
    assert client.start_sandbox("idle").state is State.RUNNING


def test_want_of_memory_is_called_that(client: Client) -> None:
    """RES-: an end for want of memory is not a mysterious 137."""
    client.create_sandbox(name="small", limits={"memory": 64 << 20})
    done = client.exec_command("small", ["python3", "-c", "x = bytearray(200 << 20)"])
    assert (done.exit_code, done.reason) == (137, "oom")
    other = client.exec_command("small", "kill -9 $$")
    assert (other.exit_code, other.reason) == (137, "")
