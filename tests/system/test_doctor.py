"""`corral doctor` on this machine: everything is really tried, and nothing is left behind."""

import json
import os
import sys
from pathlib import Path

import pytest

from corral.daemon.doctor import run_checks
from corral.daemon.findings import Status
from corral.host import mounts, process
from corral.model.places import instance_of

pytestmark = pytest.mark.root


EXPECTED = {
    *(
        "kernel",
        "seccomp",
        "root filesystem",
        "network",
        "cgroups",
        "runtime runc",
        "runtime crun",
        "store",
        "registries",
    ),
    *("mmdebstrap", "skopeo", "git", "corral-init", "disk", "memory"),
}


async def test_this_machine_can_run_sandboxes_and_nothing_is_left(tmp_path: Path) -> None:
    checks = await run_checks(tmp_path)
    assert [check for check in checks if check.status is Status.FAIL] == []
    assert {check.name for check in checks} >= EXPECTED
    assert _left_behind(tmp_path) == []


def _left_behind(data_dir: Path) -> list[object]:
    """What this process's checks have left: files, mounts, cgroups."""
    groups = Path("/sys/fs/cgroup").glob(f"**/corral-{instance_of(data_dir)}/doctor-{os.getpid()}")
    return [
        *data_dir.iterdir(),
        *(entry for entry in mounts.mounts() if entry.target.is_relative_to(data_dir)),
        *groups,
    ]


async def test_it_speaks_json_and_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "corral.daemon.doctor", "--json"]
    done = await process.run(command, timeout=60, env={"CORRAL_DATA_DIR": str(tmp_path)}, check=True)
    checks = json.loads(done.stdout)
    assert all(check["status"] in ("ok", "warn") for check in checks)
    registries = next(check for check in checks if check["name"] == "registries")
    assert (registries["status"] == "warn") == bool(registries["hint"])
