"""Volumes as users see them: in every isolation, from every side, for as long as they want them."""

import json
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces

from corral import Client, Sandbox
from corral.errors import Conflict, DiskFull, Forbidden, InvalidInput, NotFound, Unsupported

pytestmark = pytest.mark.root
MIB = 1 << 20
GVISOR = pytest.param("gvisor", marks=pytest.mark.gvisor)


@pytest.mark.parametrize("runtime", ["crun", "runc", pytest.param("runsc", marks=pytest.mark.gvisor)])
def test_a_volume_is_shared_while_they_run_and_outlives_them(
    daemon: Daemon, client: Client, runtime: str
) -> None:
    Sandbox.create(client=client, runtime=runtime).kill()
    before = traces(daemon)
    volume = client.create_volume("shared", 64 * MIB)
    one = Sandbox.create(client=client, name="one", runtime=runtime, volumes=("shared:/data",))
    two = Sandbox.create(
        client=client, name="two", runtime=runtime, volumes=("shared:/deep/er:ro", f"{volume.id}:/rw")
    )
    one.exec("echo first > /data/file && chmod 600 /data/file", check=True)
    assert two.exec("cat /deep/er/file", check=True).stdout == "first\n"
    for number in range(5):  # nothing of it is cached
        two.exec(f"echo {number} > /rw/file", check=True)
        assert one.exec("cat /data/file", check=True).stdout == f"{number}\n"
    refused = two.exec("echo no > /deep/er/file", user="root")
    assert (refused.exit_code != 0, "Read-only" in refused.stderr) == (True, True)
    assert [(v.name, v.path, v.read_only) for v in two.refresh().info.volumes] == [
        ("shared", "/deep/er", True),
        ("shared", "/rw", False),
    ]
    found = client.get_volume("shared")
    assert (found.sandboxes, found.size) == (["one", "two"], 64 * MIB)
    with pytest.raises(Conflict, match="one, two"):
        client.remove_volume("shared")
    one.kill()
    two.kill()
    after = Sandbox.create(client=client, runtime="crun", volumes=("shared:/data",))
    assert after.exec("cat /data/file", check=True).stdout == "4\n"
    after.kill()
    client.remove_volume("shared")
    with pytest.raises(NotFound):
        client.get_volume("shared")
    settled(daemon, before)


@pytest.mark.parametrize("isolation", ["container", GVISOR])
def test_its_files_are_reached_from_the_host_whether_it_runs_or_not(
    client: Client, tmp_path: Path, isolation: str
) -> None:
    client.create_volume("files")
    client.create_volume("other")
    box = Sandbox.create(
        client=client, name="box", isolation=isolation, volumes=("files:/data", "other:/home/user/other")
    )
    box.files.write("/home/user/other/x", "not removed with what it is mounted on")
    for state in ("running", "stopped", "running"):
        if state == "stopped":
            box.stop(0)
        elif box.refresh().info.state == "stopped":
            box.start()
        box.files.write(f"/data/{state}/x", state)
        assert box.files.read(f"/data/{state}/x") == state
        assert [entry.path for entry in box.files.list("/data")] == sorted(
            {"/data/running", f"/data/{state}"}
        )
        box.files.remove(f"/data/{state}/x")
        with pytest.raises(NotFound):
            box.files.read(f"/data/{state}/x")
        for path in ("/data", "/data/", "/home"):
            with pytest.raises(Conflict):
                box.files.remove(path)
        if state == "stopped":
            box.files.remove("/data/stopped")
    assert box.files.read("/home/user/other/x") == "not removed with what it is mounted on"
    box.files.write("/data/last", "kept")
    assert box.exec("cat /data/last; stat -c %U /data/last", check=True).stdout == "keptuser\n"
    with Sandbox.create(client=client, isolation=isolation, volumes=("files:/data:ro",)) as reader:
        assert reader.files.read("/data/last") == "kept"
        with pytest.raises(Forbidden):
            reader.files.write("/data/more", "no")
    assert "more" not in box.exec("ls /data", check=True).stdout


@pytest.mark.parametrize("isolation", ["container", GVISOR])
def test_its_limit_is_its_own(client: Client, isolation: str) -> None:
    client.create_volume("small", 16 * MIB)
    box = Sandbox.create(client=client, isolation=isolation, volumes=("small:/data",))
    filled = box.exec("head -c 64M /dev/zero > /data/fill; sync; stat -c %s /data/fill")
    assert "quota exceeded" in filled.stderr
    assert int(filled.stdout) <= 16 * MIB
    box.exec("head -c 32M /dev/zero > /home/user/fill && sync", check=True)
    with pytest.raises(DiskFull):
        box.files.write("/data/more", b"x" * 4 * MIB)
    uses = {(use.kind, use.name): use.own for use in client.disk().uses}
    assert 8 * MIB < uses["volume", "small"] <= 16 * MIB
    box.exec("rm /data/fill; sync", check=True)
    box.files.write("/data/more", b"x" * 4 * MIB)


def test_forks_share_it_and_checkpoints_leave_it_out(client: Client) -> None:
    client.create_volume("data")
    box = Sandbox.create(client=client, name="box", volumes=("data:/data",))
    box.exec("echo in-volume > /data/x; echo beside > /home/user/x", check=True)
    (fork,) = client.fork_sandbox("box").sandboxes
    assert client.exec_command(fork.id, "cat /data/x; echo fork > /data/x").stdout == "in-volume\n"
    assert box.exec("cat /data/x").stdout == "fork\n"
    client.checkpoint("box", "mark")
    try:
        with Sandbox.create("mark", client=client) as plain:
            assert plain.exec("ls -A /data; cat /home/user/x").stdout == "beside\n"
        with Sandbox.create("mark", client=client, volumes=("data:/data",)) as again:
            assert again.exec("cat /data/x").stdout == "fork\n"
    finally:
        client.remove_template("mark")


@pytest.mark.gvisor
def test_what_has_its_files_open_goes_on_from_memory(client: Client) -> None:
    """Suspended and forked with a file of the volume open; what others changed meanwhile is seen."""
    client.create_volume("data")
    box = Sandbox.create(client=client, name="box", isolation="gvisor", volumes=("data:/data",))
    box.exec("mkfifo /tmp/go", check=True)
    box.spawn("exec 3>>/data/log; while read -r word < /tmp/go; do echo $word >&3; cat /data/other >&3; done")
    box.files.write("/data/other", "before\n")
    say = "echo {} > /tmp/go; while ! tail -n 2 /data/log | grep -qx {}; do sleep 0.05; done"
    box.exec(say.format("one", "one"), check=True, timeout=30)
    client.pause_sandbox("box", memory=True)
    with Sandbox.create(client=client, volumes=("data:/data",)) as other:
        other.exec("echo after > /data/other", check=True)
    client.resume_sandbox("box")
    box.exec(say.format("two", "two"), check=True, timeout=30)
    assert box.exec("cat /data/log", check=True).stdout == "one\nbefore\ntwo\nafter\n"
    (fork,) = client.fork_sandbox("box").sandboxes
    client.exec_command(fork.id, say.format("three", "three"), timeout=30)
    assert box.exec("tail -n 2 /data/log", check=True).stdout == "three\nafter\n"
    with pytest.raises(Unsupported, match="volumes"):
        client.checkpoint("box", "mark", memory=True)


def test_what_cannot_be_mounted(daemon: Daemon, client: Client) -> None:
    client.create_volume("data")
    before = traces(daemon)
    for volumes, error in (
        (("none:/data",), NotFound),
        (("data:/proc/x",), InvalidInput),
        (("data:/",), InvalidInput),
        (("data:/a/../b",), InvalidInput),
        (("data:/a", "data:/a/b"), InvalidInput),
        (("data:/etc/passwd",), InvalidInput),
    ):
        with pytest.raises(error):
            Sandbox.create(client=client, volumes=volumes)
    settled(daemon, before)
    for name in ("", "-x", "a b", "../x"):
        with pytest.raises(InvalidInput):
            client.create_volume(name)
    with pytest.raises(InvalidInput):
        client.create_volume("tiny", 1)
    with pytest.raises(Conflict):
        client.create_volume("data")


def test_the_commands(daemon: Daemon) -> None:
    assert daemon.cli("volume", "create", "cache", "--size", "32M").stdout == "cache\n"
    daemon.cli("create", "--name", "box", "--volume", "cache:/cache", "--volume", "cache:/ref:ro")
    assert "cache:/cache, cache:/ref:ro" in daemon.cli("show", "box").stdout
    (told,) = json.loads(daemon.cli("volume", "ls", "--json").stdout)
    assert (told["name"], told["size"], told["sandboxes"]) == ("cache", 32 * MIB, ["box"])
    refused = daemon.cli("volume", "rm", "cache", check=False)
    assert (refused.returncode != 0, "corral rm box" in refused.stderr) == (True, True)
    daemon.cli("rm", "box")
    assert daemon.cli("volume", "rm", "cache").stdout == "cache\n"
    assert daemon.cli("volume", "rm", "-f", "cache").stdout == ""


def test_volumes_and_their_sandboxes_survive_the_daemon(daemon: Daemon, client: Client) -> None:
    client.create_volume("data")
    box = Sandbox.create(client=client, name="box", volumes=("data:/data",))
    box.files.write("/data/x", "kept")
    daemon.kill()
    daemon.start()
    with daemon.client() as again:
        assert again.get_volume("data").sandboxes == ["box"]
        assert again.read_file("box", "/data/x") == "kept"
        assert again.exec_command("box", "cat /data/x").stdout == "kept"
        with pytest.raises(Conflict):
            again.remove_volume("data")
