"""Everything that one installation holds of this host, by its own paths: what is left over is found by comparing.

Nothing is asked of the daemon: its answer could be as wrong as what it left behind.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Daemon

PATIENCE = 60.0
_LASTING = {"alembic_version", "installation", "tenants", "usage", "audit", "past"}
"""Tables of what outlives everything: the installation itself, and history."""
_LIVE = {"approvals": "status = 'pending'", "balances": "reserved <> 0"}
"""Of these tables, rows that belong to something that is under way; all others are history."""
_OWN = {"store", "store.img", "logs", "leases", "audit", "corral.db", "corral.db-shm", "corral.db-wal"}
"""What the data directory holds of its own; the store is walked apart, and of gateways' journals there is one for each."""
_KEPT = frozenset("0123456789abcdef")


def traces(daemon: "Daemon") -> frozenset[str]:
    """Mounts, control groups and the processes in them, programs that the daemon has started, files of the driver, the store,
    the data and the run directory, and rows of all tables that belong to something.

    Files inside sandboxes and layers are theirs, and are not listed. Of the store's seeds there is one at most, whose
    number may have risen: they are counted. Contexts of builds and what is known of images' layers stay on purpose.
    """
    data, run = daemon.data.resolve(), daemon.run
    found = {f"mount {target}" for target in mounts_below(run, data / "store") if target != f"{data}/store"}
    for group in control_groups(run.name):
        found.add(f"cgroup {group}")
        found.update(f"process {pid} in {group}" for pid in (group / "cgroup.procs").read_text().split())
    for folder, depth in ((run, 1), (run / "sandboxes", 3), (run / "runtimes", 2), (data / "store", 2)):
        found.update(
            f"file {path}" for path in _below(folder, depth) if path.parent.name not in ("seeds", "trusted")
        )
    found.update(f"a second seed {seed}" for seed in sorted((data / "store" / "seeds").iterdir())[1:])
    return frozenset(found | _files(data) | _programs(daemon) | _rows(data / "corral.db"))


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


def _files(data: Path) -> set[str]:
    """Those of the data directory that can be left over: none but what is kept under the digest of what it is of."""
    own = [path for path in data.iterdir() if path.name not in _OWN]
    below = [found for path in own for found in _below(path, 4)]
    return {f"file {path}" for path in (*own, *below) if not _is_kept(path.relative_to(data))}


def _is_kept(path: Path) -> bool:
    match path.parts:
        case ("contexts" | "index" | "exports" | "scratch" | "tls",):
            return True
        case ("contexts", tenant, *archive):
            return {*tenant} <= _KEPT and all({*name} <= _KEPT for name in archive[:1])
        case ("index", name):
            return name == "steps" or {*name} <= _KEPT
    return False


def _programs(daemon: "Daemon") -> set[str]:
    """What runs with its environment, but for itself, its gateway, and who asks it."""
    own = {daemon.process.pid if daemon.process else 0, *daemon.gateway_pids(), os.getpid()}
    data = f"CORRAL_DATA_DIR={daemon.data}".encode()
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if int(place.name) not in own and data in (place / "environ").read_bytes().split(b"\0"):
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.add(f"program {place.name}: {command[:200]}")
        except OSError:  # it has ended, or is not ours to look at
            continue
    return found


def _rows(database: Path) -> set[str]:
    found: set[str] = set()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for table in {*tables} - _LASTING:
            columns = connection.execute(
                "SELECT name FROM pragma_table_info(?) WHERE pk", (table,)
            ).fetchall()
            keys = ", ".join(name for (name,) in columns)
            rows = connection.execute(
                f"SELECT {keys} FROM {table} WHERE {_LIVE.get(table, 'true')}"
            ).fetchall()
            found.update(f"row of {table}: {' '.join(map(str, row))}" for row in rows)
    return found
