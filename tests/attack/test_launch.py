"""An image is hostile before anything of it runs: links where the launcher mounts must not lead it to the host's files.

Each arrangement is started by the real launcher. It may start or be refused; the host must be as it was.
"""

import asyncio
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.drivers.oci_host import host_facts
from corral.errors import CorralError
from corral.host.cgroups import detect
from corral.host.programs import find_program
from corral.oci.bundle import probe_config
from corral.oci.launcher import Launcher

pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]
BASE = 300_000
Arrange = Callable[[Path, Path], None]


def _link(name: str, target: str) -> Arrange:
    def arrange(root: Path, host: Path) -> None:
        (root / name).symlink_to(target.format(host=host))

    return arrange


def _many_links(root: Path, host: Path) -> None:
    """/etc/hosts leads to each of the descriptors that the launcher may have open."""
    (root / "etc").mkdir()
    (root / "etc" / "hosts").symlink_to("/proc/self/fd/5/hosts")


ARRANGEMENTS: dict[str, Arrange] = {
    "etc is a link to a directory of the host": _link("etc", "{host}"),
    "etc is a link upwards": _link("etc", "../../../../../../../../{host}"),
    "proc is a link": _link("proc", "{host}"),
    "dev is a link": _link("dev", "{host}"),
    "dev is a link to an open file": _link("dev", "/proc/self/fd/3"),
    "etc is a link to an open directory": _link("etc", "/proc/self/fd/4"),
    "etc is a link to the root of a process": _link("etc", "/proc/1/root/{host}"),
    "hosts is a link to an open file": _many_links,
    "etc is a link to another open directory": _link("etc", "/proc/self/fd/3"),
    "nothing is there": lambda root, host: None,
}


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(find_program("corral-launch"), tmp_path / "state", detect(), platform.machine())


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "bundle" / "root"
    place.mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "bundle"):
        folder.chmod(0o755)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "root", place], check=True)
    shutil.copy(find_program("corral-init"), place / "init")
    os.chown(place, BASE, BASE)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("name", ARRANGEMENTS)
async def test_no_link_of_an_image_leads_the_launcher_out_of_it(
    name: str, launcher: Launcher, root: Path, tmp_path: Path
) -> None:
    """FILE-: a start touches nothing but the sandbox's own root."""
    host = tmp_path / "host"
    host.mkdir(mode=0o777)
    host.chmod(0o777)
    (host / "hosts").write_text("the host's\n")
    given = tmp_path / "given"
    given.write_text("the sandbox's\n")
    root.parent.chmod(0o777)  # the launcher has it open: what is made in it would be seen
    ARRANGEMENTS[name](root, host)
    layout = detect()
    group = f"/corral-test-launch-{os.getpid()}/one"
    config = probe_config(
        root,
        ["/init", "mkdir", "/made", "755", "0", "0"],
        host_facts(layout),
        uid_base=BASE,
        cgroup=group,
        seccomp=True,
    )
    bind = {
        "destination": "/etc/hosts",
        "type": "bind",
        "source": str(given),
        "options": ["bind", "ro", "nosuid"],
    }
    config["mounts"].append(bind)
    launcher.write(root.parent, config)
    before = _mounts(tmp_path), _files(host), _names(root.parent)
    try:
        await launcher.run("one", root.parent)
        started = True
    except CorralError:
        started = False
    finally:
        await layout.group(group).kill()
        await layout.group(group).remove()
        await layout.group(group.rpartition("/")[0]).remove()
    assert (_mounts(tmp_path), _files(host), _names(root.parent)) == before
    if name == "nothing is there":
        assert started
        assert (root / "made").is_dir()


def _mounts(below: Path) -> int:
    return Path("/proc/self/mountinfo").read_text().count(f" {below}")


def _names(bundle: Path) -> set[str]:
    return {path.name for path in bundle.iterdir()} - {"pid", "runtime.log"}


def _files(host: Path) -> list[tuple[str, str]]:
    return sorted((str(path), path.read_text()) for path in host.rglob("*") if path.is_file())


async def test_a_launcher_that_is_killed_leaves_no_process(launcher: Launcher, root: Path) -> None:
    """A child whose parent is gone before its groups were joined ends by itself."""
    layout = detect()
    group = f"/corral-test-launch-{os.getpid()}/two"
    config = probe_config(
        root,
        ["/init", "mkdir", "/made", "755", "0", "0"],
        host_facts(layout),
        uid_base=BASE,
        cgroup=group,
        seccomp=True,
    )
    launcher.write(root.parent, config)
    for _ in range(20):
        child = await asyncio.create_subprocess_exec(
            str(find_program("corral-launch")), root.parent / "plan", root.parent / "log", root.parent / "pid"
        )
        child.kill()
        await child.wait()
    await layout.group(group).kill()
    await layout.group(group).remove()
    await layout.group(group.rpartition("/")[0]).remove()
    assert _processes_in(root) == []


def _processes_in(root: Path) -> list[Path]:
    return [link for link in Path("/proc").glob("[0-9]*/root") if _is_below(link, root)]


def _is_below(link: Path, root: Path) -> bool:
    try:
        return link.readlink() == root
    except OSError:
        return False
