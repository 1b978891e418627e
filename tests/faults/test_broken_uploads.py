"""An upload that breaks off, because its client or the daemon ends, leaves the file that was there."""

import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.conftest import Daemon
from tests.traces import wait_for

from corral import Client
from corral.errors import CorralError, DaemonUnreachable

pytestmark = pytest.mark.root

HOME, FILE = "/home/user", "/home/user/kept"
HALF = bytes(1 << 20)
ISOLATIONS = ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)]


def _unfinished(client: Client) -> list[int]:
    return [item.size for item in client.list_files("box", HOME) if item.name.startswith(".corral-")]


def _half_an_archive() -> bytes:
    """A whole file, and the first half of another."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, size in (("first", 1), ("kept", 2 * len(HALF))):
            entry = tarfile.TarInfo(name)
            entry.size = size
            archive.addfile(entry, io.BytesIO(bytes(size)))
    return held.getvalue()[: len(HALF) + 4096]


def _start(daemon: Daemon, isolation: str) -> None:
    with daemon.client() as client:
        client.create_sandbox(name="box", isolation=isolation)
        client.write_file("box", FILE, "former")


def _look(daemon: Daemon, ends: str) -> None:
    if ends == "daemon":
        daemon.start()
    with daemon.client() as client:
        wait_for(lambda: not _unfinished(client), "a part of the file is left")
        assert client.read_file("box", FILE) == "former"


@pytest.mark.parametrize("ends", ["client", "daemon"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_upload_that_breaks_off_leaves_the_former_file(daemon: Daemon, isolation: str, ends: str) -> None:
    def has_come(other: Client) -> bool:
        # In a container it has no name until it is whole.
        return isolation != "gvisor" or sum(_unfinished(other)) == len(HALF)

    _start(daemon, isolation)
    with daemon.client() as client, suppress(CorralError):
        client.write_file("box", FILE, _broken(daemon, ends, HALF, has_come))
    _look(daemon, ends)


@pytest.mark.parametrize("ends", ["client", "daemon"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_archive_that_breaks_off_leaves_the_former_file(daemon: Daemon, isolation: str, ends: str) -> None:
    """What came whole before is there, and nothing goes on waiting for the rest."""
    _start(daemon, isolation)
    with daemon.client() as client, suppress(CorralError):
        client.write_archive(
            "box", HOME, _broken(daemon, ends, _half_an_archive(), lambda other: _has(other, "first"))
        )
    _look(daemon, ends)
    with daemon.client() as client:
        assert _has(client, "first")
        wait_for(lambda: not [item for item in client.list_processes("box") if item.exit is None], "it waits")


def _broken(daemon: Daemon, ends: str, half: bytes, has_come: Callable[[Client], bool]) -> Iterator[bytes]:
    """Half of an upload; once it has come, the client or the daemon ends."""
    yield half
    with daemon.client() as other:
        wait_for(lambda: has_come(other), "nothing of it has come")
    if ends == "daemon":
        daemon.kill()
    raise DaemonUnreachable("it breaks off here", "")


def _has(client: Client, name: str) -> bool:
    return name in {item.name for item in client.list_files("box", HOME)}
