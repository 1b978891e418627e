"""Corral's launcher and runc make the same sandbox of the same configuration: what a process sees is compared, and what it
may not do is tried under both."""

import re

import pytest
from tests.conftest import Daemon

from corral import Client

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

LOOK = r"""
awk '{print $4, $5, $6, $(NF-2), $(NF)}' /proc/1/mountinfo | sort
ls -lan --time-style=+ / /dev /dev/shm /dev/pts /dev/mqueue /run /run/corral
grep -E '^(Umask|Uid|Gid|Groups|Sig...:|ShdPnd|Cap|NoNew|Seccomp|Speculation)' /proc/1/status
cat /proc/1/limits /proc/1/cgroup /proc/1/uid_map /proc/1/gid_map /proc/1/oom_score_adj /proc/1/setgroups
cat /proc/1/sessionid /proc/sys/net/ipv4/ping_group_range; hostname; umask
"""
TRY = r"""
for what in 'echo x > /proc/sys/kernel/hostname' 'mknod /tmp/x c 1 3' 'mknod /dev/sda b 8 0' 'cat /proc/kcore' \
    'hostname other' 'mount -t tmpfs x /mnt' 'unshare -U true' 'unshare -m true' 'chroot / true' 'cat /proc/1/environ' \
    'echo 1 > /proc/1/oom_score_adj' 'umount /proc/sys' 'umount /proc/keys' 'cat /proc/keys' 'ls /sys/firmware' \
    'python3 -c "import ctypes; print(ctypes.CDLL(None).syscall(250, 0, -3, 1))"' 'ls /sys/class/net' \
    'touch /etc/hosts' 'echo x >> /etc/hosts' 'echo x > /run/corral/init' 'chmod 4755 /run/corral/io'; do
  sh -c "$what" >/tmp/out 2>/dev/null; echo "$what: $? $(cat /tmp/out)"
done
"""


@pytest.fixture(scope="module")
def seen(shared_daemon: Daemon) -> dict[str, tuple[str, str]]:
    found = {}
    with shared_daemon.client() as client:
        for runtime in ("corral", "runc"):
            box = client.create_sandbox(name="same", runtime=runtime)
            found[runtime] = _look(client, box.id)
            client.remove_sandbox(box.id)
    return found


def _look(client: Client, ref: str) -> tuple[str, str]:
    looked = client.exec_command(ref, LOOK, user="root").stdout
    return looked, client.exec_command(ref, TRY, user="root").stdout


def test_a_process_sees_the_same(seen: dict[str, tuple[str, str]]) -> None:
    ours, theirs = (_plain(seen[name][0]) for name in ("corral", "runc"))
    assert ours - theirs == set()
    assert theirs - ours == set()


def _plain(text: str) -> set[str]:
    """Without what differs by chance, or is stricter with the launcher: device files cannot be set-user-id or run."""
    text = re.sub(r"/(spools|sandboxes)/[0-9a-f]{16}", r"/\1/ID", text)
    text = re.sub(r"subvolid=\d+|subvol=\S+|(lower|upper|work)dir\S*", "", text)
    text = re.sub(
        r"^(/(?:null|zero|full|tty|random|urandom) \S+ \S*).*$", r"\1 device", text, flags=re.MULTILINE
    )
    text = re.sub(r"(/proc/acpi|/proc/scsi|/sys/firmware|/proc/asound) .*", r"\1 masked", text)
    text = re.sub(r"rw,nosuid,noexec,relatime device|rw,relatime device", "device", text)
    text = re.sub(r" (proc|tmpfs|devpts|mqueue|shm|none|sysfs) rw", " rw", text)
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    # Of /dev/null runc changes the owner, on the host; sizes and counts of directories are of the moment.
    return {
        re.sub(r"^(\S+) \d+ \d+ \d+ (.*)$", r"\1 \2", line) for line in lines if not line.endswith("null")
    }


def test_what_is_refused_is_refused_by_both(seen: dict[str, tuple[str, str]]) -> None:
    assert seen["corral"][1].splitlines() == seen["runc"][1].splitlines()
