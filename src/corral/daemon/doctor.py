"""`corral doctor`: what this host can do, what will not work, and what to do about it.

What can be tried is tried, with the code that sandboxes use: a version number or a file in /proc tells little. Also a
program of its own, for a host where the daemon does not start: `python -m corral.daemon.doctor [--json]`.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from corral.daemon import findings
from corral.daemon.config import Config, ConfigFile
from corral.daemon.findings import Check, Status
from corral.daemon.places import Places
from corral.drivers.oci_host import probe_runtimes
from corral.errors import CorralError, Unsupported
from corral.host import cgroups, mounts, probe, process
from corral.model.places import RUN_ROOT, instance_of
from corral.network.pair import make_pair
from corral.rootfs import base
from corral.rootfs.overlay import mount_root, unmount_root
from corral.rootfs.records import TREE, LayerRecord, write_record

_ASK_TIMEOUT = 20.0
_PROBE_IDS = 100_000


async def run_checks(data_dir: Path) -> list[Check]:
    """All checks, in an order that reads well. Takes about a second; leaves nothing behind."""
    if os.geteuid() != 0:
        hint = "run it as root: the daemon makes namespaces and mounts"
        return [Check("root", Status.FAIL, "not run as root", hint)]
    kernel = await asyncio.to_thread(probe.kernel)
    async with asyncio.TaskGroup() as group:
        tried = group.create_task(_tried(data_dir))
        registries = group.create_task(_registries(data_dir))
    rest = await asyncio.to_thread(_looked_at, data_dir, kernel)
    return [findings.kernel(kernel), findings.seccomp(kernel), *tried.result(), *rest, registries.result()]


def _looked_at(data_dir: Path, kernel: probe.Kernel) -> list[Check]:
    kind, reason = _store_kind(data_dir)
    return [
        findings.store(kind, reason, kernel),
        *findings.programs(probe.programs(findings.PROGRAMS)),
        *findings.room(probe.room(data_dir)),
        *findings.limits(probe.kernel_limits()),
    ]


def _store_kind(data_dir: Path) -> tuple[str, str]:
    try:
        recorded = json.loads((data_dir / "store.json").read_text())
        return str(recorded["kind"]), str(recorded.get("reason", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


async def _tried(data_dir: Path) -> list[Check]:
    checks = [await _try_root(data_dir), await _try_network()]
    try:
        layout = await asyncio.to_thread(cgroups.detect)
    except Unsupported as error:
        return [*checks, findings.cgroups(None, (), error.message)]
    return [
        *checks,
        findings.cgroups(layout, _unified_controllers(layout)),
        *await _try_runtimes(data_dir, layout),
    ]


async def _try_runtimes(data_dir: Path, layout: cgroups.Layout) -> list[Check]:
    """Run a container with each, where the daemon's are run from."""
    group = f"/corral-{instance_of(data_dir)}/doctor-{os.getpid()}"
    RUN_ROOT.mkdir(parents=True, exist_ok=True)
    RUN_ROOT.chmod(0o711)
    with _scratch(RUN_ROOT) as scratch:
        found = await probe_runtimes(scratch, group, layout)
        await layout.group(group).remove()
    usable = {name: str(level) for level, names in found.by_isolation().items() for name in names}
    return findings.runtimes(usable, found.problems)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A directory in `parent`, passable for a sandbox's root; all that is mounted in it ends with it."""
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=parent) as directory:
        Path(directory).chmod(0o711)
        try:
            yield Path(directory)
        finally:
            mounts.unmount_below(Path(directory))  # runsc leaves one in its state directory


def _unified_controllers(layout: cgroups.Layout) -> list[str]:
    if layout.unified is None:
        return []
    return (layout.unified / "cgroup.controllers").read_text().split()


async def _try_root(data_dir: Path) -> Check:
    """Mount a root as a sandbox's is: an id-mapped layer under an overlay, on the data directory's file system."""
    parent = next(path for path in (data_dir, *data_dir.parents) if path.is_dir())
    error = ""
    with _scratch(parent) as scratch:
        layer, sandbox, target = scratch / "layer", scratch / "sandbox", scratch / "root"
        for path in (layer / TREE, sandbox / "upper", sandbox / "work", target):
            path.mkdir(parents=True)
        write_record(layer, LayerRecord(uid_base=0, size=0, content=True))
        try:
            await mount_root([layer / TREE], sandbox, target, uid_base=_PROBE_IDS)
        except (CorralError, OSError) as failure:
            error = str(failure)
        finally:
            await unmount_root(target)
    return findings.tried(
        "root filesystem",
        error,
        "user namespaces, id-mapped layers and overlayfs work",
        "use Linux 5.19 or newer with CONFIG_OVERLAY_FS and CONFIG_USER_NS, not inside an unprivileged "
        "container, and a data directory on ext4, xfs or btrfs",
    )


async def _try_network() -> Check:
    """Make a sandbox's pair of network namespaces."""
    error = ""
    try:
        (await asyncio.to_thread(make_pair)).close()
    except (CorralError, OSError) as failure:
        error = str(failure)
    return findings.tried(
        "network",
        error,
        "network namespaces and veth pairs work",
        "use a kernel with CONFIG_NET_NS and CONFIG_VETH",
    )


async def _registries(data_dir: Path) -> Check:
    try:
        config = ConfigFile(data_dir / "config.json").value
    except CorralError as error:
        return Check("registries", Status.FAIL, error.message, error.hint)
    hosts = await _registry_hosts(data_dir, config)
    addresses = {host: await asyncio.to_thread(probe.resolve, host) for host in hosts}
    return findings.registries(addresses, config.networks, await asyncio.to_thread(probe.own_addresses))


async def _registry_hosts(data_dir: Path, config: Config) -> list[str]:
    """The hosts that this machine's package managers are set to, of those that it has."""
    urls = [
        *await _ask([sys.executable, "-m", "pip", "download", "--help"], _pip_index),
        *await _ask([*_npm(data_dir), "config", "get", "registry"], str.split),
        *(line.split()[1] for line in (await base.host_mirrors()).sources),
    ]
    hosts = [config.npm_registry] if config.npm_registry else []
    for url in urls:
        host = urlsplit(url).hostname
        if host:
            hosts.append(host)
    return list(dict.fromkeys(hosts))


def _pip_index(text: str) -> list[str]:
    """pip says in its help which index it is set to, also where nobody has set one."""
    return re.findall(r"--index-url.*?\(default\s+(https?://[^)\s]+)\)", text, re.DOTALL)[:1]


def _npm(data_dir: Path) -> list[str]:
    """The `base` template's own npm, which sandboxes will use, else this host's."""
    node = base.node_tree(data_dir)
    if node is None:
        return ["npm"]
    prefix = node / "usr" / "local"
    return [str(prefix / "bin" / "node"), str(prefix / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


async def _ask(argv: list[str], read: Callable[[str], list[str]]) -> list[str]:
    try:
        done = await process.run(argv, timeout=_ASK_TIMEOUT, env=base.pip_environment(os.environ))
    except CorralError:
        return []  # it is not installed: no registry of its kind is used from here
    return read(done.stdout.decode("utf-8", "replace")) if done.ok else []


def report(checks: list[Check]) -> str:
    """The checks as lines of text."""
    lines = []
    for check in checks:
        lines.append(f"{check.status.upper():4}  {check.name}: {check.message}")
        if check.status is not Status.OK and check.hint:
            lines.append(f"      {check.hint}")
    return "\n".join(lines)


def main() -> int:
    """Check this host, print, and exit with 6 if something fails."""
    checks = asyncio.run(run_checks(Places.from_environment().data))
    as_json = "--json" in sys.argv[1:]
    print(json.dumps([asdict(check) for check in checks]) if as_json else report(checks))  # noqa: T201
    return Unsupported.exit_code if any(check.status is Status.FAIL for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
