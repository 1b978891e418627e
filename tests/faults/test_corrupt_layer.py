"""A layer that is not what it was: found when layers are read, named, and not used any more."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.machine import TINY, Machine, build_tiny, machine

from corral import Client
from corral.errors import HostError
from corral.host import btrfs
from corral.protocol.catalog import Check

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

BOX, MADE = "box", "made"
MARK = os.urandom(1024)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("corrupt")) as made:
        yield made


@pytest.fixture
def client(host: Machine, tmp_path: Path) -> Iterator[Client]:
    with host.daemon.client() as client:
        build_tiny(client, tmp_path)
        yield client
        for sandbox in client.list_sandboxes():
            client.remove_sandbox(sandbox.id)
        for template in client.list_templates():
            client.remove_template(template.id)
        client.forget_steps()


def _layers(client: Client, *, deep: bool = True) -> Check:
    return next(check for check in client.doctor(deep=deep) if check.name == "layers")


def test_a_layer_with_another_content_is_refused_by_name_until_it_is_made_anew(
    host: Machine, client: Client, tmp_path: Path
) -> None:
    (layer,) = next(item for item in client.list_templates() if item.name == TINY).layers
    assert _layers(client).status == "ok"
    place = host.daemon.data / "store" / "layers" / layer.removeprefix("sha256:")
    btrfs.set_read_only(place, read_only=False)
    with (place / "upper" / "bin" / "cat").open("r+b") as file:
        file.write(b"\x7fELG")
    btrfs.set_read_only(place)
    found = _layers(client)
    assert (found.status, layer in found.message, TINY in found.hint) == ("warn", True, True)
    host.daemon.stop()
    host.daemon.start()  # it is not forgotten
    with host.daemon.client() as after:
        with pytest.raises(HostError, match=layer):
            after.create_sandbox(TINY)
        after.remove_template(TINY)
        after.forget_steps()
        (tmp_path / "again").mkdir()
        build_tiny(after, tmp_path / "again")
        assert next(item for item in after.list_templates() if item.name == TINY).layers == [layer]
        assert after.exec_command(after.create_sandbox(TINY).id, "echo alive").stdout == "alive\n"
        assert _layers(after).status == "ok"


def test_a_checkpoint_that_the_disk_has_changed_is_refused_by_name(host: Machine, client: Client) -> None:
    """Its content was never read; the store's checksums tell."""
    client.create_sandbox(TINY, name=BOX)
    client.write_file(BOX, "/kept", MARK * 64)
    made = client.checkpoint(BOX, MADE)
    client.remove_sandbox(BOX)
    host.daemon.stop()
    _drop_cache(
        host.daemon.data / "store" / "layers" / made.layers[-1].removeprefix("sha256:") / "upper" / "kept"
    )
    _overwrite(host.daemon.data / "store.img")
    host.daemon.start()
    with host.daemon.client() as after:
        found = _layers(after)
        assert (found.status, made.layers[-1] in found.message) == ("warn", True)
        assert found.hint.endswith(f": {MADE}")
        with pytest.raises(HostError, match=made.layers[-1]):
            after.create_sandbox(MADE)
        after.create_sandbox(TINY)


def test_a_layer_without_its_record_keeps_nothing_else_from_working(
    host: Machine, client: Client, tmp_path: Path
) -> None:
    client.create_sandbox(TINY, name=BOX)
    layer = client.checkpoint(BOX, MADE).layers[-1]
    host.daemon.stop()
    place = host.daemon.data / "store" / "layers" / layer.removeprefix("sha256:")
    btrfs.set_read_only(place, read_only=False)
    (place / "layer.json").write_bytes(b"")
    btrfs.set_read_only(place)
    host.daemon.start()
    with host.daemon.client() as after:
        with pytest.raises(HostError, match=place.name):
            after.create_sandbox(MADE)
        assert after.exec_command(BOX, "echo alive").stdout == "alive\n"
        after.build_template_from("more", dockerfile=f"FROM {TINY}\nCOPY <<'EOF' /kept\nkept\nEOF\n")
        assert _layers(after).hint.endswith(f": {MADE}")
        after.remove_template(MADE)
        after.forget_steps()
        assert _layers(after).status == "ok"


def _drop_cache(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _overwrite(image: Path) -> None:
    """Change a byte of each MARK on the disk, below the store's file system."""
    changed = 0
    with image.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start = file.seek(0, os.SEEK_DATA)
        while start < end:
            stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            base = start - start % mmap.ALLOCATIONGRANULARITY
            with mmap.mmap(file.fileno(), stop - base, offset=base) as content:
                at = content.find(MARK)
                while at >= 0:
                    content[at] ^= 1
                    changed += 1
                    at = content.find(MARK, at + 1)
                content.flush()
            try:
                start = os.lseek(file.fileno(), stop, os.SEEK_DATA)
            except OSError:  # nothing but holes follows
                break
        os.fsync(file.fileno())
    assert changed
