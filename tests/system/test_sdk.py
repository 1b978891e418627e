"""The SDK, synchronous and asynchronous, and `corral cp`, on a real sandbox: files both ways, watches, errors."""

import os
import stat
import threading
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces

from corral import AsyncClient, AsyncSandbox, Client, Sandbox
from corral.errors import CommandFailed, Conflict, InvalidInput, NotFound
from corral.model.lifecycle import State

pytestmark = pytest.mark.root

ISOLATIONS = ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)]


def test_a_sandbox_is_a_context_and_leaves_nothing(daemon: Daemon, client: Client) -> None:
    before = traces(daemon)
    with Sandbox.create(client=client, env={"A": "b"}, labels={"job": "1"}) as box:
        box.files.write("/home/user/hello.py", "import os; print('hello', os.environ['A'])")
        assert box.exec("python3 hello.py", check=True).stdout == "hello b\n"
        with pytest.raises(CommandFailed) as failed:
            box.exec("echo why >&2; exit 3", check=True)
        assert failed.value.exit_status == 3
        assert "why" in failed.value.message
        assert [found.id for found in Sandbox.list({"job": "1"}, client=client)] == [box.id]
        assert box.stats().pids >= 1
    with pytest.raises(NotFound):
        Sandbox.connect(box.id, client=client)
    settled(daemon, before)
    with pytest.raises(ZeroDivisionError), Sandbox.create(client=client):
        raise ZeroDivisionError
    settled(daemon, before)


async def test_the_same_asynchronously(daemon: Daemon) -> None:
    before = traces(daemon)
    async with AsyncClient(where=daemon.where) as client, await AsyncSandbox.create(client=client) as box:
        await box.files.write("/home/user/x", b"\x00\xff")
        assert await box.files.read_bytes("/home/user/x") == b"\x00\xff"
        assert (await box.exec("exit 7")).exit_code == 7
        process = await box.spawn("read line; echo got $line", stdin=True)
        await process.write(b"one\n")
        assert (await process.wait()).stdout == "got one\n"
        assert (await box.pause()).state is State.PAUSED
        with pytest.raises(Conflict) as refused:
            await box.exec("true")
        assert "corral resume" in refused.value.hint
        assert (await box.resume()).state is State.RUNNING
    settled(daemon, before)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_what_is_in_tmp_is_seen_from_both_sides_and_stays(client: Client, isolation: str) -> None:
    box = Sandbox.create(client=client, isolation=isolation)
    box.files.write("/tmp/from-outside", b"1")
    box.exec("cat /tmp/from-outside > /tmp/from-inside", check=True)
    assert box.files.read_bytes("/tmp/from-inside") == b"1"
    box.stop()
    box.start()
    assert box.exec("cat /tmp/from-inside", check=True).stdout == "1"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_every_byte_comes_back_file18_file3(client: Client, isolation: str) -> None:
    box = Sandbox.create(client=client, isolation=isolation)
    data = bytes(range(256)) * 8192
    entry = box.files.write("/home/user/a/b/c", data, mode=0o640)
    assert (entry.uid, entry.gid, entry.mode, entry.size) == (1000, 1000, 0o640, len(data))
    assert box.files.read_bytes("/home/user/a/b/c") == data
    assert b"".join(box.files.stream("/home/user/a/b/c")) == data
    assert {box.files.stat(path).uid for path in ("/home/user/a", "/home/user/a/b")} == {1000}  # FILE-4
    assert box.exec("cat a/b/c | sha256sum; echo more >> a/b/c && touch a/b/d").exit_code == 0
    box.files.write("/etc/owned", "x", user="root")
    assert box.files.stat("/etc/owned").uid == 0
    assert box.files.mkdir("/home/user/new/deep") is True
    assert box.files.mkdir("/home/user/new/deep") is False
    assert box.files.move("/home/user/a/b/d", "/home/user/new/e").path == "/home/user/new/e"
    assert [item.path for item in box.files.list("/home/user/new", depth=2)] == [
        "/home/user/new/deep",
        "/home/user/new/e",
    ]
    box.files.remove("/home/user/new")
    for missing in ("/home/user/new", "/home/user/new/e"):
        with pytest.raises(NotFound):
            box.files.stat(missing)
    with pytest.raises(Conflict):
        box.files.read("/home/user")
    box.stop(0)
    assert box.files.read_bytes("/home/user/a/b/c").startswith(data)


def test_a_write_that_breaks_off_changes_nothing(box: Sandbox) -> None:
    box.files.write("/home/user/kept", "former")
    before = [entry.path for entry in box.files.list("/home/user")]

    def broken() -> object:
        yield b"part"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        box.files.write("/home/user/kept", broken())  # type: ignore[arg-type]
    assert box.files.read("/home/user/kept") == "former"
    assert before == [entry.path for entry in box.files.list("/home/user")]


def _tree(path: Path) -> dict[str, object]:
    """What is in a directory: contents, targets of links and modes, by path."""
    found: dict[str, object] = {}
    for entry in sorted(path.rglob("*")):
        name = str(entry.relative_to(path))
        if entry.is_symlink():
            found[name] = ("link", str(entry.readlink()))
        elif entry.is_dir():
            found[name] = "directory"
        else:
            found[name] = (entry.read_bytes(), stat.S_IMODE(entry.stat().st_mode))
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    (path / "dir" / "empty").mkdir(parents=True)
    (path / "dir" / "x").write_bytes(bytes(range(256)))
    (path / "dir" / "run").write_text("#!/bin/sh\n")
    (path / "dir" / "run").chmod(0o755)
    (path / "link").symlink_to("dir/x")
    (path / "dangling").symlink_to("dir/absent")
    (path / os.fsdecode(b"odd \xff\n")).write_text("odd")
    return path


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_directories_go_in_and_come_out_the_same_git7_file10(
    client: Client, tree: Path, tmp_path: Path, isolation: str
) -> None:
    box = Sandbox.create(client=client, isolation=isolation)
    copied = box.files.upload(tree, "/home/user/tree")
    assert copied.skipped == []
    assert (
        box.exec("readlink tree/link; find tree ! -user user; stat -c %a tree/dir/run").stdout
        == "dir/x\n755\n"
    )
    back = box.files.download("/home/user/tree", tmp_path / "back")
    assert back.skipped == []
    assert _tree(tmp_path / "back") == _tree(tree)
    (tree / "escape").symlink_to("/etc/passwd")
    assert [name for name, _ in box.files.upload(tree, "/home/user/again").skipped] != []
    with pytest.raises(NotFound):
        box.files.stat("/home/user/again/escape")


def test_cp_both_ways(daemon: Daemon, box: Sandbox, tree: Path, tmp_path: Path) -> None:
    daemon.cli("cp", str(tree), "box:")
    assert box.exec("ls tree/dir").stdout.split() == ["empty", "run", "x"]
    daemon.cli("cp", str(tree / "dir" / "x"), "box:/home/user/y")
    assert box.files.read_bytes("/home/user/y") == bytes(range(256))
    daemon.cli("cp", "box:y", str(tmp_path))
    assert (tmp_path / "y").read_bytes() == bytes(range(256))
    daemon.cli("cp", "box:/home/user/tree", str(tmp_path / "out"))
    assert _tree(tmp_path / "out") == _tree(tree)
    for args in (("box:x", "box:y"), ("a", "b"), ("absent", "box:"), ("box:absent", "."), ("nobox:/x", ".")):
        refused = daemon.cli("cp", *args, check=False)
        assert refused.returncode in (InvalidInput.exit_code, NotFound.exit_code), args
        assert "hint:" in refused.stderr


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_changes_are_told_file15(client: Client, isolation: str) -> None:
    """Those of the sandbox's own processes, and those made through the API."""
    box = Sandbox.create(client=client, isolation=isolation)
    box.files.mkdir("/home/user/watched/deep")
    watch = box.files.watch("/home/user/watched", recursive=True)
    seen: set[tuple[str, str]] = set()
    wanted = {
        ("create", "/home/user/watched/one"), ("write", "/home/user/watched/one"), ("remove", "/home/user/watched/one"),
        ("create", "/home/user/watched/deep/two"),
    }  # fmt: skip

    def follow() -> None:
        for change in watch:
            seen.add((change.kind, change.path))
            if seen >= wanted:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    while thread.is_alive():  # what came before the watch was in place is not told
        box.exec(
            "echo x > watched/one; echo y >> watched/one; rm watched/one; touch watched/deep/two; rm watched/deep/two"
        )
        thread.join(0.2)
    assert seen >= wanted


def test_a_watch_ends_with_its_directory_or_is_refused(box: Sandbox) -> None:
    with pytest.raises(NotFound):
        next(iter(box.files.watch("/home/user/absent")))
    box.files.write("/home/user/file", "x")
    with pytest.raises((Conflict, InvalidInput)):
        next(iter(box.files.watch("/home/user/file")))
