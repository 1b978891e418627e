"""What rights a process has, and whether it can get more."""

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

from .kit import in_child, libc, outcome, report, touch

SYS_ADMIN = 21
PR_CAPBSET_READ, PR_CAP_AMBIENT = 23, 47


def fields(pid: str = "self") -> dict[str, str]:
    """The rights of a process, as hexadecimal masks."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        line.split(":")[0]: line.split()[1]
        for line in lines
        if line.startswith(("Cap", "NoNewPrivs", "Seccomp:"))
    }


def capset_all() -> None:
    """Take every right that there is."""
    header = struct.pack("=Ii", 0x20080522, 0)
    every = struct.pack("=6I", 0xFFFFFFFF, 0xFFFFFFFF, 0, 0x1FF, 0x1FF, 0)
    if libc.capset(header, every) != 0:
        raise OSError(ctypes.get_errno(), "")


def run_with_file_rights() -> str:
    """Run a program whose file grants SYS_ADMIN; its exit code and effective rights."""
    path = "/root/granted"
    Path(path).write_bytes(Path("/bin/cat").read_bytes())
    Path(path).chmod(0o755)
    value = struct.pack("<5I", 0x02000001, 1 << SYS_ADMIN, 0, 0, 0)
    setting = outcome(os.setxattr, path, "security.capability", value)
    if setting != "ok":
        return setting
    try:
        said = subprocess.run([path, "/proc/self/status"], capture_output=True, text=True, check=False)
    except OSError:
        return "refused"
    return next(
        (line.split()[1] for line in said.stdout.splitlines() if line.startswith("CapEff")), "refused"
    )


def setuid_root() -> str:
    """As the user, the effective rights of a setuid root program of the sandbox's own root."""
    path = "/var/tmp/rooted"
    Path(path).write_bytes(Path("/bin/cat").read_bytes())
    Path(path).chmod(0o4755)
    said = subprocess.run(
        ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", path, "/proc/self/status"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return next(
        (line.split()[1] for line in said.stdout.splitlines() if line.startswith("CapEff")), "refused"
    )


def processes() -> dict[str, str]:
    """All processes that can be seen, and what they are called."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[entry.name] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("latin-1")
            except OSError:
                continue
    return found


def foreign(pids: list[int]) -> dict[str, str]:
    """Attempts on processes of the host, by their numbers there."""
    found = {}
    for pid in pids:
        found[f"kill {pid}"] = outcome(os.kill, pid, 0)
        found[f"open {pid}"] = outcome(touch, f"/proc/{pid}/mem", os.O_RDONLY)
        found[f"root {pid}"] = outcome(os.listdir, f"/proc/{pid}/root/")
        found[f"ptrace {pid}"] = in_child(_ptrace, pid)
        found[f"pidfd {pid}"] = outcome(os.pidfd_open, pid)
    return found


def _ptrace(pid: int) -> None:
    if libc.ptrace(16, pid, None, None) != 0:  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "")


if __name__ == "__main__":
    report(
        {
            "own": fields(),
            "raise": in_child(capset_all),
            "file": run_with_file_rights(),
            "setuid": setuid_root(),
            "user map": Path("/proc/self/uid_map").read_text().split(),
            "group map": Path("/proc/self/gid_map").read_text().split(),
            "beyond": outcome(os.chown, "/root", 70_000, 70_000),
            "cgroup": Path("/proc/self/cgroup").read_text(),
            "processes": processes(),
            "foreign": foreign([int(text) for text in sys.argv[1:]]),
        }
    )
