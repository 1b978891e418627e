"""What a program sees through E2B's SDK of sandboxes under gVisor: what ran goes on, in pauses, snapshots and forks."""

import os
import urllib.request

from e2b import Sandbox, SandboxState
from python_sync import Fresh, wait_until

COUNTER = "n=0; while sleep 0.05; do n=$((n+1)); echo $n > /home/user/count; done"
SERVER = "cd /srv && exec python3 -m http.server {port} --bind {address}"


def count(box: Sandbox) -> int:
    """How far the counter is; what it wrote half is read again."""
    text = ""
    while not text.endswith("\n"):
        text = box.files.read("/home/user/count")
    return int(text)


def counting(box: Sandbox) -> int:
    """Start the counter; its process id."""
    running = box.commands.run(COUNTER, background=True)
    wait_until(lambda: box.files.exists("/home/user/count") and count(box) > 2, "the counter")
    return running.pid


def goes_on(box: Sandbox, pid: int, before: int) -> None:
    """The same process counts from where it was."""
    assert [item.pid for item in box.commands.list()] == [pid]
    wait_until(lambda: count(box) > before, "the counter after it was kept")


def case_it_is_gvisor() -> None:
    with Fresh() as box:
        assert "gVisor" in box.commands.run("dmesg 2>/dev/null || cat /proc/version", user="root").stdout


def named(box: Sandbox) -> bool:
    """Whether the files that tell which sandbox it is tell this one, and are root's."""
    told = "cd /run/e2b && for name in '' _ID; do cat .E2B_SANDBOX$name && echo; done && cat .E2B_TEMPLATE_ID && echo"
    said = box.commands.run(f"{told} && stat -c %U:%a .E2B_* && ! touch .E2B_SANDBOX_ID").stdout.split()
    return said == ["true", box.sandbox_id, box.get_info().template_id, *["root:644"] * 3]


def case_files_tell_which_sandbox_it_is() -> None:
    with Fresh() as box:
        assert named(box)
        box.pause(mode="filesystem")
        assert named(Sandbox.connect(box.sandbox_id))
        box.pause()
        assert named(Sandbox.connect(box.sandbox_id))
        for child in box.fork(count=2):
            assert named(child)
            assert child.kill()
        assert named(box)
        snapshot = box.create_snapshot()
        with Fresh(template=snapshot.snapshot_id) as other:
            assert named(other)
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True


def case_files_go_both_ways() -> None:
    with Fresh() as box:
        box.files.write("given", "from outside")
        assert box.commands.run("cat given && echo from inside > made").stdout == "from outside"
        assert box.files.read("made") == "from inside\n"
        box.files.write("given", "anew")
        assert box.commands.run("cat given").stdout == "anew"


def case_metrics_tell_what_files_hold() -> None:
    size = 32 * 1024 * 1024
    with Fresh() as box:
        box.commands.run(f"head -c {size} /dev/zero >/home/user/cached && cat /home/user/cached >/dev/null")
        sample = box.get_metrics()[-1]
        assert size // 2 < sample.mem_cache < sample.mem_total


def case_a_pause_keeps_memory() -> None:
    with Fresh() as box:
        pid = counting(box)
        before = count(box)
        box.pause()
        assert box.get_info().state == SandboxState.PAUSED
        goes_on(Sandbox.connect(box.sandbox_id), pid, before)


def case_a_pause_at_the_end_of_time_is_woken_by_traffic() -> None:
    with Fresh(lifecycle={"on_timeout": "pause", "auto_resume": True}) as box:
        pid = counting(box)
        box.set_timeout(1)
        wait_until(lambda: box.get_info().state == SandboxState.PAUSED, "the pause")
        assert box.commands.run("echo back").stdout == "back\n"
        assert [item.pid for item in box.commands.list()] == [pid]


def case_snapshots_and_forks_go_on() -> None:
    with Fresh() as box:
        pid = counting(box)
        snapshot = box.create_snapshot()
        with Fresh(template=snapshot.snapshot_id) as child:
            goes_on(child, pid, 2)
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
        for child in box.fork(count=2):
            goes_on(child, pid, 2)
            assert child.kill()


def asked(box: Sandbox, port: int) -> bytes:
    """What a server in the sandbox answers, asked from outside."""
    named = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(port)}
    with urllib.request.urlopen(
        urllib.request.Request(os.environ["E2B_SANDBOX_URL"], headers=named)
    ) as answer:
        return answer.read()


def case_ports_are_served_of_all_addresses_and_of_the_loopback_after_a_pause_too() -> None:
    with Fresh() as box:
        box.files.write("/srv/index.html", "served", user="root")
        for port, address in ((8000, "0.0.0.0"), (8001, "127.0.0.1")):
            box.commands.run(SERVER.format(port=port, address=address), background=True)
            probe = f"curl -sI localhost:{port} || true"
            wait_until(lambda probe=probe: "200" in box.commands.run(probe).stdout, "the server")
            assert asked(box, port) == b"served"
        box.pause()
        box.connect()
        assert [asked(box, port) for port in (8000, 8001)] == [b"served"] * 2
