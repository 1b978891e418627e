"""A bundle as the plan of `corral-launch`: the same configuration, step by step, as a pure function.

The configuration stays the one place where hardening stands; this module knows how to say it to the launcher, and refuses
what it does not know, so nothing of it can be lost in silence.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.errors import InternalError
from corral.host.cgroups import Layout

_ATTRIBUTES = {"ro": 0x1, "nosuid": 0x2, "nodev": 0x4, "noexec": 0x8, "strictatime": 0x20}
_NOT_ATTRIBUTES = {"rw", "bind", "private"}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
)
_RLIMITS = {"RLIMIT_CORE": 4, "RLIMIT_NOFILE": 7}
_CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SYS_CHROOT": 18,
    "CAP_SYS_PTRACE": 19,
    "CAP_SETFCAP": 31,
}
_NAMESPACES = {"user", "mount", "pid", "ipc", "uts", "cgroup", "network"}
_DEVICE_RULES = (
    "c 1:3 rw",  # null, zero, full, random, urandom, tty, ptmx, pts: what is bound or made in /dev
    "c 1:5 rw",
    "c 1:7 rw",
    "c 1:8 rw",
    "c 1:9 rw",
    "c 5:0 rw",
    "c 5:2 rw",
    "c 136:* rw",
)
Step = tuple[str, ...]


def launch_plan(config: Mapping[str, Any], layout: Layout, seccomp: Path) -> bytes:
    """The plan for a bundle's configuration on a host whose cgroups are of version 1. `seccomp`: the compiled filter.

    Raises InternalError for what the launcher cannot do: it would be a weaker sandbox.
    """
    linux, process = config["linux"], config["process"]
    steps: list[Step] = [
        *_groups(linux["cgroupsPath"], linux["resources"], layout),
        *_namespaces(linux),
        *_ids(linux),
        ("root", config["root"]["path"]),
        *_mounts(config["mounts"]),
        *(("mask", path) for path in linux["maskedPaths"]),
        *(("readonly", path) for path in linux["readonlyPaths"]),
        ("hostname", config["hostname"]),
        *_rights(process),
        *([("seccomp", str(seccomp))] if "seccomp" in linux else []),
        *(("exec", arg) for arg in process["args"]),
    ]
    _check(config)
    return b"".join(part.encode() + b"\0" for step in steps for part in step)


def _check(config: Mapping[str, Any]) -> None:
    process = config["process"]
    plain = (
        not process["env"]
        and process["cwd"] == "/"
        and process["user"] == {"uid": 0, "gid": 0}
        and not process["terminal"]
        and not config["root"]["readonly"]
    )
    if not plain:
        raise InternalError("the launcher starts a program as root without environment")


def _groups(name: str, resources: Mapping[str, Any], layout: Layout) -> Iterable[Step]:
    known = {"devices", "memory", "cpu", "pids", "blockIO"}
    if unknown := resources.keys() - known:
        raise InternalError(f"the launcher does not know the limit {min(unknown)}")
    limits = _limits(resources)
    below = name.removeprefix("/")
    for root in dict.fromkeys(layout.roots):
        controllers = {key for key, place in layout.controllers.items() if place == root}
        if "cpuset" in controllers:
            continue  # a group of it takes nobody in before it is told processors and memory
        yield "cgroup", str(root), below
        for controller in sorted(controllers & limits.keys()):
            yield from (("limit", file, value) for file, value in limits[controller])


def _limits(resources: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    memory, cpu = resources["memory"], resources["cpu"]
    found = {
        "memory": [("memory.limit_in_bytes", str(memory["limit"]))],
        "cpu": [("cpu.cfs_period_us", str(cpu["period"])), ("cpu.cfs_quota_us", str(cpu["quota"]))],
        "pids": [("pids.max", str(resources["pids"]["limit"]))],
        "devices": [("devices.deny", "a"), *(("devices.allow", rule) for rule in _DEVICE_RULES)],
    }
    if "swap" in memory:
        found["memory"].append(("memory.memsw.limit_in_bytes", str(memory["swap"])))
    if "blockIO" in resources:
        found["blkio"] = [("blkio.weight", str(resources["blockIO"]["weight"]))]
    return found


def _namespaces(linux: Mapping[str, Any]) -> Iterable[Step]:
    kinds = {item["type"]: item.get("path") for item in linux["namespaces"]}
    if set(kinds) != _NAMESPACES or any(path for kind, path in kinds.items() if kind != "network" and path):
        raise InternalError("the launcher makes all namespaces but the network's anew")
    if kinds["network"]:
        yield "netns", kinds["network"]


def _ids(linux: Mapping[str, Any]) -> Iterable[Step]:
    mappings = linux["uidMappings"]
    if mappings != linux["gidMappings"] or len(mappings) != 1 or mappings[0]["containerID"] != 0:
        raise InternalError("the launcher maps one range of ids, the same for users and groups")
    yield "ids", str(mappings[0]["hostID"]), str(mappings[0]["size"])


def _mounts(mounts: Sequence[Mapping[str, Any]]) -> Iterable[Step]:
    for item in mounts:
        flags = [name for name in item["options"] if name in _ATTRIBUTES]
        options = [
            name for name in item["options"] if name not in _ATTRIBUTES and name not in _NOT_ATTRIBUTES
        ]
        attributes = str(sum(_ATTRIBUTES[name] for name in flags))
        if item["type"] == "bind":
            if options:
                raise InternalError(f"the launcher does not know the mount option {options[0]}")
            yield "bind", item["source"], item["destination"], attributes
        else:
            yield (
                "fs",
                item["type"],
                item["destination"],
                attributes,
                ",".join(o for o in options if o != "newinstance"),
            )
        if item["destination"] == "/dev":
            quiet = str(_ATTRIBUTES["nosuid"] | _ATTRIBUTES["noexec"])
            yield from (("bind", f"/dev/{name}", f"/dev/{name}", quiet) for name in _DEVICES)
            yield from (("link", says, path) for says, path in _LINKS)


def _rights(process: Mapping[str, Any]) -> Iterable[Step]:
    for item in process["rlimits"]:
        yield "rlimit", str(_RLIMITS[item["type"]]), str(item["soft"]), str(item["hard"])
    sets = process["capabilities"]
    if not sets["bounding"] == sets["effective"] == sets["permitted"] or set(sets) & {
        "ambient",
        "inheritable",
    }:
        raise InternalError("the launcher gives one set of capabilities, nothing of it inheritable")
    yield "caps", str(sum(1 << _CAPABILITIES[name] for name in sets["bounding"]))
    if process["noNewPrivileges"]:
        yield ("nnp",)
