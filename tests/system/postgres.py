"""A PostgreSQL server of the tests' own: Debian's, as an unprivileged user, in a directory that goes with it, by a socket in it."""

import asyncio
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from corral.store.database import Database

_TEMPLATE = "migrated"
"""Each fresh database is a copy of it: making its tables anew takes half a second."""
_PROGRAMS = Path("/usr/lib/postgresql")


@dataclass
class Server:
    """A server. `database` gives the URL of a fresh database for each name."""

    folder: Path
    programs: Path
    user: int | None
    process: "subprocess.Popen[bytes] | None" = None
    _made: set[str] = field(default_factory=set)

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [
            "-k",
            str(self.folder),
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=off",
            "-c",
            "max_connections=50",
        ]
        self.process = subprocess.Popen(
            [str(self.programs / "postgres"), "-D", str(self.folder / "data"), *options],
            user=self.user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _await(self, self.process)

    def stop(self, number: int = signal.SIGINT) -> None:
        """End it: what was committed stays, and all connections are cut. SIGQUIT: at once, as by a crash."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)

    def database(self, name: str) -> str:
        """The URL of the database for `name`, made at its first use."""
        short = f"d{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        if short not in self._made:
            self._create(short, _TEMPLATE)
            self._made.add(short)
        return self.url(short)

    def prepare(self) -> None:
        """Make what fresh databases are copied from."""
        self._create(_TEMPLATE, "template1")
        asyncio.run(_migrate(self.url(_TEMPLATE)))

    def _create(self, name: str, template: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())

    def url(self, database: str) -> str:
        """By its unix socket."""
        return f"postgresql://corral@/{database}?host={self.folder}"


async def _migrate(url: str) -> None:
    database = Database(url, "template")
    await database.open()
    await database.close()


@contextmanager
def running() -> Iterator[Server]:
    """A server until the block is left."""
    versions = sorted(_PROGRAMS.glob("*/bin"), key=lambda path: int(path.parent.name))
    if not versions:
        pytest.fail("PostgreSQL is not installed: run `make setup`")
    programs, folder = versions[-1], Path(tempfile.mkdtemp(prefix="corral-pg-", dir=_memory()))
    user = _unprivileged(folder)
    try:
        made = [
            str(programs / "initdb"),
            "-D",
            str(folder / "data"),
            "-A",
            "trust",
            "-U",
            "corral",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        subprocess.run(made, check=True, user=user, capture_output=True, cwd=folder)
        server = Server(folder, programs, user)
        try:
            server.start()
            server.prepare()
            yield server
        finally:
            server.stop(signal.SIGQUIT)  # at once: nothing of it is kept
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _memory() -> str | None:
    """In memory: each test has a database of its own, of three hundred files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _unprivileged(folder: Path) -> int | None:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return user.pw_uid


def _await(server: Server, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(server.url("postgres")).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
