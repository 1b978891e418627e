"""A hostile tree against whoever reads and writes it from outside: the files API, `corral cp`, archives in both directions."""

import contextlib
import io
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corral import Sandbox
from corral.errors import Conflict, CorralError
from corral.sdk import trees

if TYPE_CHECKING:
    from tests.attack.conftest import Range

pytestmark = pytest.mark.root

ROUNDS = 150
PLACE = "/home/user/trap"


def lay_links(box: Sandbox, target: Path) -> list[str]:
    """Links of every kind in the sandbox that would lead to a file of the host."""
    up = "../" * 12
    links = {
        "absolute": f"{target}", "relative": f"{up}{str(target)[1:]}", "self-root": f"/proc/self/root{target}",
        "one-root": f"/proc/1/root{target}", "self-cwd": f"/proc/self/cwd/{up}{str(target)[1:]}", "fd": "/proc/self/fd/3",
        "thread": f"/proc/thread-self/root{target}", "dir": f"{target.parent}", "root": "/", "chain": "absolute",
        "exe": "/proc/1/exe", "dot": f"./../../../../../../..{target}",
    }  # fmt: skip
    script = f"rm -rf {PLACE}; mkdir -p {PLACE}; cd {PLACE}; " + "; ".join(
        f"ln -s {to} {name}" for name, to in links.items()
    )
    box.exec(script, user="root", check=True)
    below = (
        f"{PLACE}/dir/{target.name}",
        f"{PLACE}/root{target}",
        f"{PLACE}/{up}{str(target)[1:]}",
        f"/../../..{target}",
    )
    return [f"{PLACE}/{name}" for name in links] + list(below)


def test_reading_through_links_stays_inside(arena: "Range", isolation: str, host_secret: Path) -> None:
    """FILE-7, FILE-9: absolute and relative links, `..`, and magic links of /proc never show a file of the host."""
    box = arena.box(isolation)
    for path in lay_links(box, host_secret):
        data = b""
        with contextlib.suppress(CorralError):
            data = box.files.read_bytes(path)
        assert host_secret.read_bytes() not in data, path
        with contextlib.suppress(CorralError):
            assert host_secret.name not in [entry.name for entry in box.files.list(path)], path


def test_writing_through_links_stays_inside(arena: "Range", isolation: str, host_secret: Path) -> None:
    """FILE-7, FILE-9: nor is it written, replaced, moved or removed, nor is anything made beside it."""
    box = arena.box(isolation)
    before = sorted(host_secret.parent.iterdir())
    for path in lay_links(box, host_secret):
        for attempt in (
            lambda path=path: box.files.write(path, "owned"),
            lambda path=path: box.files.write(f"{path}/made", "owned"),
            lambda path=path: box.files.mkdir(f"{path}/made-dir/deep"),
            lambda path=path: box.files.move(f"{PLACE}/absolute", path),
            lambda path=path: box.files.remove(f"{path}/{host_secret.name}"),
            lambda path=path: box.files.remove(path),
        ):
            with contextlib.suppress(CorralError):
                attempt()
    assert sorted(host_secret.parent.iterdir()) == before
    assert host_secret.read_text().startswith("host secret")


def test_swapped_links_win_no_race(arena: "Range", isolation: str, host_secret: Path) -> None:
    """FILE-7: a directory that becomes a link to the host's, and back, thousands of times a second."""
    box = arena.box(isolation)
    secret = host_secret.read_bytes()
    file = host_secret.parent / "file"
    file.write_bytes(secret)
    swapper = box.spawn(
        ["python3", "-m", "tests.attack.guest.swap", PLACE, str(host_secret.parent)], cwd="/opt/attack"
    )
    assert next(iter(swapper.output())).text == "ready\n"
    for number in range(ROUNDS):
        with contextlib.suppress(CorralError):
            assert secret not in box.files.read_bytes(f"{PLACE}/race/file")
        if number % 3 == 0:
            with contextlib.suppress(CorralError):
                box.files.write(f"{PLACE}/race/written", "owned")
        if number % 5 == 0:
            with contextlib.suppress(CorralError):
                box.files.remove(f"{PLACE}/race/written")
        if number % 30 == 0:
            with contextlib.suppress(CorralError):
                box.files.mkdir(f"{PLACE}/race/made")
    swapper.kill()
    assert sorted(path.name for path in host_secret.parent.iterdir()) == ["file", host_secret.name]
    assert file.read_bytes() == secret


def test_special_files_neither_block_nor_flood(arena: "Range", isolation: str) -> None:
    """FILE-9: FIFOs, sockets, endless devices and terminals are refused at once; the daemon serves on."""
    box = arena.box(isolation)
    box.exec(
        f"mkdir -p {PLACE}; cd {PLACE}; mkfifo fifo; ln -s /dev/zero zero; ln -s /dev/tty tty; ln -s fifo alias; "
        "python3 -c 'import socket; socket.socket(1).bind(\"sock\")'; mkdir loop; ln -s ../loop loop/loop; ln -s self self",
        user="root", check=True,
    )  # fmt: skip
    for name in ("fifo", "alias", "zero", "tty", "sock", "self"):
        with pytest.raises(CorralError):
            box.files.read_bytes(f"{PLACE}/{name}")
    for name in ("fifo", "zero", "sock"):
        with contextlib.suppress(CorralError):
            box.files.write(f"{PLACE}/{name}", "data")
    for path in (
        "/dev/zero",
        "/dev/random",
        "/dev/ptmx",
        "/dev/console",
        "/proc/kmsg",
        "/proc/kcore",
        "/proc/1/mem",
    ):
        with pytest.raises(CorralError):
            box.files.read_bytes(path)
    assert len(box.files.list(PLACE, depth=20)) < 100
    arena.alive()


def test_the_hosts_kernel_is_not_steered_through_the_files_api(arena: "Range", isolation: str) -> None:
    """FILE-9, design §5: the daemon's own rights are not lent to a path below a sandbox's /proc or /sys."""
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    box = arena.box(isolation)
    box.exec(f"mkdir -p {PLACE}; ln -s /proc/sys/kernel {PLACE}/kernel", user="root", check=True)
    for path in ("/proc/sys/kernel/core_pattern", f"{PLACE}/kernel/core_pattern", "/proc/sysrq-trigger",
                 "/sys/kernel/uevent_helper", "/proc/self/root/proc/sys/kernel/core_pattern", "/proc/1/oom_score_adj"):  # fmt: skip
        with pytest.raises(CorralError):
            box.files.write(path, "|/tmp/owned", user="root")
        with pytest.raises(CorralError):
            box.files.read_bytes(path)
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def test_hard_links_are_not_written_through(arena: "Range", isolation: str) -> None:
    """FILE-7: a write replaces the name it was given; a hard link that was planted there keeps its content."""
    box = arena.box(isolation)
    box.exec(
        f"mkdir -p {PLACE}; echo kept > {PLACE}/one; ln {PLACE}/one {PLACE}/two", user="root", check=True
    )
    box.files.write(f"{PLACE}/two", "new")
    assert box.files.read(f"{PLACE}/one") == "kept\n"


def test_copies_out_of_a_sandbox_stay_in_their_target(
    arena: "Range", isolation: str, host_secret: Path, tmp_path: Path
) -> None:
    """FILE-10, G-276: `corral cp` makes no link that leaves the copy, follows none, and writes nothing beside the target."""
    box = arena.box(isolation)
    lay_links(box, host_secret)
    box.exec(
        f"cd {PLACE}; mkfifo fifo; mkdir -p sub/.git/hooks; echo x > sub/.git/hooks/post-checkout; chmod 4777 sub/.git/hooks/*; "
        f"printf x > $'new\\nline'; printf x > '-rf'; ln -s . here; echo ok > plain",
        user="root",
    )
    out = tmp_path / "out"
    out.mkdir()
    done = arena.daemon.cli("cp", f"{box.name}:{PLACE}", str(out / "copy"), check=False)
    assert (out / "copy" / "plain").read_text() == "ok\n", done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["copy"]
    for path in out.rglob("*"):
        status = path.lstat()
        assert not status.st_mode & 0o6000, path
        if path.is_symlink():
            assert Path(os.path.realpath(path)).is_relative_to(out), path
        else:
            assert path.is_dir() or path.is_file(), path
            assert path.is_dir() or host_secret.read_bytes() not in path.read_bytes()


def test_a_link_in_the_way_of_a_copy_is_not_followed(
    arena: "Range", host_secret: Path, tmp_path: Path
) -> None:
    """FILE-10: what an earlier copy left at the target does not lead the next one elsewhere, nor into a repository's .git."""
    box = arena.box()
    box.exec(f"mkdir -p {PLACE}/sub/.git; echo owned > {PLACE}/sub/{host_secret.name}; echo owned > {PLACE}/sub/.git/config",
             check=True)  # fmt: skip
    target = tmp_path / "copy"
    target.mkdir()
    (target / "sub").symlink_to(host_secret.parent)
    with pytest.raises(Conflict):
        box.files.download(PLACE, target)
    assert host_secret.read_text().startswith("host secret")
    repository = tmp_path / "repository"
    (repository / "sub" / ".git").mkdir(parents=True)
    (repository / "sub" / ".git" / "config").write_text("mine")
    box.files.download(PLACE, repository)
    assert (repository / "sub" / ".git" / "config").read_text() == "mine"


def test_a_tree_that_changes_under_a_copy(
    arena: "Range", isolation: str, host_secret: Path, tmp_path: Path
) -> None:
    """FILE-10: copies of a tree in which directories become links to the host's and back."""
    box = arena.box(isolation)
    swapper = box.spawn(
        ["python3", "-m", "tests.attack.guest.swap", PLACE, str(host_secret.parent)], cwd="/opt/attack"
    )
    assert next(iter(swapper.output())).text == "ready\n"
    for number in range(10):
        with contextlib.suppress(CorralError):
            box.files.download(PLACE, tmp_path / f"copy-{number}")
    swapper.kill()
    secret = host_secret.read_bytes()
    assert not [
        p for p in tmp_path.rglob("*") if p != host_secret and p.is_file() and secret in p.read_bytes()
    ]


def hostile_tar(target: Path) -> bytes:
    """An archive whose members want to be elsewhere."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:

        def add(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"owned") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o6777
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(data) if info.size else None)

        add("tree", tarfile.DIRTYPE)
        add(str(target))
        add(f"tree/../../../../../../../../..{target}")
        add("tree/link", tarfile.SYMTYPE, str(target.parent))
        add(f"tree/link/{target.name}")
        add("tree/inner", tarfile.SYMTYPE, "deep")
        add("tree/hard", tarfile.LNKTYPE, str(target))
        add("tree/hard", data=b"owned")
        add("tree/fifo", tarfile.FIFOTYPE)
        add("tree/node", tarfile.CHRTYPE)
        add("tree/loop", tarfile.SYMTYPE, "loop")
        add("tree/.git/hooks/post-checkout")
        add("tree/fine", data=b"fine")
    return content.getvalue()


def test_a_hostile_archive_is_unpacked_below_its_target(host_secret: Path, tmp_path: Path) -> None:
    """FILE-10: the client trusts no name, link or type in what a daemon, or who speaks for it, sends."""
    (tmp_path / "out").mkdir()
    with contextlib.suppress(CorralError):
        trees.unpack([hostile_tar(host_secret)], tmp_path / "out" / "copy")
    assert host_secret.read_text().startswith("host secret")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["copy"]
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_symlink() or Path(os.path.realpath(path)).is_relative_to(tmp_path / "out")
        assert path.is_symlink() or path.is_dir() or path.is_file()


def test_a_hostile_archive_into_a_sandbox_stays_there(
    arena: "Range", isolation: str, host_secret: Path
) -> None:
    """FILE-10: what it overwrites is the sandbox's at most: it is unpacked inside, as the sandbox's own user."""
    box = arena.box(isolation)
    with contextlib.suppress(CorralError):
        arena.client.write_archive(box.id, "/home/user", hostile_tar(host_secret))
    assert host_secret.read_text().startswith("host secret")
    assert not (host_secret.parent / "fine").exists()
    arena.alive()


def test_links_of_the_host_do_not_carry_its_files_in(
    arena: "Range", host_secret: Path, tmp_path: Path
) -> None:
    """FILE-10, the other direction: a link in an uploaded tree that leaves it is left out, its target never read."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "plain").write_text("plain")
    (tree / "out").symlink_to(host_secret)
    (tree / "up").symlink_to(f"../{host_secret.name}")
    box = arena.box()
    copied = box.files.upload(tree, "/home/user/tree")
    assert sorted(name for name, _ in copied.skipped) == ["tree/out", "tree/up"]
    found = box.exec("cat /home/user/tree/* ; ls -A /home/user/tree", user="root").stdout
    assert host_secret.read_text() not in found
    assert "plain" in found
