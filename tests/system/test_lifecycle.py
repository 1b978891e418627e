"""Sandboxes' lives in a real daemon: what each step does, in which order it is told, and that nothing is left of it."""

import json
import os
import shutil
import signal
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces, wait_for

from corral import Client, Sandbox
from corral.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.model.lifecycle import State

pytestmark = pytest.mark.root

MIB = 1024 * 1024
ISOLATIONS = ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)]


@pytest.mark.parametrize("runtime", ["crun", "runc", pytest.param("runsc", marks=pytest.mark.gvisor)])
def test_each_start_has_a_boot_id_as_a_machine_has(client: Client, runtime: str) -> None:
    """Its own, other than the host's, the same while it runs, and not to be changed from inside."""
    path = "/proc/sys/kernel/random/boot_id"
    host = Path(path).read_text()
    box, other = (Sandbox.create(client=client, runtime=runtime) for _ in range(2))
    first = box.exec(["cat", path], check=True).stdout
    assert str(uuid.UUID(first.strip())) == first.strip()
    box.pause()
    box.resume()
    box.exec(f"umount {path}; echo x > {path}; true", user="root")
    assert box.exec(["cat", path]).stdout == first
    box.stop(0)
    box.start()
    found = [host, first, box.exec(["cat", path]).stdout, other.exec(["cat", path]).stdout]
    assert len(set(found)) == 4


def test_many_by_one_command(daemon: Daemon) -> None:
    made = daemon.cli_json(
        "create", "-n", "4", "--name", "crew", "-l", "job=42", "-l", "kind=test", "--ttl", "1h"
    )
    assert isinstance(made, list)
    assert sorted(item["name"] for item in made) == ["crew-1", "crew-2", "crew-3", "crew-4"]
    assert len({item["id"] for item in made}) == 4
    assert {item["state"] for item in made} == {"running"}
    other = daemon.cli_json("create", "-l", "job=43")
    assert isinstance(other, dict)

    def names(*labels: str) -> set[str]:
        return set(
            daemon.cli("ls", "-q", *(word for label in labels for word in ("-l", label))).stdout.split()
        )

    crew = {"crew-1", "crew-2", "crew-3", "crew-4"}
    assert names() == crew | {other["name"]}
    assert names("job=42") == names("job=42", "kind=test") == crew
    assert names("job=42", "kind=other") == names("job=44") == set()
    daemon.cli("rm", "crew-1", "crew-2")
    assert names("job=42") == {"crew-3", "crew-4"}


@pytest.mark.parametrize(
    "args",
    [
        ("ls",), ("show", "box"), ("ps", "box"), ("usage", "box"), ("denials", "box"), ("template", "ls"),
        ("template", "show", "base"), ("secret", "ls"), ("config", "get"), ("doctor",), ("daemon", "status"),
        ("files", "ls", "box", "/etc"), ("files", "stat", "box", "/etc/passwd"), ("exec", "box", "--", "true"),
        ("stop", "box"), ("start", "box"), ("pause", "box"), ("resume", "box"), ("rm", "box"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_json_is_json(daemon: Daemon, box: Sandbox, args: tuple[str, ...]) -> None:
    if args[0] in ("start", "resume"):
        box.stop(0) if args[0] == "start" else box.pause()
    command, _, rest = " ".join(args).partition(" -- ")
    words = [*command.split(), "--json", *(["--", rest] if rest else [])]
    told = daemon.cli(*words, check=args[0] != "doctor").stdout
    for line in told.splitlines() if args[0] == "rm" else [told]:
        json.loads(line)


def test_events_come_in_order(client: Client) -> None:
    box = Sandbox.create(client=client)
    box.pause()
    box.resume()
    box.stop(0)
    box.start()
    box.kill()
    told = [event for event in client.events(after=0, wait=False) if event.sandbox == box.id]
    assert [event.state for event in told] == [
        "creating", "running", "paused", "running", "stopped", "starting", "running", "removing", "gone",
    ]  # fmt: skip
    sequences = [event.sequence for event in told]
    assert sequences == sorted(set(sequences))
    assert [event.at for event in told] == sorted(event.at for event in told)
    later = [event for event in client.events(after=sequences[5], wait=False) if event.sandbox == box.id]
    assert [event.state for event in later] == ["running", "removing", "gone"]


def test_steps_that_do_not_fit_are_refused_and_change_nothing(daemon: Daemon, box: Sandbox) -> None:
    def refused(step: str) -> str:
        before = traces(daemon)
        with pytest.raises(Conflict) as error:
            getattr(box, step)()
        assert error.value.hint
        assert traces(daemon) == before
        return error.value.message

    assert "start" in refused("start")
    assert "resume" in refused("resume")
    box.pause()
    refused("pause")
    refused("start")
    box.stop(0)
    for step in ("stop", "pause", "resume"):
        refused(step)
    assert box.refresh().state is State.STOPPED
    assert box.start().exec("echo alive").stdout == "alive\n"


def test_a_taken_name_is_refused_and_the_holder_named(daemon: Daemon, client: Client, box: Sandbox) -> None:
    before = traces(daemon)
    with pytest.raises(Conflict) as refused:
        Sandbox.create(client=client, name="box")
    assert box.id in refused.value.message + refused.value.hint or "box" in refused.value.message
    assert traces(daemon) == before
    box.kill()
    again = Sandbox.create(client=client, name="box")  # LIFE-23: at once, and clean
    assert again.id != box.id
    assert again.files.list("/home/user") == [] or all(
        e.name.startswith(".") for e in again.files.list("/home/user")
    )


def test_the_same_name_asked_for_by_many_at_once_is_given_once(daemon: Daemon, client: Client) -> None:
    before = traces(daemon)

    def create(_: int) -> str | None:
        try:
            return client.create_sandbox(name="only").id
        except Conflict:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [found for found in pool.map(create, range(8)) if found]
    assert len(made) == 1
    assert [box.id for box in client.list_sandboxes()] == made
    client.remove_sandbox("only")
    settled(daemon, before)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_files_outlive_stops_and_pauses_life6_file20(client: Client, isolation: str) -> None:
    box = Sandbox.create(client=client, isolation=isolation)
    for cycle in range(3):
        box.exec(f"echo {cycle} >> kept; echo {cycle} | sudo tee -a /opt/kept").check()
        box.pause()
        box.resume()
        box.exec(f"echo p{cycle} >> kept").check()
        box.stop(1)
        assert box.files.read("/opt/kept").split() == [str(number) for number in range(cycle + 1)]
        box.start()
    assert box.exec("cat kept").stdout.split() == ["0", "p0", "1", "p1", "2", "p2"]


def test_a_file_is_there_while_its_sandbox_ends(client: Client) -> None:
    """What reads it goes through the root that is unmounted meanwhile."""
    box = Sandbox.create(client=client)
    box.files.write("/home/user/kept", b"kept")
    for _ in range(10):
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(box.stop, 0)
            while not stopping.done():
                assert box.files.read("/home/user/kept") == "kept"
            stopping.result()
        box.start()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_pause_stands_still_and_a_resume_goes_on(client: Client, isolation: str) -> None:
    box = Sandbox.create(client=client, isolation=isolation)
    ticking = box.spawn(["bash", "-c", "i=0; while :; do echo $((i++)); sleep 0.01; done"])
    output = ticking.output()
    next(output)
    box.pause()
    used = box.stats().cpu_usec
    assert box.files.stat("/etc/passwd").kind == "file"
    # gVisor's own kernel goes on, and has next to nothing to do.
    assert box.stats().cpu_usec - used <= (0 if isolation == "container" else 50_000)
    box.resume()
    seen = b""
    for piece in output:
        seen += piece.data
        if seen.count(b"\n") > 50:
            break
    numbers = [int(line) for line in seen.split(b"\n")[:-1]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_pauses_end_nothing_that_starts_meanwhile(client: Client, isolation: str) -> None:
    box = Sandbox.create(client=client, isolation=isolation)
    script = "echo go; until [ -e /home/user/enough ]; do /bin/true || exit 9; done"
    starting = [box.spawn(["bash", "-c", script]) for _ in range(3)]
    for process in starting:
        next(process.output())
    for _ in range(10):
        box.pause()
        box.resume()
    box.files.write("/home/user/enough", "")
    assert [process.wait().exit_code for process in starting] == [0, 0, 0]


def test_a_stop_asks_first_and_kills_then_proc13(client: Client) -> None:
    box = Sandbox.create(client=client, name="box")
    asked = "trap 'echo asked > /home/user/asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    polite = box.spawn(["bash", "-c", asked])
    deaf = box.spawn(["bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
    next(polite.output())
    next(deaf.output())
    stopped = box.stop(0.5)
    assert stopped.state is State.STOPPED
    assert box.files.read("/home/user/asked") == "asked\n"
    box.start()
    assert {item.exit.reason for item in box.processes() if item.exit} <= {"lost", ""}
    assert all(item.exit is not None for item in box.processes())


def test_a_time_to_live_ends_it_whatever_it_does(daemon: Daemon, client: Client) -> None:
    before = traces(daemon)
    busy, stopped, paused = (Sandbox.create(client=client, ttl=600) for _ in range(3))
    busy.spawn("while :; do :; done")
    paused.pause()
    stopped.stop(0)
    unending = Sandbox.create(client=client, ttl=600)
    unending.set_ttl(None)
    for box in (busy, stopped, paused):
        box.set_ttl(1)

    def left() -> set[str]:
        return {box.id for box in Sandbox.list(client=client)}

    wait_for(lambda: left() == {paused.id, unending.id}, left)
    paused.resume()  # LIFE-10: what rests does not age
    wait_for(lambda: left() == {unending.id}, left)
    unending.kill()
    settled(daemon, before)
    for ttl in (0, -1, 366 * 24 * 3600):
        with pytest.raises(InvalidInput):
            Sandbox.create(client=client, ttl=ttl)


def test_limits_are_those_of_the_kernel(daemon: Daemon, client: Client) -> None:
    limits = {"memory": 96 * MIB, "cpus": 0.5, "pids": 77, "disk": 64 * MIB}
    box = Sandbox.create(client=client, limits=limits)
    assert _kernel(daemon, box, "memory", "memory.limit_in_bytes", "memory.max") == str(96 * MIB)
    assert _kernel(daemon, box, "pids", "pids.max", "pids.max") == "77"
    quota = _kernel(daemon, box, "cpu", "cpu.cfs_quota_us", "cpu.max").split()[0]
    assert int(quota) == 50_000
    full = box.exec("head -c 100M /dev/zero > big", timeout=60)
    assert full.exit_code != 0
    assert "quota" in full.stderr.lower() or "space" in full.stderr.lower()
    box.exec("rm big").check()
    forks = box.exec(["bash", "-c", "for i in $(seq 100); do sleep 5 & done; jobs -p | wc -l"], timeout=60)
    assert "Resource temporarily unavailable" in forks.stderr
    assert box.refresh().state is State.RUNNING
    hungry = box.exec(["python3", "-c", "x = bytearray(300 * 1024 * 1024)"], timeout=60)
    assert hungry.exit_code == 137
    assert box.stats().oom_kills >= 1
    assert box.exec("echo alive").stdout == "alive\n"


def _kernel(daemon: Daemon, box: Sandbox, controller: str, version1: str, version2: str) -> str:
    for root, name in ((Path("/sys/fs/cgroup") / controller, version1), (Path("/sys/fs/cgroup"), version2)):
        found = root / f"corral-{daemon.run.name}" / box.id / name
        if found.exists():
            return found.read_text().strip()
    pytest.fail(f"no control group of {controller}")


def test_a_sandbox_whose_first_process_is_killed_is_stopped(daemon: Daemon, box: Sandbox) -> None:
    lost = box.spawn("sleep 1000")
    os.kill(int((daemon.run / "sandboxes" / box.id / "bundle" / "pid").read_text()), signal.SIGKILL)
    wait_for(lambda: box.refresh().state is State.STOPPED, "its end was not seen")
    assert box.info.reason
    assert box.start().process(lost.id).wait().reason == "lost"


def test_nothing_is_left_of_many_lives_life4(daemon: Daemon, client: Client) -> None:
    """Also not of those that fail, nor in the daemon: its descriptors and threads are as many as before."""
    _live(client, 0)
    settled_before = _held(daemon)
    before = traces(daemon)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: _live(client, number), range(36)))
    settled(daemon, before)
    wait_for(lambda: _held(daemon) <= settled_before + 4, lambda: f"{settled_before} became {_held(daemon)}")


def _live(client: Client, number: int) -> None:
    if number % 6 == 5:
        with pytest.raises(CorralError):
            client.create_sandbox(repo="/nonexistent")
        return
    box = Sandbox.create(client=client, isolation="gvisor" if number % 12 == 3 else "container")
    box.spawn("sleep 1000", stdin=True)
    if number % 3 == 1:
        box.stop(0)
        box.start()
    if number % 3 == 2:
        box.pause()
    box.kill()


def _held(daemon: Daemon) -> int:
    """Descriptors of both processes."""
    assert daemon.process is not None
    gateway = daemon.gateway_pid()
    assert gateway is not None
    return sum(psutil.Process(pid).num_fds() for pid in (daemon.process.pid, gateway))


def test_a_failed_create_leaves_nothing(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    before = traces(daemon)
    for options, error in (
        ({"template": "absent"}, NotFound),
        ({"secrets": ("absent",)}, NotFound),
        ({"agent": "absent"}, CorralError),
        ({"repo": str(tmp_path)}, InvalidInput),
        ({"runtime": "absent"}, CorralError),
        ({"user": "nobody-at-all", "repo": _repo(tmp_path / "repo")}, CorralError),
    ):
        with pytest.raises(error) as refused:
            Sandbox.create(client=client, **options)
        assert refused.value.hint
        settled(daemon, before)


def _repo(path: Path) -> str:
    path.mkdir()
    for args in (
        ("init", "-q"),
        ("-c", "user.name=T", "-c", "user.email=t@e", "commit", "-q", "--allow-empty", "-m", "x"),
    ):
        subprocess.run(["git", "-C", path, *args], check=True)
    return str(path)


def test_a_create_whose_runtime_is_gone_or_fails_leaves_nothing(daemon: Daemon, tmp_path: Path) -> None:
    """The program is taken away, and then put in place of by one that fails, under a running daemon."""
    program = tmp_path / "runc"
    found = shutil.which("runc")
    assert found is not None
    shutil.copy(found, program)
    with daemon.client() as client:
        held = traces(daemon)
    path = daemon.path
    daemon.stop()
    daemon.path = f"{tmp_path}:{os.environ['PATH']}"
    try:
        daemon.start()
        with daemon.client() as client:
            kept = Sandbox.create(client=client, runtime="runc")
            assert kept.exec("true").exit_code == 0
            for content in (None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\nkill -9 $$\n"):
                program.unlink(missing_ok=True)
                if content is not None:
                    program.write_text(content)
                    program.chmod(0o755)
                before = traces(daemon)
                with pytest.raises(CorralError) as refused:
                    Sandbox.create(client=client, runtime="runc")
                assert refused.value.hint
                settled(daemon, before)
            assert kept.exec("true").exit_code == 0
            kept.kill()
    finally:
        daemon.stop()
        daemon.path = path
        daemon.start()
    settled(daemon, held)


def test_a_create_without_its_layer_leaves_nothing(daemon: Daemon, client: Client, box: Sandbox) -> None:
    taken = client.checkpoint("box", "hollow")
    layer = daemon.data / "store" / "layers" / taken.layers[-1].removeprefix("sha256:")
    hidden = layer.with_name("hidden")
    layer.rename(hidden)
    try:
        before = traces(daemon)
        with pytest.raises(CorralError) as refused:
            Sandbox.create("hollow", client=client)
        assert refused.value.hint
        settled(daemon, before)
    finally:
        hidden.rename(layer)
        client.remove_template("hollow")


def test_two_daemons_on_one_host_leave_each_other_alone_life5(
    daemon: Daemon, box: Sandbox, tmp_path: Path
) -> None:
    held = traces(daemon)
    other = Daemon(tmp_path / "data")
    other.data.mkdir()
    other.start()
    try:
        with other.client() as client:
            assert client.list_sandboxes() == []
            with pytest.raises(NotFound):
                client.get_sandbox(box.id)
            with pytest.raises(NotFound):
                client.remove_sandbox("box")
    finally:
        other.discard()
    assert traces(daemon) == held
    assert box.exec("echo alive").stdout == "alive\n"
