"""A sandbox's root against what the daemon reads and writes inside: the spool, PID 1 and its channels."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corral import Sandbox
from corral.errors import CorralError

if TYPE_CHECKING:
    from tests.attack.conftest import Range

pytestmark = pytest.mark.root

MIB = 1024 * 1024


def memory_of(arena: "Range") -> int:
    """Resident memory of the daemon's engine, in bytes."""
    return int(arena.engine.memory_info().rss)


def tries(box: Sandbox, command: str = "echo said") -> bytes:
    """The output of a command in a sandbox that may be broken by now."""
    with contextlib.suppress(CorralError):
        return box.exec(command, timeout=10, output_limit=MIB).stdout_bytes
    return b""


def test_output_files_replaced_by_links_fifos_and_giants(
    arena: "Range", isolation: str, host_secret: Path
) -> None:
    """Principle 1: what the sandbox put in the place of its output shows no file of the host, blocks nothing, fills no memory."""
    box = arena.box(isolation)
    running = box.spawn("while :; do echo line; sleep 0.05; done")
    before = memory_of(arena)
    box.spawn(
        ["python3", "-m", "tests.attack.guest.tamper", "spool", str(host_secret)],
        user="root",
        cwd="/opt/attack",
    )
    secret = host_secret.read_bytes()
    for _ in range(30):
        assert secret not in tries(box)
    with contextlib.suppress(CorralError):
        running.kill()
        pieces = (piece.data for piece, _ in zip(running.output(), range(64), strict=False))
        assert secret not in b"".join(pieces)
    assert memory_of(arena) < before + 96 * MIB
    arena.alive()


def test_pid_1_under_attack(arena: "Range", isolation: str) -> None:
    """Principle 1, G-342: PID 1 traced, stopped, killed, fed with garbage: at worst this sandbox ends, and only this one."""
    box = arena.box(isolation)
    # The last attempts end it, it may be; so the results are in a file, which the host can read all the same.
    with contextlib.suppress(CorralError):
        box.exec(
            ["python3", "-m", "tests.attack.guest.tamper", "init"], user="root", cwd="/opt/attack", timeout=20
        )
    results = json.loads(box.files.read("/root/results"))
    assert results["trace"] != "ok"
    if isolation == "container":
        for what in ("write /proc/1/fd/0", "write /proc/1/fd/1", "write /proc/1/mem"):
            assert results[what] in {"EACCES", "EPERM", "ENOENT"}, what
        assert results["replace"] != "ok"
        assert results["unlink"] != "ok"
    # Whatever became of it: an answer comes, and it is not a host's file or another sandbox's.
    assert tries(box, "echo said") in (b"said\n", b"")
    arena.alive()
    box.kill()


def test_the_hosts_side_of_the_spool_holds_no_link(arena: "Range", host_secret: Path) -> None:
    """Principle 1: a restart of the daemon, which takes all processes up again, is not led astray either."""
    box = arena.box()
    running = box.spawn("while :; do echo line; sleep 0.05; done")
    # Its own output may be among what it replaces.
    command = ["python3", "-m", "tests.attack.guest.tamper", "spool", str(host_secret)]
    with contextlib.suppress(CorralError):
        box.exec(command, user="root", cwd="/opt/attack", timeout=30)
    arena.daemon.kill()
    arena.daemon.start()
    with arena.daemon.client() as client:
        again = Sandbox.connect(box.id, client=client)
        with contextlib.suppress(CorralError):
            again.process(running.id).kill()
            assert host_secret.read_bytes() not in again.process(running.id).wait().stdout_bytes
        assert host_secret.read_bytes() not in tries(again)
        client.remove_sandbox(box.id)


def test_output_floods_are_bounded(arena: "Range", isolation: str) -> None:
    """RES-2, RES-11: 300 MB of output: the daemon's memory stays flat, the sandbox's quota holds, the caller gets its limit."""
    box = arena.box(isolation, limits={"disk": 128 * MIB, "memory": 512 * MIB})
    before = memory_of(arena)
    done = box.exec("head -c 300000000 /dev/zero | tr '\\0' x", timeout=100, output_limit=MIB)
    assert len(done.stdout_bytes) <= MIB
    assert done.truncated
    assert memory_of(arena) < before + 96 * MIB
    spool = arena.store.parent / "spools" / box.id
    assert sum(path.stat().st_blocks * 512 for path in spool.iterdir()) <= 128 * MIB
    arena.alive()


def test_hostile_text_does_not_reach_the_operators_terminal(arena: "Range") -> None:
    """Principle 1: escape sequences in names and refusals are shown, not obeyed, by the commands that list them."""
    box = arena.box()
    escape = "\x1b]0;owned\x07\x1b[31m"
    box.exec(
        ["python3", "-c", f"import os; os.mkdir('/home/user/d'); open('/home/user/d/{escape}x', 'w')"],
        check=True,
    )
    arena.net(
        box,
        ("http", "10.200.0.1", 80, "evil.example", f"/{escape}"),
        ("http", "10.200.0.1", 80, f"evil{escape}.example"),
    )
    for command in (
        ("files", "ls", box.name, "/home/user/d"),
        ("denials", box.name),
        ("show", box.name),
        ("ps", box.name),
    ):
        done = arena.daemon.cli(*command, check=False)
        assert "\x1b]0;" not in done.stdout + done.stderr, command


# -- an unprivileged user of the host ---------------------------------------------------------------------------------

_AS_NOBODY = """
import json, os, socket, sys
run, data, gateway = sys.argv[1:]
def outcome(action):
    try: action()
    except OSError as error: return type(error).__name__
    return "ok"
def connect():
    with socket.socket(socket.AF_UNIX) as s: s.connect(f"{run}/api.sock")
def look(place):
    if os.path.islink(place): os.readlink(place)
    elif os.path.isdir(place): os.listdir(place)
    else: open(place).close()
found = {"socket": outcome(connect)}
for path in ("corral.db", "key", "config.json", "logs/engine.log", "logs/gateway.log", "store/sandboxes", "sandboxes"):
    found[path] = outcome(lambda: look(f"{data}/{path}"))
for path in ("mem", "environ", "fd", "root"):
    found[f"gateway {path}"] = outcome(lambda: look(f"/proc/{gateway}/{path}"))
found["signal"] = outcome(lambda: os.kill(int(gateway), 0))
for place in ("/run/corral", run, f"{run}/sandboxes"):
    found[place] = outcome(lambda: os.listdir(place))
print(json.dumps(found))
"""


def test_other_users_of_the_host_reach_nothing(arena: "Range") -> None:
    """CRED-15, design §4: no local user opens the API, the database, the key, logs, sandboxes' files or the gateway's memory."""
    arena.box()
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", _AS_NOBODY,
         str(arena.daemon.run), str(arena.daemon.data), str(arena.gateway.pid)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert {
        what: result
        for what, result in found.items()
        if result not in ("PermissionError", "FileNotFoundError")
    } == {}
    assert found["socket"] == "PermissionError"
    assert found["key"] == "PermissionError"


def test_the_gateway_has_no_rights_of_its_own(arena: "Range") -> None:
    """Design §4: what parses hostile bytes is not root, has no capability, no way to get one, and cannot read the vault."""
    pid = arena.gateway.pid
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert 0 not in {
        int(number) for number in (status["Uid"] + " " + status["Gid"] + " " + status["Groups"]).split()
    }
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Groups"].strip() == ""
    uid = status["Uid"].split()[0]
    attempt = "import sys; open(sys.argv[1]).read()"
    for path in (arena.daemon.data / "key", arena.daemon.data / "corral.db", "/etc/shadow"):
        done = subprocess.run(
            ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "/usr/bin/python3", "-c", attempt, str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "PermissionError" in done.stderr, path


def test_secrets_are_sealed_with_a_key_for_root_only(arena: "Range") -> None:
    """G-40, issue of principle 3: the vault's key file is for its owner alone, and so is the database."""
    for name in ("key", "corral.db"):
        status = (arena.daemon.data / name).stat()
        assert status.st_mode & 0o077 == 0, name
        assert status.st_uid == os.geteuid()


def test_two_daemons_do_not_share_a_data_directory(arena: "Range") -> None:
    """LIFE-5, design §4: a second daemon on one data directory refuses to start, and the first one serves on."""
    done = subprocess.run(
        [sys.executable, "-m", "corral.daemon.main"],
        env=arena.daemon.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    arena.alive()
