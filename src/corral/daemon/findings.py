"""What `corral doctor` makes of what was found: pure functions from facts to checks."""

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from corral.errors import CorralError
from corral.host.cgroups import Layout
from corral.host.probe import Kernel, KernelLimits, Room
from corral.host.programs import install_hint
from corral.model.ids import LayerDigest
from corral.model.template import Template
from corral.policy.addresses import parse_networks, refused_class

GIB = 1 << 30
_OLDEST_KERNEL = (5, 19)
_WANTED_CONTROLLERS = ("memory", "pids", "cpu", "freezer", "blkio", "devices", "cpuset")


class Status(StrEnum):
    """OK; WARN: something will not work, or not well; FAIL: no sandbox can run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """A finding: what was found, and what to do where it is amiss. `fix_value`: what a setting would have to be."""

    name: str
    status: Status
    message: str
    hint: str = ""
    fix_value: Any = None


def tried(name: str, error: str, good: str, hint: str) -> Check:
    """Something that was really tried: `error` is empty if it worked."""
    return Check(name, Status.FAIL, error, hint) if error else Check(name, Status.OK, good)


def kernel(found: Kernel) -> Check:
    """Id-mapped layers under overlayfs need Linux 5.19; the rest of the features are tried, not told by number."""
    numbers = [part for part in found.release.split("-")[0].split(".")[:2] if part.isdecimal()]
    version = tuple(int(number) for number in numbers)
    if version < _OLDEST_KERNEL:
        return Check("kernel", Status.FAIL, f"Linux {found.release}", "install Linux 5.19 or newer")
    return Check("kernel", Status.OK, f"Linux {found.release}")


def seccomp(found: Kernel) -> Check:
    """Every container gets a filter."""
    if {"allow", "errno"} <= found.seccomp:
        return Check("seccomp", Status.OK, "filters are available")
    return Check("seccomp", Status.FAIL, "no seccomp filters", "use a kernel with CONFIG_SECCOMP_FILTER=y")


def cgroups(layout: Layout | None, unified_controllers: Collection[str], error: str = "") -> Check:
    """Limits that cannot be enforced are named here, not discovered later (RES-9)."""
    if layout is None:
        return Check("cgroups", Status.FAIL, error, "mount cgroup2 at /sys/fs/cgroup")
    found = set(layout.controllers) if layout.version == 1 else set(unified_controllers)
    if layout.version == 2:
        found |= {"freezer", "devices"}  # part of version 2 itself
        found |= {"blkio"} & {"blkio" if name == "io" else name for name in found}
    missing = [name for name in _WANTED_CONTROLLERS if name not in found]
    kind = f"version {layout.version}" + (
        ", mixed with version 2" if layout.version == 1 and layout.unified else ""
    )
    if {"memory", "pids"} & set(missing):
        return Check(
            "cgroups", Status.FAIL, f"{kind}, without {', '.join(missing)}: limits cannot be enforced",
            "boot with `cgroup_enable=memory swapaccount=1`, and mount all controllers",
        )  # fmt: skip
    if missing:
        return Check(
            "cgroups",
            Status.WARN,
            f"{kind}, without {', '.join(missing)}",
            "mount these controllers at /sys/fs/cgroup",
        )
    return Check("cgroups", Status.OK, kind)


def store(kind: str, reason: str, found: Kernel) -> Check:
    """`kind` of the store as recorded, empty if it was not made yet."""
    if kind == "plain":
        return Check(
            "store", Status.WARN, f"plain directories: no disk limits, slow checkpoints ({reason})",
            "use a data directory on btrfs, or a kernel with btrfs and loop devices; "
            "to run without disk limits: `corral config set store.unlimited true`",
        )  # fmt: skip
    if kind:
        said = {"btrfs": "btrfs of the data directory", "loop": "btrfs in a sparse loop file"}
        return Check("store", Status.OK, f"{said.get(kind, kind)}, disk limits enforced")
    if "btrfs" in found.filesystems and found.loop_control:
        return Check("store", Status.OK, "not made yet; will be a btrfs")
    return Check(
        "store", Status.WARN, "not made yet; this kernel has no btrfs or no loop devices at the moment",
        "load them: `modprobe btrfs loop`; without them disk cannot be limited, and no sandbox starts",
    )  # fmt: skip


def runtimes(usable: Mapping[str, str], problems: Mapping[str, str]) -> list[Check]:
    """`usable`: isolation by name of the runtime; `problems`: why the others do not work. Each one was tried."""
    checks = [
        Check(f"runtime {name}", Status.OK, f"works (isolation {level})") for name, level in usable.items()
    ]
    for name, problem in problems.items():
        # It ends with what to do, where that is known.
        message = problem.removesuffix(f" ({CorralError.default_hint})")
        checks.append(Check(f"runtime {name}", Status.WARN if usable else Status.FAIL, message))
    return checks


_PROGRAMS: Mapping[str, tuple[Status, str]] = {
    "corral-init": (Status.FAIL, "PID 1 of every sandbox"),
    "mkfs.btrfs": (Status.WARN, "makes the store"),
    "mmdebstrap": (Status.WARN, "builds the `base` template"),
    "skopeo": (Status.WARN, "pulls OCI images"),
    "git": (Status.WARN, "brings repositories in and commits out"),
}
PROGRAMS = tuple(_PROGRAMS)


def programs(found: Mapping[str, Path | None]) -> list[Check]:
    """One check per program that Corral calls."""
    checks = []
    for name, path in found.items():
        missing, purpose = _PROGRAMS[name]
        if path is None:
            checks.append(Check(name, missing, f"missing ({purpose})", install_hint(name)))
        else:
            checks.append(Check(name, Status.OK, f"{path} ({purpose})"))
    return checks


def room(found: Room) -> list[Check]:
    """Disk and memory for the base template and a few sandboxes."""
    disk = f"{found.disk / GIB:.1f} GiB free"
    memory = f"{found.memory / GIB:.1f} GiB available"
    few_inodes = found.inodes is not None and found.inodes < 100_000
    return [
        Check("disk", Status.FAIL, disk, "free at least 2 GiB for the data directory")
        if found.disk < 2 * GIB
        else Check("disk", Status.WARN, f"{disk}, {found.inodes} inodes free", "free some space or inodes")
        if found.disk < 10 * GIB or few_inodes
        else Check("disk", Status.OK, disk),
        Check("memory", Status.WARN, memory, "stop something, or give the machine more")
        if found.memory < GIB
        else Check("memory", Status.OK, memory),
    ]


def limits(found: KernelLimits) -> list[Check]:
    """System-wide limits that show only with many sandboxes."""
    wanted = (
        ("inotify instances", found.inotify_instances, 512, "sysctl -w fs.inotify.max_user_instances=8192"),
        ("inotify watches", found.inotify_watches, 65536, "sysctl -w fs.inotify.max_user_watches=1048576"),
        ("open files", found.open_files, 4096, "start the daemon with `ulimit -n 1048576`"),
        ("user namespaces", found.user_namespaces, 256, "sysctl -w user.max_user_namespaces=65536"),
        ("processes", found.pid_max, 32768, "sysctl -w kernel.pid_max=4194304"),
    )
    checks = []
    for name, value, least, command in wanted:
        if value is None or value >= least:
            checks.append(Check(f"limit {name}", Status.OK, "not limited" if value is None else f"{value}"))
        else:
            checks.append(
                Check(f"limit {name}", Status.WARN, f"{value}; many sandboxes need more", f"`{command}`")
            )
    return checks


def registries(
    addresses: Mapping[str, Sequence[str]], opened: tuple[str, ...], own: Collection[str]
) -> Check:
    """Whether the gateway would dial the package registries' addresses. `opened`: setting `egress.networks`."""
    unknown = [host for host, found in addresses.items() if not found]
    networks = parse_networks(opened)
    own_addresses = {ipaddress.ip_address(address) for address in own}
    refused: dict[str, tuple[str, list[str]]] = {}
    for host, found in addresses.items():
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            kind = refused_class(address, networks, own_addresses)
            if kind is not None:
                refused.setdefault(str(ipaddress.ip_network(address)), (kind, []))[1].append(host)
    if refused:
        value = [*opened, *refused]
        said = (f"{network} is {kind}: {', '.join(hosts)}" for network, (kind, hosts) in refused.items())
        return Check(
            "registries",
            Status.WARN,
            f"the gateway would not dial these: {'; '.join(said)}",
            f"if this network is yours, let sandboxes' allowed names lead there: "
            f"`corral config set egress.networks {','.join(value)}`",
            fix_value=value,
        )
    if unknown:
        return Check(
            "registries", Status.WARN, f"{', '.join(unknown)} cannot be resolved on this host",
            "agents and packages cannot be installed: mend the host's DNS",
        )  # fmt: skip
    return Check(
        "registries",
        Status.OK,
        f"{len(addresses)} package registries resolve to addresses that may be dialled",
    )


def layers(problems: Mapping[LayerDigest, str], templates: Sequence[Template], total: int) -> Check:
    """What reading all layers has shown; templates are named by the damaged ones that they have."""
    if not problems:
        return Check("layers", Status.OK, f"all {total} layers were read and are whole")
    told = "; ".join(f"{layer}: {problem}" for layer, problem in problems.items())
    names = sorted(
        {template.name for template in templates if not problems.keys().isdisjoint(template.layers)}
    )
    return Check(
        "layers",
        Status.WARN,
        f"{len(problems)} of {total} layers are damaged and not used any more: {told}",
        f"remove these templates and the sandboxes of them, then build them again: {', '.join(names)}"
        if names
        else "no template has them: `corral prune` removes them",
    )
