"""The oci driver with its real runtimes, stores and networks."""

import asyncio
import contextlib
import os
import random
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from corral.daemon.askclient import write_client
from corral.daemon.authority import load_authority
from corral.daemon.trust import write_trust
from corral.drivers.oci import OciDriver
from corral.drivers.oci_places import Place
from corral.drivers.oci_start import starting
from corral.engine.ports import DriverStatus
from corral.engine.session import Live, Session
from corral.errors import Conflict, NotFound, Unsupported
from corral.host import mounts
from corral.host.cgroups import detect
from corral.host.programs import cache_dir
from corral.host.tasks import TaskOwner
from corral.model.egress import EgressPolicy, HostRule
from corral.model.ids import DEFAULT_TENANT, LayerDigest, SandboxId, TemplateId
from corral.model.process import ProcessInfo, ProcessSpec, Stream, TerminalSize
from corral.model.sandbox import MIB, Isolation, Limits, SandboxSpec
from corral.model.template import Template, TemplateConfig
from corral.network.networks import Networks
from corral.rootfs.store import RootStore
from corral.wire import guest

pytestmark = pytest.mark.root

UID_BASE = 600_000_000
RUN = Path("/run/corral/test-driver")
PACKAGES = "sudo,procps,python3"
MAKE_USER = "useradd -m -u 1000 -s /bin/bash user; echo 'user ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/user"


@pytest.fixture(scope="session")
def layer() -> Iterator[tuple[RootStore, LayerDigest]]:
    """A store with one small Debian layer, kept between runs."""
    data = cache_dir() / "test-driver"
    data.mkdir(parents=True, exist_ok=True)
    for folder in (RUN.parent, RUN):
        folder.mkdir(mode=0o711, exist_ok=True)
    store = RootStore(data)
    asyncio.run(store.open())
    note = data / f"layer-{PACKAGES}"
    if not note.exists() or not store.has_layer(LayerDigest(note.read_text())):
        with store.staging() as tree:
            subprocess.run(
                ["mmdebstrap", "--variant=apt", f"--include={PACKAGES}", "bookworm", tree], check=True
            )
            subprocess.run(["chroot", tree, "sh", "-c", MAKE_USER], check=True)
            note.write_text(store.add_layer(tree))
    yield store, LayerDigest(note.read_text())
    asyncio.run(store.close())
    asyncio.run(detect().group("/corral-test-driver").remove())
    mounts.unmount_below(RUN)  # runsc pins an empty network namespace in its state directory
    shutil.rmtree(RUN)


@dataclass
class Box:
    """A sandbox of the driver, and a session with its init that can be dropped and taken up again."""

    driver: OciDriver
    spec: SandboxSpec
    template: Template
    session: Session | None = None
    tasks: TaskOwner = field(default_factory=TaskOwner)

    async def start(self) -> None:
        """What the engine does."""
        await self.driver.prepare(self.spec, self.template)
        await self.driver.start(self.spec, self.template)
        await self.connect()

    async def connect(self) -> Session:
        """What a daemon does at its start."""
        self.session = Session(await self.driver.guest(self.spec.id), self.tasks, "test")
        await self.session.open()
        return self.session

    def drop(self) -> None:
        """What the end of a daemon does."""
        if self.session is not None:
            self.session.detach()
            self.session = None

    async def stop(self, grace: float = 5) -> None:
        """Stop it."""
        self.drop()
        await self.driver.stop(self.spec.id, grace)

    async def exec(self, *argv: str, env: dict[str, str] | None = None, **spec: object) -> Live:
        """Start a process as root in /, unless said otherwise."""
        assert self.session is not None
        wanted = ProcessSpec(argv=argv, **{"user": "root", "cwd": "/", **spec})  # type: ignore[arg-type]
        return await self.session.start(lambda id: ProcessInfo(id, wanted, datetime.now(UTC)), env or {})

    async def run(
        self, *argv: str, env: dict[str, str] | None = None, **spec: object
    ) -> tuple[int, bytes, bytes]:
        """Exit code, stdout, stderr."""
        return await self.finish(await self.exec(*argv, env=env, **spec))

    async def sh(self, script: str, user: str = "root") -> tuple[int, str]:
        """Exit code and both outputs of a shell script."""
        code, out, err = await self.run("sh", "-c", script, user=user)
        return code, (out + err).decode()

    async def finish(self, live: Live) -> tuple[int, bytes, bytes]:
        """Wait for its end."""
        await until(live, lambda: live.ended)
        if live.failure is not None:
            raise live.failure
        assert live.info.exit is not None
        return live.info.exit.code, self.output(live), self.output(live, Stream.STDERR)

    def output(self, live: Live, stream: Stream = Stream.STDOUT) -> bytes:
        """All of it as yet."""
        assert self.session is not None
        data = b""
        while piece := self.session.read(live, stream, len(data), 1 << 20):
            data += piece
        return data


async def until(live: Live, condition: Callable[[], bool]) -> None:
    """Wait for a state that the guest reports."""
    while True:
        change = live.change.next()
        if condition():
            return
        await asyncio.shield(change)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that only the host's kernel knows, which tells nobody."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)


@dataclass
class World:
    """A driver, and a way to make sandboxes that are removed at the end."""

    store: RootStore
    layer: LayerDigest
    networks: Networks
    driver: OciDriver
    boxes: list[Box] = field(default_factory=list)

    def box(self, runtime: str, *, sudo: bool = True, limits: Limits | None = None) -> Box:
        """A sandbox that is not made yet."""
        template = Template(
            TemplateId("0" * 16),
            DEFAULT_TENANT,
            "t",
            (self.layer,),
            TemplateConfig(sudo=sudo),
            0,
            datetime.now(UTC),
        )
        spec = SandboxSpec(
            id=SandboxId(secrets.token_hex(8)),
            tenant=DEFAULT_TENANT,
            name="brave-otter",
            template=template.id,
            isolation=Isolation.CONTAINER,
            runtime=runtime,
            limits=limits or Limits(memory=512 * MIB, disk=512 * MIB, pids=256),
            env={},
            labels={},
            user="user",
            workdir="/home/user",
            egress=EgressPolicy((HostRule("example.com", (443, 8443)),)),
            secrets=(),
            created_at=datetime.now(UTC),
        )
        self.boxes.append(Box(self.driver, spec, template))
        return self.boxes[-1]

    async def started(self, runtime: str, **options: object) -> Box:
        """A running one."""
        box = self.box(runtime, **options)  # type: ignore[arg-type]
        await box.start()
        return box

    def traces(self, sandbox: SandboxId) -> list[str]:
        """Everything of a sandbox that the host still holds."""
        text = [str(entry.target) for entry in mounts.mounts() if sandbox in str(entry.target)]
        text += [
            str(path)
            for path in detect().group(f"/corral-test-driver/{sandbox}").directories
            if path.exists()
        ]
        text += [str(path) for path in RUN.rglob(f"*{sandbox}*")]
        text += [str(path) for path in self.store.root.glob(f"sandboxes/{sandbox}")]
        return text + [
            f"process {path.name}" for path in Path("/proc").glob("[0-9]*") if belongs(path, sandbox)
        ]


def belongs(process: Path, sandbox: SandboxId) -> bool:
    """Whether a process is the sandbox's. A zombie is not: the host's init may be slow to reap it."""
    with contextlib.suppress(OSError):
        zombie = "State:\tZ" in (process / "status").read_text()
        return not zombie and sandbox in (process / "cmdline").read_text() + (process / "cgroup").read_text()
    return False


def trust() -> Path:
    """What the sandboxes trust: with the host's roots, an authority of nobody's."""
    folder = cache_dir() / "test-driver" / "trust"
    folder.mkdir(parents=True, exist_ok=True)
    return write_trust(
        folder / "bundle.pem", load_authority(folder.with_name("authority.pem"), "test").certificate
    )


def make_driver(store: RootStore, networks: Networks) -> OciDriver:
    return OciDriver(
        data_dir=cache_dir() / "test-driver",
        run_dir=RUN,
        instance="test-driver",
        store=store,
        networks=networks,
        uid_base=lambda _tenant: UID_BASE,
        ca_bundle=trust(),
        ask=write_client(cache_dir() / "test-driver" / "corral-ask"),
    )


@pytest.fixture
async def world(layer: tuple[RootStore, LayerDigest]) -> AsyncIterator[World]:
    networks = Networks(RUN)
    driver = make_driver(layer[0], networks)
    await driver.open()
    world = World(layer[0], layer[1], networks, driver)
    try:
        yield world
    finally:
        for box in world.boxes:
            box.drop()
            await box.tasks.close()
            await world.driver.remove(box.spec.id)
        world.driver.close()
        await networks.close()


RUNTIMES = [pytest.param("crun"), pytest.param("runc"), pytest.param("runsc", marks=pytest.mark.gvisor)]
runtimes = pytest.mark.parametrize("runtime", RUNTIMES)


# -- processes
# ---------------------------------------------------------------------------------------------------------


@runtimes
async def test_exit_codes_and_streams(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    for script, code in (("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)):
        assert (await box.sh(script))[0] == code
    assert await box.run("sh", "-c", "echo out; echo err >&2") == (0, b"out\n", b"err\n")
    code, _, err = await box.run("no-such-command")
    assert (code, err) == (127, b"corral: no-such-command: command not found\n")
    assert (await box.run("/etc/passwd"))[0] == 126


@runtimes
async def test_large_binary_output_and_input(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    script = "import sys,random; sys.stdout.buffer.write(random.Random(1).randbytes(10_000_000))"
    assert (await box.run("python3", "-c", script))[1] == random.Random(1).randbytes(10_000_000)
    data = os.urandom(20_000_000)
    live = await box.exec("cat", stdin=True)
    assert box.session is not None
    await box.session.feed(live, data)
    await box.session.close_stdin(live)
    assert (await box.finish(live))[1] == data


@runtimes
async def test_terminal(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    script = "stty size; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done"
    live = await box.exec("sh", "-c", script, user="user", terminal=TerminalSize(33, 101))
    await until(live, lambda: box.output(live).endswith(b"ready\r\n"))
    assert box.session is not None
    await box.session.send(guest.resize(live.info.id, TerminalSize(50, 90)))
    assert (await box.finish(live))[:2] == (5, b"33 101\r\nready\r\n50 90\r\n")


@runtimes
async def test_user_directory_environment_and_sudo(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    code, out, _ = await box.run(
        "sh",
        "-c",
        "id -un; pwd; echo $A $HOME; umask; sudo id -u",
        user="user",
        cwd="/home/user",
        env={"A": "b c"},
    )
    assert (code, out) == (0, b"user\n/home/user\nb c /home/user\n0022\n0\n")
    assert (await box.sh("hostname; cat /etc/hostname")) == (0, "brave-otter\nbrave-otter\n")


async def test_template_without_sudo_gains_no_rights(world: World) -> None:
    box = await world.started("runc", sudo=False)
    code, text = await box.sh("sudo -n id -u", user="user")
    assert code != 0
    assert "no new privileges" in text


@runtimes
async def test_kill_takes_the_whole_tree(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    script = "setsid sleep 1001 & (setsid sh -c 'sleep 1002 & sleep 1003' &) ; nohup sleep 1004 & sleep 1005"
    live = await box.exec("sh", "-c", script, user="user")
    other = await box.exec("sleep", "1006")
    while (await box.sh("pgrep -c sleep"))[1] != "6\n":
        pass
    assert box.session is not None
    await box.session.send(guest.kill(live.info.id))
    assert (await box.finish(live))[0] == 137
    while (await box.sh("pgrep -c sleep"))[1] != "1\n":
        pass
    assert not other.ended


@runtimes
async def test_no_zombies(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    for _ in range(10):
        batch = [await box.exec("sh", "-c", "true & exit 3") for _ in range(50 if runtime != "runsc" else 10)]
        for live in batch:
            assert (await box.finish(live))[0] == 3
    assert await box.sh("ps -eo stat= | grep -c Z") == (1, "0\n")


@runtimes
async def test_processes_outlive_the_daemon(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    live = await box.exec(
        "sh", "-c", "echo before; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo after; exit 6"
    )
    await until(live, lambda: box.output(live) == b"before\n")
    box.drop()
    box.driver = make_driver(world.store, world.networks)
    await box.driver.open()
    assert await box.driver.status(box.spec.id) is DriverStatus.RUNNING
    session = await box.connect()
    await box.run("touch", "/tmp/go")
    assert (await box.finish(session.processes[live.info.id]))[:2] == (6, b"before\nafter\n")
    box.driver.close()


# -- life
# --------------------------------------------------------------------------------------------------------------


@runtimes
async def test_stop_and_start_keep_files_and_nothing_else(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    assert await world.driver.status(box.spec.id) is DriverStatus.RUNNING
    assert (await box.sh("echo kept >/home/user/f; echo tmp >/run/f; sync"))[0] == 0
    old = await box.exec("sleep", "1000")
    await until(old, lambda: old.report is not None)
    await box.stop()
    assert await world.driver.status(box.spec.id) is DriverStatus.STOPPED
    assert box.spec.id in await world.driver.known()
    assert not [
        trace for trace in world.traces(box.spec.id) if trace.startswith("process") or "cgroup" in trace
    ]
    await box.start()
    assert await box.sh("cat /home/user/f; ls /run/f 2>&1 | wc -l") == (0, "kept\n1\n")
    assert box.session is not None
    assert box.session.processes[old.info.id].info.exit is not None


@runtimes
async def test_remove_leaves_nothing_and_can_be_repeated(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    await box.exec("sleep", "1000")
    box.drop()
    await world.driver.remove(box.spec.id)
    await eventually(lambda: world.traces(box.spec.id) == [])
    assert await world.driver.status(box.spec.id) is DriverStatus.ABSENT
    assert box.spec.id not in await world.driver.known()
    await world.driver.remove(box.spec.id)


@runtimes
async def test_pause_freezes_and_resume_goes_on(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    live = await box.exec("sh", "-c", "while :; do echo x; sleep 0.01; done")
    await until(live, lambda: len(box.output(live)) > 4)
    await world.driver.pause(box.spec.id)
    assert await world.driver.status(box.spec.id) is DriverStatus.PAUSED
    before = box.output(live)
    await asyncio.sleep(0.1)
    assert box.output(live) == before
    await world.driver.resume(box.spec.id)
    await until(live, lambda: len(box.output(live)) > len(before))
    await world.driver.pause(box.spec.id)
    await box.stop(grace=0.2)  # a paused sandbox can be stopped
    assert await world.driver.status(box.spec.id) is DriverStatus.STOPPED


async def test_stop_is_polite_before_it_kills(world: World) -> None:
    box = await world.started("runc")
    polite = await box.exec("sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done")
    stubborn = await box.exec("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done")
    await until(polite, lambda: box.output(polite) == b"up\n")
    await until(stubborn, lambda: box.output(stubborn) == b"up\n")
    await world.driver.stop(box.spec.id, 0.5)
    await until(polite, lambda: polite.ended)
    assert box.output(polite) == b"up\nbye\n"
    assert polite.info.exit is not None
    assert polite.info.exit.code == 0


@runtimes
async def test_wait_returns_when_the_first_process_ends(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    waiting = asyncio.ensure_future(world.driver.wait(box.spec.id))
    await world.driver.stop(box.spec.id, 0)
    assert await waiting == ""
    assert await world.driver.wait(box.spec.id) == ""


async def test_half_made_sandbox_is_known_and_removed(world: World) -> None:
    box = world.box("runc")
    await world.driver.prepare(box.spec, box.template)
    await world.driver.prepare(box.spec, box.template)  # idempotent
    assert await world.driver.status(box.spec.id) is DriverStatus.STOPPED
    assert box.spec.id in await world.driver.known()
    await world.driver.remove(box.spec.id)
    assert world.traces(box.spec.id) == []


async def test_failed_start_leaves_nothing_that_runs(world: World) -> None:
    box = world.box("runc")
    await world.driver.prepare(box.spec, box.template)
    broken = replace(box.spec, limits=replace(box.spec.limits, memory=1))
    with pytest.raises(Exception, match="runc"):
        await world.driver.start(broken, box.template)
    assert not [
        trace for trace in world.traces(box.spec.id) if trace.startswith("process") or "cgroup" in trace
    ]
    await box.start()
    assert (await box.run("true"))[0] == 0


async def test_cleaning_up_waits_for_a_start_of_an_earlier_daemon(world: World) -> None:
    box = world.box("runc")
    await world.driver.prepare(box.spec, box.template)
    place = Place(RUN / "sandboxes" / box.spec.id)
    with starting(place):
        removing = asyncio.ensure_future(world.driver.remove(box.spec.id))
        await asyncio.wait([removing], timeout=0.2)
        assert not removing.done()
    await removing
    assert world.traces(box.spec.id) == []


async def test_runc_lets_go_of_the_start_s_lock(world: World) -> None:
    box = await world.started("runc")
    with starting(Place(RUN / "sandboxes" / box.spec.id)):
        pass


async def test_what_does_not_run_is_refused(world: World) -> None:
    box = world.box("runc")
    for call in (world.driver.guest, world.driver.pause, world.driver.resume):
        with pytest.raises(Conflict):
            await call(box.spec.id)
    with pytest.raises(NotFound):
        world.driver.files(box.spec)
    with pytest.raises(Unsupported, match="nonesuch"):
        await world.driver.prepare(replace(box.spec, runtime="nonesuch"), box.template)


async def test_number_of_an_ended_process_is_not_taken_for_the_sandbox(world: World) -> None:
    box = await world.started("runc")
    await box.stop()
    place = RUN / "sandboxes" / box.spec.id / "bundle"
    place.mkdir()
    (place / "pid").write_text(str(os.getpid()))
    assert await world.driver.status(box.spec.id) is DriverStatus.STOPPED


async def test_reboot_leaves_sandboxes_stopped(world: World) -> None:
    """An emptied run directory and no processes: what a reboot leaves."""
    box = await world.started("runc")
    await box.sh("echo kept >/home/user/f")
    await box.stop()
    shutil.rmtree(RUN / "sandboxes" / box.spec.id)
    assert await world.driver.status(box.spec.id) is DriverStatus.STOPPED
    files = world.driver.files(box.spec)
    assert b"".join([chunk async for chunk in files.read("/home/user/f")]) == b"kept\n"
    await box.start()
    assert await box.sh("cat /home/user/f") == (0, "kept\n")


@runtimes
async def test_commit_becomes_a_layer(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    await box.sh("echo one >/home/user/f; rm /etc/sudoers.d/user; sync")
    with pytest.raises(Conflict):
        await world.driver.commit(box.spec.id)
    await world.driver.pause(box.spec.id)
    layer = await world.driver.commit(box.spec.id)
    other = world.box(runtime)
    other.template = replace(other.template, layers=(world.layer, layer))
    await other.start()
    assert await other.sh("cat /home/user/f; stat -c %u /home/user/f; ls /etc/sudoers.d") == (
        0,
        "one\n0\nREADME\n",
    )
    other.drop()
    await world.driver.remove(other.spec.id)
    world.store.remove_layer(layer)


# -- files
# -------------------------------------------------------------------------------------------------------------


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


@runtimes
async def test_files_while_running_and_stopped(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    files = world.driver.files(box.spec)
    await files.write("/home/user/a/f", chunks(b"hello"), "user")
    assert await box.sh("cat /home/user/a/f; stat -c %U /home/user/a /home/user/a/f") == (
        0,
        "hellouser\nuser\n",
    )
    await box.sh("echo more >>/home/user/a/f")
    assert b"".join([chunk async for chunk in files.read("/home/user/a/f")]) == b"hellomore\n"
    assert (await files.move("/home/user/a/f", "/home/user/g")).name == "g"
    assert not await files.make_dir("/home/user/a", "user")
    assert await files.make_dir("/home/user/b/c", "user")
    await files.remove("/home/user/a")
    assert await box.sh("cd /home/user; ls") == (0, "b\ng\n")
    with pytest.raises(NotFound):
        await files.remove("/home/user/nothing")
    await box.stop()
    files = world.driver.files(box.spec)
    await files.write("/home/user/g", chunks(b"while stopped"), "user")
    await box.start()
    assert await box.sh("cat /home/user/g") == (0, "while stopped")


# -- limits and hardening
# ----------------------------------------------------------------------------------------------


async def test_fork_bomb_meets_its_limit_and_dies(world: World) -> None:
    box = await world.started("runc", limits=Limits(memory=512 * MIB, disk=64 * MIB, pids=64))
    live = await box.exec("bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 1000", user="user")
    await until(live, lambda: live.report is not None)
    group = detect().group(f"/corral-test-driver/{box.spec.id}")
    await eventually(lambda: group.usage().pids >= 60)
    assert group.usage().pids <= 64
    assert box.session is not None
    await box.session.send(guest.kill(live.info.id))
    await eventually(lambda: len(group.pids()) == 1)
    assert (await box.run("echo", "alive"))[1] == b"alive\n"


async def test_memory_and_disk_have_limits(world: World) -> None:
    box = await world.started("runc", limits=Limits(memory=64 * MIB, disk=32 * MIB, pids=64))
    code, _, _ = await box.run("python3", "-c", "x = bytearray(200_000_000)")
    assert code == 137
    assert (await world.driver.stats(box.spec.id)).oom_kills > 0
    code, _, err = await box.run("sh", "-c", "head -c 100000000 /dev/zero >/home/user/big")
    assert code != 0
    assert b"quota" in err, "the reason must get out"
    assert (await box.sh("rm /home/user/big; sync"))[0] == 0
    assert await box.sh("echo alive") == (0, "alive\n")


async def test_without_disk_limits_no_sandbox_starts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RootStore, "quota", property(lambda _: False))
    with pytest.raises(Unsupported, match="disk"):
        await world.started("runc")
    assert await world.driver.known() == set()


@runtimes
async def test_root_of_a_sandbox_is_not_the_hosts(world: World, runtime: str) -> None:
    box = await world.started(runtime)
    live = await box.exec("sleep", "1234")
    await until(live, lambda: live.report is not None)
    await box.sh("touch /made; sync")
    upper = world.store.sandbox_dir(box.spec.id) / "upper"
    assert (upper / "made").stat().st_uid == UID_BASE
    if runtime != "runsc":
        ids = {path.stat().st_uid for path in process_folders(box.spec.id)}
        assert min(ids) >= UID_BASE


def process_folders(sandbox: SandboxId) -> list[Path]:
    pids = detect().group(f"/corral-test-driver/{sandbox}").pids()
    return [Path(f"/proc/{pid}/task/{pid}/stat") for pid in pids]


SYSCALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    ctypes.set_errno(0)
    result = libc.syscall(*[ctypes.c_long(a) for a in args])
    return 'ok' if result >= 0 else errno.errorcode[ctypes.get_errno()]
for name, *args in [
    ('keyctl', 250, 0, -3, 0), ('add_key', 248, 0, 0, 0, 0, 0), ('bpf', 321, 0, 0, 0), ('perf', 298, 0, 0, 0,
    0, 0), ('userfaultfd', 323, 1), ('open_by_handle_at', 304, 0, 0, 0), ('mount', 165, 0, 0, 0, 0, 0),
    ('fsopen', 430, 0, 0), ('open_tree', 428, 0, 0, 0), ('setns', 308, 0, 0), ('unshare-user', 272,
    0x10000000), ('clone-user', 56, 0x10000011, 0, 0, 0, 0), ('clone3', 435, 0, 0), ('io_uring', 425, 1, 0),
    ('swapon', 167, 0, 0), ('reboot', 169, 0, 0, 0), ('syslog', 103, 3, 0, 0), ('personality', 135,
    0x0400000), ('kexec', 246, 0, 0, 0, 0), ('quotactl', 179, 0, 0, 0, 0), ('init_module', 175, 0, 0, 0),
    ('clock_settime', 227, 0, 0), ('iopl', 172, 3), ('vsock', 41, 40, 1, 0), ('packet', 41, 17, 3, 0), ('alg',
    41, 38, 5, 0), ('vsock-high', 41, 40 + (1 << 32), 1, 0), ('netfilter', 41, 16, 3, 12), ('raw', 41, 2, 3,
    1), ('tiocsti', 16, 0, 0x5412, 0), ('tiocsti-high', 16, 0, 0x5412 + (1 << 32), 0), ('unix', 41, 1, 1, 0),
    ('inet6', 41, 10, 1, 0), ('route', 41, 16, 3, 0), ('unshare-files', 272, 0x400), ('tcgets', 16, 0, 0x5401,
    0),
]:
    print(name, call(*args))
"""


async def test_system_calls_that_are_refused(world: World) -> None:
    box = await world.started("runc")
    code, out, err = await box.run("python3", "-c", SYSCALLS)
    assert (code, err) == (0, b"")
    found = dict(line.split(" ") for line in out.decode().splitlines())
    allowed = {"unix": "ok", "inet6": "ok", "route": "ok", "unshare-files": "ok", "tcgets": "ENOTTY"}
    missing = {"clone3": "ENOSYS", "io_uring": "ENOSYS"}
    assert {name: found.pop(name) for name in allowed} == allowed
    assert {name: found.pop(name) for name in missing} == missing
    assert set(found.values()) == {"EPERM"}, found


I386 = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
print('survived')
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="32-bit calls of this architecture")
async def test_32_bit_system_calls_kill(world: World) -> None:
    box = await world.started("runc")
    code, out, _ = await box.run("python3", "-c", I386)
    assert code == 128 + 31  # SIGSYS
    assert out == b""


async def test_rights_of_root_inside(world: World) -> None:
    box = await world.started("runc")
    _, text = await box.sh("grep -E 'CapInh|CapEff|CapBnd|CapAmb|Seccomp:' /proc/self/status")
    rights = dict(line.split(":\t") for line in text.splitlines())
    assert int(rights["CapBnd"], 16) == int(rights["CapEff"], 16) == 0x800405FB
    assert int(rights["CapInh"], 16) == int(rights["CapAmb"], 16) == 0
    assert rights["Seccomp"] == "2"
    for script in (
        "mknod /tmp/d c 1 3",
        "cat /proc/kcore",
        "echo 1 >/proc/sys/kernel/core_pattern",
        "readlink /proc/1/fd/0",
        "cat /proc/1/environ",
        "kill -9 1 && kill -0 1 && false",
        "echo x >/run/corral/init",
        "echo x >/run/corral/trust/ca.pem",
        "ls /sys/firmware/*",
    ):
        assert (await box.sh(script))[0] != 0, script
    assert await box.sh("ls /sys/class/net; ls /sys/class/block 2>/dev/null | head -0") == (0, "eth0\nlo\n")


async def test_package_manager_works(world: World) -> None:
    """As root inside: owners, modes, groups, file capabilities, locks."""
    box = await world.started("runc")
    script = """set -e
    useradd -m other; groupadd -g 65000 g; install -o other -g g -m 4755 /bin/true /usr/local/bin/t
    stat -c '%U %G %a' /usr/local/bin/t; dpkg --configure -a; dpkg -l sudo >/dev/null
    chown 65535 /usr/local/bin/t
    """
    assert await box.sh(script) == (0, "other g 4755\n")


async def test_listeners_follow_the_policy(world: World) -> None:
    box = world.box("runc")
    await world.driver.prepare(box.spec, box.template)
    listeners = await world.driver.listen(box.spec)
    assert sorted(listener.port for listener in listeners) == [53, 53, 80, 443, 8443]
    for listener in listeners:
        listener.sock.close()
