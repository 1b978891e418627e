"""An upload that breaks off, because its client or the daemon ends, leaves the file that was there."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.conftest import Daemon
from tests.traces import wait_for

from corral import Client
from corral.errors import CorralError, DaemonUnreachable

pytestmark = pytest.mark.root

HOME, FILE = "/home/user", "/home/user/kept"
HALF = bytes(1 << 20)


def _unfinished(client: Client) -> list[int]:
    return [item.size for item in client.list_files("box", HOME) if item.name.startswith(".corral-")]


@pytest.mark.parametrize("ends", ["client", "daemon"])
@pytest.mark.parametrize("isolation", ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)])
def test_an_upload_that_breaks_off_leaves_the_former_file(daemon: Daemon, isolation: str, ends: str) -> None:
    def broken() -> Iterator[bytes]:
        yield HALF
        if isolation == "gvisor":  # else it has no name until it is whole
            with daemon.client() as other:
                wait_for(lambda: sum(_unfinished(other)) == len(HALF), "nothing of the file has come")
        if ends == "daemon":
            daemon.kill()
        raise DaemonUnreachable("it breaks off here", "")

    with daemon.client() as client:
        client.create_sandbox(name="box", isolation=isolation)
        client.write_file("box", FILE, "former")
    with daemon.client() as client, suppress(CorralError):
        client.write_file("box", FILE, broken())
    if ends == "daemon":
        daemon.start()
    with daemon.client() as client:
        wait_for(lambda: not _unfinished(client), "a part of the file is left")
        assert client.read_file("box", FILE) == "former"
