"""Files with holes that are larger than the whole disk: kept, written as images, read back and copied, and as small as they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.machine import MIB, TINY, Machine, build_tiny, machine

from corral import Client

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

SIZE = 4096 * MIB
"""More than the disk of the host has."""
MAKE = f"truncate -s {SIZE} /sparse && dd if=/dev/urandom of=/sparse bs=64k seek=30000 count=16 conv=notrunc"
PART = "dd if={} bs=64k skip=30000 count=16 | sha256sum; stat -c '%s %b' {}"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("sparse")
    (folder / "tree").mkdir()
    with machine(folder) as made:
        with made.daemon.client() as client:
            build_tiny(client, folder / "tree", more=("truncate", "stat", "sha256sum"))
            client.create_sandbox(TINY, name="box")
            client.exec_command("box", MAKE).check()
            client.checkpoint("box", "saved")
        yield made


@pytest.fixture
def client(host: Machine) -> Iterator[Client]:
    with host.daemon.client() as client:
        yield client


def part(client: Client, box: str, path: str = "/sparse") -> str:
    """The digest of what is in the file; it has its size, and takes what it holds."""
    told = client.exec_command(box, PART.replace("{}", path)).check().stdout
    digest, _, size, blocks = told.split()
    assert int(size) == SIZE
    assert int(blocks) * 512 < 4 * MIB
    return digest


def test_an_image_of_it_is_small_and_so_is_what_comes_back(
    host: Machine, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "saved.tar"
    host.daemon.cli("template", "export", "saved", str(file))
    assert file.stat().st_size < 64 * MIB
    host.daemon.cli("template", "import", "back", str(file))
    client.create_sandbox("back", name="other")
    assert part(client, "other") == part(client, "box")
    assert client.get_template("back").size < 64 * MIB


def test_a_build_copies_it_with_its_holes(client: Client) -> None:
    dockerfile = f"FROM saved AS one\nFROM {TINY}\nCOPY --from=one /sparse /copied\n"
    client.build_template_from("copied", dockerfile=dockerfile)
    client.create_sandbox("copied", name="third")
    assert part(client, "third", "/copied") == part(client, "box")
    assert client.get_template("copied").size < 64 * MIB
