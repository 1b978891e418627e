"""Bundles: what hardening promises, as values."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from corral.errors import InvalidInput
from corral.model.egress import EgressPolicy
from corral.model.ids import DEFAULT_TENANT, SandboxId, TemplateId, VolumeId
from corral.model.sandbox import MIB, Isolation, Limits, SandboxSpec
from corral.model.template import TemplateConfig
from corral.model.volume import VolumeMount, VolumeWish, check_mounts
from corral.oci.bundle import BundlePaths, HostFacts, bundle_config, guest_files, probe_config

FACTS = HostFacts(machine="x86_64", cgroup_version=1, swap_limit=True, io_weight=True, nofile=20000)
PATHS = BundlePaths(
    root=Path("/r"),
    netns=Path("/n"),
    sysfs=Path("/s"),
    init=Path("/i"),
    spool=Path("/io"),
    ca_bundle=Path("/ca"),
    bound_bundle=True,
    ask=Path("/ask"),
    resolv_conf=Path("/e/resolv.conf"),
    hosts=Path("/e/hosts"),
    hostname=Path("/e/hostname"),
    machine_id=Path("/e/machine-id"),
)
SPEC = SandboxSpec(
    id=SandboxId("0123456789abcdef"),
    tenant=DEFAULT_TENANT,
    name="brave-otter",
    template=TemplateId("0" * 16),
    isolation=Isolation.CONTAINER,
    runtime="runc",
    limits=Limits(memory=512 * MIB, cpus=1.5, pids=100, io_weight=200),
    env={"SECRET": "no"},
    labels={},
    user="user",
    workdir="/home/user",
    egress=EgressPolicy(()),
    secrets=(),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def config(
    template: TemplateConfig | None = None,
    paths: BundlePaths = PATHS,
    facts: HostFacts = FACTS,
    *,
    seccomp: bool = True,
) -> dict[str, Any]:
    made = bundle_config(
        SPEC,
        template or TemplateConfig(),
        paths,
        facts,
        uid_base=200_000,
        cgroup="/corral-x/1",
        seccomp=seccomp,
    )
    json.dumps(made)
    return made


def mount_at(made: dict[str, Any], target: str) -> dict[str, Any]:
    (found,) = [mount for mount in made["mounts"] if mount["destination"] == target]
    assert isinstance(found, dict)
    return found


def test_a_volume_hides_nothing_that_is_mounted() -> None:
    """Where something is mounted, and above it, no volume may be: so no mount is ever made on what a volume holds."""
    for mount in config()["mounts"]:
        path = mount["destination"]
        while path != "/":
            with pytest.raises(InvalidInput):
                check_mounts([VolumeWish("data", path)])
            path = path.rpartition("/")[0] or "/"


def test_volumes_come_last_and_hold_nothing_to_become_root_by() -> None:
    volumes = ((Path("/v/1"), VolumeMount(VolumeId("1" * 16), "data", "/data")),
               (Path("/v/2"), VolumeMount(VolumeId("2" * 16), "ref", "/ref", read_only=True)))  # fmt: skip
    made = config(paths=replace(PATHS, volumes=volumes))
    assert [(m["destination"], m["source"]) for m in made["mounts"][-2:]] == [
        ("/data", "/v/1"),
        ("/ref", "/v/2"),
    ]
    assert all({"nosuid", "nodev"} <= set(mount["options"]) for mount in made["mounts"][-2:])
    assert ("rw" in made["mounts"][-2]["options"], "ro" in made["mounts"][-1]["options"]) == (True, True)


def test_root_inside_is_a_shifted_id_outside() -> None:
    linux = config()["linux"]
    assert (
        linux["uidMappings"] == linux["gidMappings"] == [{"containerID": 0, "hostID": 200_000, "size": 65536}]
    )
    kinds = {space["type"] for space in linux["namespaces"]}
    assert kinds == {"user", "mount", "pid", "ipc", "uts", "cgroup", "network"}
    assert {"type": "network", "path": "/n"} in linux["namespaces"]


def test_all_limits_are_set() -> None:
    resources = config()["linux"]["resources"]
    assert resources["memory"] == {"limit": 512 * MIB, "swap": 512 * MIB}
    assert resources["cpu"] == {"period": 100_000, "quota": 150_000}
    assert resources["pids"] == {"limit": 100}
    assert resources["blockIO"] == {"weight": 200}
    assert resources["devices"] == [{"allow": False, "access": "rwm"}]


def test_what_the_host_cannot_do_is_not_asked_for() -> None:
    made = config(facts=replace(FACTS, swap_limit=False, io_weight=False))
    assert "swap" not in made["linux"]["resources"]["memory"]
    assert "blockIO" not in made["linux"]["resources"]


def test_rights_are_few_and_not_inherited() -> None:
    process = config()["process"]
    rights = process["capabilities"]
    assert set(rights) == {"bounding", "effective", "permitted"}
    for missing in (
        "NET_RAW",
        "MKNOD",
        "AUDIT_WRITE",
        "SYS_ADMIN",
        "NET_ADMIN",
        "DAC_READ_SEARCH",
        "SYS_MODULE",
    ):
        assert f"CAP_{missing}" not in rights["bounding"]
    assert process["noNewPrivileges"] is False
    assert config(TemplateConfig(sudo=False))["process"]["noNewPrivileges"] is True
    assert {"type": "RLIMIT_CORE", "soft": 1, "hard": 1} in process["rlimits"]
    assert {"type": "RLIMIT_NOFILE", "soft": 20000, "hard": 20000} in process["rlimits"]
    assert "oomScoreAdj" not in process


def test_nothing_of_the_image_or_the_caller_is_started() -> None:
    process = config(TemplateConfig(start_command=("evil",), env={"LD_PRELOAD": "x"}))["process"]
    assert process["args"] == ["/run/corral/init"]
    assert process["env"] == []


def test_what_is_bound_from_the_host_is_read_only_but_the_spool() -> None:
    made = config()
    binds = {mount["destination"]: mount["options"] for mount in made["mounts"] if mount["type"] == "bind"}
    writable = {target for target, options in binds.items() if "ro" not in options}
    assert writable == {"/run/corral/io"}
    assert all({"nosuid", "nodev"} <= set(options) for options in binds.values())
    assert mount_at(made, "/etc/ssl/certs/ca-certificates.crt")["source"] == "/ca"


def test_kernel_files_are_masked() -> None:
    linux = config()["linux"]
    assert {"/proc/kcore", "/proc/keys", "/sys/firmware"} <= set(linux["maskedPaths"])
    assert {"/proc/sys", "/proc/sysrq-trigger"} <= set(linux["readonlyPaths"])


def test_sysfs_is_the_sandbox_s_own_or_the_runtime_s() -> None:
    assert mount_at(config(), "/sys")["source"] == "/s"
    own = mount_at(config(paths=replace(PATHS, sysfs=None)), "/sys")
    assert (own["type"], "ro" in own["options"]) == ("sysfs", True)


def test_cgroups_are_shown_where_one_mount_is_enough() -> None:
    made = config(facts=replace(FACTS, cgroup_version=2))
    assert "ro" in mount_at(made, "/sys/fs/cgroup")["options"]
    assert all(mount["destination"] != "/sys/fs/cgroup" for mount in config()["mounts"])


def test_profile_only_where_the_guest_calls_the_host_s_kernel() -> None:
    assert "seccomp" in config()["linux"]
    assert "seccomp" not in config(seccomp=False)["linux"]


def test_guest_files() -> None:
    files = guest_files(SPEC.id, "brave-otter", "10.200.0.1")
    assert files["resolv.conf"].startswith("nameserver 10.200.0.1\n")
    assert "127.0.1.1\tbrave-otter\n" in files["hosts"]
    assert "10.200.0.1\tgateway.corral\n" in files["hosts"]
    assert files["hostname"] == "brave-otter\n"
    assert re.fullmatch(r"[0-9a-f]{32}\n", files["machine-id"])
    other = guest_files(SandboxId("f" * 16), "brave-otter", "10.200.0.1")
    assert other["machine-id"] != files["machine-id"]


def test_probe_has_all_that_a_runtime_may_refuse() -> None:
    made = probe_config(Path("/p"), ["/init"], FACTS, uid_base=1000, cgroup="/corral-x/probe", seccomp=True)
    assert made["process"]["args"] == ["/init"]
    for part in ("uidMappings", "resources", "seccomp", "cgroupsPath", "maskedPaths"):
        assert made["linux"][part] or part == "uidMappings"
    assert {"type": "network"} in made["linux"]["namespaces"]
