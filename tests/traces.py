"""Everything that one installation holds of this host, by its own paths: what is left over is found by comparing.

Nothing is asked of the daemon: its answer could be as wrong as what it left behind.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Daemon

PATIENCE = 30.0
_ROWS = ("sandboxes", "grants", "templates", "secrets", "api_keys", "volumes")


def traces(daemon: "Daemon") -> frozenset[str]:
    """Mounts, control groups and the processes in them, files of the driver, the store and the run directory, and rows.

    Files inside sandboxes and layers are theirs, and are not listed. Of the store's seeds there is one at most, whose
    number may have risen: they are counted.
    """
    data, run = daemon.data.resolve(), daemon.run
    found = {f"mount {target}" for target in mounts_below(run, data / "store") if target != f"{data}/store"}
    for group in control_groups(run.name):
        found.add(f"cgroup {group}")
        found.update(f"process {pid} in {group}" for pid in (group / "cgroup.procs").read_text().split())
    for folder, depth in (
        (run / "sandboxes", 3),
        (run / "runtimes", 2),
        (data / "sandboxes", 1),
        (data / "quarantine", 1),
        (data / "scratch", 1),
        (data / "store", 2),
    ):
        found.update(
            f"file {path}" for path in _below(folder, depth) if path.parent.name not in ("seeds", "trusted")
        )
    found.update(f"a second seed {seed}" for seed in sorted((data / "store" / "seeds").iterdir())[1:])
    return frozenset(found | _rows(data / "corral.db"))


def settled(daemon: "Daemon", before: frozenset[str]) -> None:
    """Wait until the installation holds what it held before, and fail with the difference if it never does."""
    wait_for(lambda: traces(daemon) == before, lambda: _difference(before, traces(daemon)))


def wait_for(done: Callable[[], object], otherwise: Callable[[], object] | str) -> None:
    """Return once `done` is true; fail with what `otherwise` says if that takes unreasonably long."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            pytest.fail(str(otherwise if isinstance(otherwise, str) else otherwise()))
        time.sleep(0.02)


def _difference(before: Iterable[str], after: Iterable[str]) -> str:
    left, lost = sorted({*after} - {*before}), sorted({*before} - {*after})
    return "\n".join(["left behind:", *left[:40], "lost:", *lost[:40]])


def mounts_below(*places: Path) -> list[str]:
    """Targets of mounts at these places and below them, in the order in which they were made."""
    targets = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [target for target in targets if any(Path(target).is_relative_to(place) for place in places)]


def control_groups(instance: str) -> list[Path]:
    """Those of an installation, in all hierarchies, parents before children."""
    roots = [
        path for depth in ("", "*/") for path in Path("/sys/fs/cgroup").glob(f"{depth}corral-{instance}")
    ]
    return [path for root in roots for path in (root, *root.rglob("*")) if path.is_dir()]


def _below(folder: Path, depth: int) -> list[Path]:
    # A mounted root is the sandbox's, and not walked.
    if not folder.is_dir() or depth == 0 or folder.name == "root":
        return []
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return []
    return [*entries, *(p for entry in entries if not entry.is_symlink() for p in _below(entry, depth - 1))]


def _rows(database: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return {
            f"row of {table}: {row[0]} {row[1]}"
            for table in _ROWS
            for row in connection.execute(f"SELECT * FROM {table}").fetchall()
        }
