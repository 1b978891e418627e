"""Files of sandboxes whose changes go through a process inside: what is asked of that process."""

import os
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from corral.drivers.execfiles import ExecGuestFiles
from corral.drivers.files import HostGuestFiles


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


async def _content() -> AsyncIterator[bytes]:
    yield b"new"


@pytest.mark.parametrize(
    ("path", "given", "asked"),
    [
        ("/run.sh", None, "755"),
        ("/link", None, "755"),
        ("/run.sh", 0o600, "600"),
        ("/new", None, "644"),
        ("/dir", None, "644"),
    ],
)
async def test_a_write_asks_for_the_mode_of_what_it_replaces(
    tmp_path: Path, threads: ThreadPoolExecutor, path: str, given: int | None, asked: str
) -> None:
    (tmp_path / "run.sh").touch()
    (tmp_path / "run.sh").chmod(0o755 | stat.S_ISUID)
    (tmp_path / "link").symlink_to("run.sh")
    (tmp_path / "dir").mkdir()
    commands: list[Sequence[str]] = []
    fed: list[bytes] = []

    async def run(
        argv: Sequence[str], stdin: AsyncIterator[bytes] | None, user: str
    ) -> tuple[int, bytes, bytes]:
        commands.append(argv)
        assert stdin is not None
        fed.extend([chunk async for chunk in stdin])
        (tmp_path / "new").touch()
        return 0, b"", b""

    reader = HostGuestFiles(lambda: os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), 0, threads)
    await ExecGuestFiles(reader, run).write(path, _content(), "0:0", given)
    assert [command[1:4] for command in commands] == [("write", path, asked)]
    assert fed == [b"\0\0\0\3new", bytes(4)]
