"""Volumes against hostile sandboxes, images and tenants: nothing of the host is reached by what they hold or where they are."""

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.tenants import Remote
from tests.traces import settled, traces, wait_for

from corral import Client, Sandbox
from corral.errors import CorralError, InvalidInput, NotFound

if TYPE_CHECKING:
    from tests.attack.conftest import Range

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
MIB = 1024 * 1024


@contextlib.contextmanager
def template(client: Client, dockerfile: str) -> Iterator[str]:
    """An image with what an attacker puts into it."""
    client.build_template_from("hostile", dockerfile=dockerfile)
    try:
        yield "hostile"
    finally:
        client.remove_template("hostile")


def test_another_tenant_neither_sees_nor_mounts_it(remote: Remote) -> None:
    """FILE-: by name or by id, it is not there; nor is there a way to tell that it exists."""
    with remote.client(remote.key) as ours, remote.client(remote.other) as theirs:
        volume = ours.create_volume("mine")
        theirs.build_template("base")  # else the first create makes it theirs, whatever becomes of that
        before = traces(remote.daemon)
        assert theirs.list_volumes() == []
        for ref in ("mine", volume.id):
            refusals = set()
            for attempt in (
                lambda ref=ref: theirs.get_volume(ref),
                lambda ref=ref: theirs.remove_volume(ref),
                lambda ref=ref: Sandbox.create(client=theirs, volumes=(f"{ref}:/data",)),
            ):
                with pytest.raises(NotFound) as refused:
                    attempt()
                refusals.add(refused.value.message)
            assert refusals == {f"there is no volume {ref!r}"}
        settled(remote.daemon, before)
        other = theirs.create_volume("mine")
        assert other.id != volume.id
        with Sandbox.create(client=ours, volumes=("mine:/data",)) as box:
            box.exec("echo ours > /data/x", check=True)
            with Sandbox.create("base", client=theirs, volumes=("mine:/data",)) as stranger:
                assert stranger.exec("ls -A /data", user="root").stdout == ""
        theirs.remove_volume("mine")
        ours.remove_volume("mine")


@pytest.mark.parametrize(
    "where", ["/etc", "/proc", "/", "../../../../../../..{host}", "{host}", "/run/corral"]
)
def test_a_link_in_the_image_leads_no_volume_anywhere(
    arena: "Range", isolation: str, tmp_path: Path, where: str
) -> None:
    """FILE-9: where the path of a volume leads through a symlink of the image, in its middle or at its end, nothing is
    mounted and nothing is made, in the sandbox or on the host."""
    outside = tmp_path / "outside"
    outside.mkdir()
    target = where.format(host=outside)
    arena.client.create_volume("data")
    with template(arena.client, f"FROM base\nUSER root\nRUN ln -s {target} /door\n") as image:
        before = traces(arena.daemon)
        for path in ("/door", "/door/inside"):
            with pytest.raises(InvalidInput, match="symlink"):
                arena.box(isolation, template=image, volumes=(f"data:{path}",))
        assert list(outside.iterdir()) == []
        wait_for(lambda: traces(arena.daemon) == before, "something is left")


def test_a_link_put_in_its_way_while_it_runs_leads_nowhere(
    arena: "Range", isolation: str, tmp_path: Path
) -> None:
    """Stopping unmounts nothing of the host's, though the path of the volume now leads there; a start is refused."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", mounted], check=True)
    try:
        (mounted / "kept").touch()
        arena.client.create_volume("data")
        box = arena.box(isolation, name="box", volumes=(f"data:/way{mounted}",))
        box.exec(f"echo theirs > /way{mounted}/x && mv /way /moved && ln -s / /way", user="root", check=True)
        box.stop(0)
        assert (mounted / "kept").exists()
        with pytest.raises(InvalidInput, match="symlink"):
            box.start()
        assert [path.name for path in mounted.iterdir()] == ["kept"]
        with pytest.raises(CorralError):
            box.files.read(f"/way{mounted}/kept")
        box.kill()
        assert (mounted / "kept").exists()
        with Sandbox.create(client=arena.client, volumes=("data:/data",)) as after:
            assert after.exec("cat /data/x").stdout == "theirs\n"
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_links_in_a_volume_lead_nowhere_on_the_host(arena: "Range", isolation: str, tmp_path: Path) -> None:
    """FILE-9: what the files API reads and writes by way of a volume stays in the sandbox, running or stopped."""
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    arena.client.create_volume("data")
    box = arena.box(isolation, volumes=("data:/data",))
    for state in ("running", "stopped"):
        links = (
            f"ln -s {secret} absolute",
            f"ln -s ../../../../../..{secret} climbing",
            "ln -s / root",
            "mkfifo fifo",
        )
        box.exec(f"mkdir /data/{state} && cd /data/{state} && {' && '.join(links)}", check=True)
    for state in ("running", "stopped"):
        if state == "stopped":
            box.stop(0)
        for path in ("absolute", "climbing", f"root{secret}"):
            with pytest.raises(NotFound):
                box.files.read(f"/data/{state}/{path}")
        for path in ("absolute", "climbing", f"root{secret}"):
            box.files.write(f"/data/{state}/{path}", "the guest's", user="root")
            assert box.files.read(f"/data/{state}/{path}") == "the guest's"
        with pytest.raises(CorralError):
            box.files.read(f"/data/{state}/fifo")
        with contextlib.suppress(NotFound):
            box.files.remove(str(secret))
        assert secret.read_text() == "the host's"


def test_nobody_becomes_root_by_a_volume_nor_opens_a_device(arena: "Range", isolation: str) -> None:
    """G-3: a program with the root's bit gives none, though the template has sudo; a device node that the host itself put
    there is not opened, and none can be made."""
    volume = arena.client.create_volume("data")
    box = arena.box(isolation, volumes=("data:/data",))
    box.exec("cp $(command -v id) /data/id && chmod 6755 /data/id", user="root", check=True)
    assert box.exec("/data/id -u", user="user", check=True).stdout == "1000\n"
    assert box.exec("mknod /data/null c 1 3", user="root").exit_code != 0
    place = arena.daemon.data / "store" / "volumes" / volume.id
    disk = (
        Path("/sys/class/block")
        / sorted(entry.name for entry in Path("/sys/class/block").iterdir())[0]
        / "dev"
    )
    nodes = {"disk": (stat.S_IFBLK, *map(int, disk.read_text().split(":")))}
    if isolation == "container":  # gVisor has a /dev/zero of its own, and no disks
        nodes["zero"] = (stat.S_IFCHR, 1, 5)
    for name, (kind, major, minor) in nodes.items():
        os.mknod(place / name, 0o666 | kind, os.makedev(major, minor))
        (place / name).chmod(0o666)
        opened = box.exec(f"head -c 1 /data/{name} | wc -c", user="root")
        assert opened.stdout == "0\n", name


def test_its_limit_holds_whatever_is_tried(arena: "Range", isolation: str) -> None:
    """RES-3: by files, holes that are filled, many small files, and subvolumes that say which quota groups they join."""
    arena.client.create_volume("small", 16 * MIB)
    box = arena.box(isolation, volumes=("small:/data",))
    box.exec("head -c 64M /dev/urandom > /data/a; truncate -s 1G /data/b", user="root")
    box.exec("head -c 64M /dev/urandom | dd of=/data/b conv=notrunc bs=1M status=none", user="root")
    box.exec(
        "for i in $(seq 2000); do head -c 20000 /dev/urandom > /data/f$i || break; done 2> /dev/null",
        user="root",
    )
    if isolation == "container":
        made = arena.run(box, "exhaust", "subvolume", "/data")["made"]
        assert made == "EPERM"
    box.exec("sync", user="root")
    place = arena.daemon.data / "store" / "volumes" / arena.client.get_volume("small").id
    on_disk = sum(path.lstat().st_blocks * 512 for path in place.rglob("*"))
    assert on_disk <= 17 * MIB
    assert arena.client.get_volume("small").used <= 17 * MIB
    arena.alive()


def test_only_the_hosts_root_comes_to_it_from_outside(arena: "Range") -> None:
    """Its programs with the root's bit would be ones of the host for whoever could reach them there."""
    arena.client.create_volume("data")
    status = (arena.daemon.data / "store" / "volumes").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o700)
