"""What a sandbox is to an OCI runtime: its `config.json`, as a pure function of values.

Hardening stands here, all of it: who is root (a shifted range of ids), what PID 1 may do (a container
engine's default rights minus raw sockets, device nodes and the audit log), which kernel files are seen, which
limits hold. Nothing here is taken from the image: what starts is Corral's own init, bound into the sandbox.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.host.namespaces import ID_RANGE
from corral.model.ids import SandboxId
from corral.model.sandbox import Limits, SandboxSpec
from corral.model.template import TemplateConfig
from corral.model.volume import VolumeMount
from corral.oci.seccomp import seccomp_profile

INIT = "/run/corral/init"
SPOOL = "/run/corral/io"
ASK = "/usr/local/bin/corral-ask"
TRUST = "/run/corral/trust"
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
# To find the processes of a tree, PID 1 reads their environments. It takes this right from what it starts.
_INIT_CAPABILITIES = (*_CAPABILITIES, "CAP_SYS_PTRACE")
# In a kernel of its own, PID 1 sets the host name; elsewhere the host does. It takes this right from what it starts, too.
_OWN_KERNEL_CAPABILITIES = (*_INIT_CAPABILITIES, "CAP_SYS_ADMIN")

_MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_CPU_PERIOD = 100_000
_NOFILE = 65536
_RUN_SIZE = "16m"
_TERMINALS = 256
"""The kernel has about 3,000 for all sandboxes."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the bundle must know of the host. `machine` as `uname -m`; `cgroup_version` that the runtimes use;
    `swap_limit`, `io_weight`: whether the kernel can limit swap, and share the disks by weight; `nofile`: the
    highest number of open files that the daemon may give.
    """

    machine: str
    cgroup_version: int
    swap_limit: bool
    io_weight: bool
    nofile: int


@dataclass(frozen=True, slots=True)
class BundlePaths:
    """Where the parts of a sandbox are on the host. `sysfs` is None for a runtime that brings its own. `bound_bundle`: the
    root does not hold the certificates, so they are bound over its own. `volumes`, by their directories, that the
    runtime is to mount, last of all.
    """

    root: Path
    netns: Path
    sysfs: Path | None
    init: Path
    ask: Path
    spool: Path
    ca_bundle: Path
    bound_bundle: bool
    resolv_conf: Path
    hosts: Path
    hostname: Path
    machine_id: Path
    volumes: Sequence[tuple[Path, VolumeMount]] = ()


def bundle_config(
    spec: SandboxSpec,
    template: TemplateConfig,
    paths: BundlePaths,
    facts: HostFacts,
    *,
    uid_base: int,
    cgroup: str,
    seccomp: bool,
) -> dict[str, Any]:
    """The `config.json` of a sandbox. `cgroup` is its absolute name; `seccomp` False for a runtime whose
    guests make no calls of the host's kernel.
    """
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.name,
        "root": {"path": str(paths.root), "readonly": False},
        "process": _process([INIT], template, facts, own_kernel=not seccomp),
        "mounts": _mounts(paths, spec.limits, facts),
        "linux": {
            **_linux(spec.limits, facts, uid_base=uid_base, cgroup=cgroup, seccomp=seccomp),
            "namespaces": [*_namespaces(), {"type": "network", "path": str(paths.netns)}],
        },
    }


def probe_config(
    root: Path, args: list[str], facts: HostFacts, *, uid_base: int, cgroup: str, seccomp: bool
) -> dict[str, Any]:
    """The `config.json` of a container with all that a runtime may refuse (ids, limits, rights, profile),
    that runs `args` and has no network.
    """
    return {
        "ociVersion": "1.0.2",
        "hostname": "probe",
        "root": {"path": str(root), "readonly": False},
        "process": _process(args, TemplateConfig(), facts),
        "mounts": [_mount("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]), _DEV],
        "linux": {
            **_linux(Limits(), facts, uid_base=uid_base, cgroup=cgroup, seccomp=seccomp),
            "namespaces": [*_namespaces(), {"type": "network"}],
        },
    }


def _linux(limits: Limits, facts: HostFacts, *, uid_base: int, cgroup: str, seccomp: bool) -> dict[str, Any]:
    return {
        "uidMappings": [_mapping(uid_base)],
        "gidMappings": [_mapping(uid_base)],
        "cgroupsPath": cgroup,
        "resources": _resources(limits, facts),
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
        **({"seccomp": seccomp_profile(facts.machine)} if seccomp else {}),
    }


def _process(
    args: list[str], template: TemplateConfig, facts: HostFacts, *, own_kernel: bool = False
) -> dict[str, Any]:
    rights = list(_OWN_KERNEL_CAPABILITIES if own_kernel else _INIT_CAPABILITIES)
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": args,
        "env": [],
        "cwd": "/",
        "noNewPrivileges": not template.sudo,
        # Nothing inheritable or ambient: who is not root has none of it.
        "capabilities": {"bounding": rights, "effective": rights, "permitted": rights},
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "soft": min(_NOFILE, facts.nofile), "hard": facts.nofile},
            # None is written to a file, and none is piped to a program of the host: see corral.oci.seccomp.
            {"type": "RLIMIT_CORE", "soft": 1, "hard": 1},
        ],
    }


def _namespaces() -> list[dict[str, str]]:
    return [{"type": kind} for kind in ("user", "mount", "pid", "ipc", "uts", "cgroup")]


def _mapping(uid_base: int) -> dict[str, int]:
    return {"containerID": 0, "hostID": uid_base, "size": ID_RANGE}


def _mounts(paths: BundlePaths, limits: Limits, facts: HostFacts) -> list[dict[str, Any]]:
    fixed = ["nosuid", "noexec", "nodev"]
    found = [
        _mount("/proc", "proc", "proc", fixed),
        _DEV,
        _mount(
            "/dev/pts",
            "devpts",
            "devpts",
            ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", f"max={_TERMINALS}"],
        ),
        _mount("/dev/shm", "tmpfs", "shm", [*fixed, "mode=1777", f"size={limits.memory // 2}"]),  # noqa: S108
        _mount("/dev/mqueue", "mqueue", "mqueue", fixed),
        _sysfs(paths.sysfs, [*fixed, "ro"]),
        _mount("/run", "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=755", f"size={_RUN_SIZE}"]),
        _bind(INIT, paths.init, "nosuid", "nodev", "ro"),
        _bind(ASK, paths.ask, "nosuid", "nodev", "ro"),
        _bind(SPOOL, paths.spool, *fixed, "rw"),
        _bind(TRUST, paths.ca_bundle.parent, *fixed, "ro"),
        *([_bind(CA_BUNDLE, paths.ca_bundle, *fixed, "ro")] if paths.bound_bundle else []),
        _bind("/etc/resolv.conf", paths.resolv_conf, *fixed, "ro"),
        _bind("/etc/hosts", paths.hosts, *fixed, "ro"),
        _bind("/etc/hostname", paths.hostname, *fixed, "ro"),
        _bind("/etc/machine-id", paths.machine_id, *fixed, "ro"),
    ]
    if facts.cgroup_version == 2:  # by it, programs see their limits; version 1 would take ten more mounts
        found.append(_mount("/sys/fs/cgroup", "cgroup2", "cgroup", [*fixed, "ro"]))
    for source, volume in paths.volumes:
        found.append(_bind(volume.path, source, "nosuid", "nodev", "ro" if volume.read_only else "rw"))
    return found


def _mount(target: str, kind: str, source: str, options: list[str]) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": options}


def _bind(target: str, source: Path, *options: str) -> dict[str, Any]:
    return _mount(target, "bind", str(source), ["bind", "private", *options])


_DEV = _mount("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=64k"])


def _sysfs(source: Path | None, options: list[str]) -> dict[str, Any]:
    if source is None:
        return _mount("/sys", "sysfs", "sysfs", options)
    return _bind("/sys", source, *options)


def _resources(limits: Limits, facts: HostFacts) -> dict[str, Any]:
    memory = {"limit": limits.memory, **({"swap": limits.memory} if facts.swap_limit else {})}
    return {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": memory,
        "cpu": {"period": _CPU_PERIOD, "quota": max(1000, int(limits.cpus * _CPU_PERIOD))},
        "pids": {"limit": limits.pids},
        **({"blockIO": {"weight": limits.io_weight}} if facts.io_weight else {}),
    }


def guest_files(sandbox: SandboxId, name: str, gateway: str) -> dict[str, str]:
    """Contents of the files that are made for each sandbox, by their name. `gateway` is the address of its
    gateway. A machine's id is derived from the sandbox's: what else is made from one template has another.
    """
    return {
        "resolv.conf": f"nameserver {gateway}\noptions timeout:2 attempts:2\n",
        "hosts": f"127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\t{name}\n{gateway}\tgateway.corral\n",
        "hostname": f"{name}\n",
        "machine-id": hashlib.sha256(f"machine {sandbox}".encode()).hexdigest()[:32] + "\n",
    }
