"""The launcher's plan says all that the bundle says, and refuses what it cannot say."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.oci.test_bundle import config

from corral.errors import InternalError
from corral.host.cgroups import Layout
from corral.model.sandbox import MIB
from corral.model.template import TemplateConfig
from corral.oci.plan import launch_plan

ROOT = Path("/sys/fs/cgroup")
LAYOUT = Layout(
    {name: ROOT / name for name in ("memory", "cpu", "pids", "devices", "freezer", "cpuset", "blkio")},
    ROOT / "unified",
    tuple(
        ROOT / name
        for name in ("memory", "cpu", "pids", "devices", "freezer", "cpuset", "blkio", "systemd", "unified")
    ),
)
ARGUMENTS = {
    **dict.fromkeys(("cgroup", "limit", "ids", "link"), 2),
    **dict.fromkeys(("bind", "rlimit"), 3),
    "fs": 4,
    "nnp": 0,
}


def steps(bundle: dict[str, Any] | None = None) -> list[tuple[str, ...]]:
    parts = launch_plan(bundle or config(), LAYOUT, Path("/filter")).decode().split("\0")
    assert parts.pop() == ""
    found = []
    while parts:
        count = 1 + ARGUMENTS.get(parts[0], 1)
        found.append(tuple(parts[:count]))
        del parts[:count]
    return found


def test_every_group_is_made_and_limited_before_it_is_joined() -> None:
    made = [step for step in steps() if step[0] in ("cgroup", "limit")]
    places = [step[1] for step in made if step[0] == "cgroup"]
    assert str(ROOT / "cpuset") not in places
    assert {
        f"{ROOT}/{name}" for name in ("memory", "pids", "devices", "freezer", "systemd", "unified")
    } <= set(places)
    limits = {step[1]: step[2] for step in made if step[0] == "limit" and step[1] != "devices.allow"}
    assert limits["memory.limit_in_bytes"] == limits["memory.memsw.limit_in_bytes"] == str(512 * MIB)
    assert limits["cpu.cfs_quota_us"] == "150000"
    assert limits["pids.max"] == "100"
    assert limits["devices.deny"] == "a"
    assert limits["blkio.weight"] == "200"


def test_every_mount_mask_and_right_is_in_it() -> None:
    bundle = config()
    found = steps(bundle)
    targets = [step[2] for step in found if step[0] in ("bind", "fs")]
    assert [item["destination"] for item in bundle["mounts"]] == [t for t in targets if not t.startswith("/dev/") or t in (
        "/dev/pts", "/dev/shm", "/dev/mqueue")]  # fmt: skip
    for item in bundle["mounts"]:
        step = next(s for s in found if s[0] in ("bind", "fs") and s[2] == item["destination"])
        assert bool(int(step[3]) & 1) == ("ro" in item["options"])
        assert bool(int(step[3]) & 2) == ("nosuid" in item["options"])
        assert bool(int(step[3]) & 4) == ("nodev" in item["options"])
        assert bool(int(step[3]) & 8) == ("noexec" in item["options"])
    assert [s[1] for s in found if s[0] == "mask"] == bundle["linux"]["maskedPaths"]
    assert [s[1] for s in found if s[0] == "readonly"] == bundle["linux"]["readonlyPaths"]
    assert ("ids", "200000", "65536") in found
    assert ("netns", "/n") in found
    assert ("caps", str(0x800C05FB)) in found
    assert ("seccomp", "/filter") in found
    assert found[-1] == ("exec", "/run/corral/init")


def test_no_new_privileges_unless_the_template_has_sudo() -> None:
    assert ("nnp",) in steps(config(TemplateConfig(sudo=False)))
    assert ("nnp",) not in steps(config(TemplateConfig(sudo=True)))


def _without_bounding(bundle: dict[str, Any]) -> None:
    bundle["process"]["capabilities"]["ambient"] = ["CAP_KILL"]


def _with_environment(bundle: dict[str, Any]) -> None:
    bundle["process"]["env"] = ["A=1"]


def _with_option(bundle: dict[str, Any]) -> None:
    bundle["mounts"].append({"type": "bind", "source": "/x", "destination": "/x", "options": ["rbind"]})


def _with_namespace(bundle: dict[str, Any]) -> None:
    bundle["linux"]["namespaces"].append({"type": "time"})


def _with_limit(bundle: dict[str, Any]) -> None:
    bundle["linux"]["resources"]["hugepageLimits"] = []


@pytest.mark.parametrize(
    "change", [_without_bounding, _with_environment, _with_option, _with_namespace, _with_limit]
)
def test_what_the_launcher_cannot_do_is_refused_not_left_out(change: Any) -> None:
    bundle = config()
    change(bundle)
    with pytest.raises(InternalError):
        launch_plan(bundle, LAYOUT, Path("/filter"))
