"""Attacks on whoever reads and writes a sandbox's files from outside."""

import contextlib
import secrets
from pathlib import Path

from corral.errors import CorralError
from corral.sdk.sandbox import Sandbox
from corral.testing.attack.arena import Arena, Attack, expect

PLACE = "/home/user/trap"
ROUNDS = 60
_SETTING = Path("/proc/sys/kernel/printk_ratelimit_burst")
"""Of the kernel's settings the one whose change does the least."""


def _lay(box: Sandbox, target: Path) -> list[str]:
    """Links of every kind that would lead to a file of the host."""
    up = "../" * 12
    links = {
        "absolute": f"{target}", "relative": f"{up}{str(target)[1:]}", "self-root": f"/proc/self/root{target}",
        "one-root": f"/proc/1/root{target}", "self-cwd": f"/proc/self/cwd/{up}{str(target)[1:]}", "fd": "/proc/self/fd/3",
        "thread": f"/proc/thread-self/root{target}", "dir": f"{target.parent}", "root": "/", "chain": "absolute",
        "exe": "/proc/1/exe", "dot": f"./../../../../../../..{target}",
    }  # fmt: skip
    made = "; ".join(f"ln -s {to} {name}" for name, to in links.items())
    box.exec(f"rm -rf {PLACE}; mkdir -p {PLACE}; cd {PLACE}; {made}", user="root")
    below = (
        f"{PLACE}/dir/{target.name}",
        f"{PLACE}/root{target}",
        f"{PLACE}/{up}{str(target)[1:]}",
        f"/../../..{target}",
    )
    return [f"{PLACE}/{name}" for name in links] + list(below)


def _read(arena: Arena) -> str:
    secret, paths = arena.secret_file.read_bytes(), _lay(arena.plain, arena.secret_file)
    for path in paths:
        data = b""
        with contextlib.suppress(CorralError):
            data = arena.plain.files.read_bytes(path)
        expect(secret not in data, f"a file of the host was read through {path}")
    return f"paths are resolved inside the sandbox's root (openat2): {len(paths)} ways out led nowhere"


def _write(arena: Arena) -> str:
    before, content = sorted(arena.folder.iterdir()), arena.secret_file.read_bytes()
    files = arena.plain.files
    # Not below its link to the whole of the host, where nothing may be left if that is open.
    for path in sorted({*_lay(arena.plain, arena.secret_file)} - {f"{PLACE}/root"}):
        for action in (
            lambda path=path: files.write(path, "owned"),
            lambda path=path: files.write(f"{path}/made", "owned"),
            lambda path=path: files.mkdir(f"{path}/made-dir/deep"),
            lambda path=path: files.move(f"{PLACE}/absolute", path),
            lambda path=path: files.remove(f"{path}/{arena.secret_file.name}"),
            lambda path=path: files.remove(path),
        ):
            with contextlib.suppress(CorralError):
                action()
    kept = sorted(arena.folder.iterdir()) == before and arena.secret_file.read_bytes() == content
    expect(kept, "a file of the host was changed")
    return "writes, moves and removals stay in the sandbox's root as well"


def _race(arena: Arena) -> str:
    target = arena.folder / "race"
    target.mkdir()
    secret = f"host secret {secrets.token_hex(16)}".encode()
    (target / "file").write_bytes(secret)
    box = arena.plain
    box.exec(f"rm -rf {PLACE}", user="root")
    swapper = box.spawn(["python3", "-m", "attack.swap", PLACE, str(target)], cwd="/opt/attack")
    next(iter(swapper.output()))
    try:
        for number in range(ROUNDS):
            data = b""
            with contextlib.suppress(CorralError):
                data = box.files.read_bytes(f"{PLACE}/race/file")
            expect(secret not in data, "a swapped link was followed")
            if number % 3 == 0:
                with contextlib.suppress(CorralError):
                    box.files.write(f"{PLACE}/race/written", "owned")
    finally:
        swapper.kill()
    expect([path.name for path in target.iterdir()] == ["file"], "a file was written outside")
    return f"a directory that becomes a link thousands of times a second won none of {ROUNDS} races"


def _special(arena: Arena) -> str:
    box = arena.plain
    box.exec(
        f"rm -rf {PLACE}; mkdir -p {PLACE}; cd {PLACE}; mkfifo fifo; ln -s /dev/zero zero; ln -s /dev/tty tty; "
        "ln -s fifo alias; python3 -c 'import socket; socket.socket(1).bind(\"sock\")'; ln -s self self",
        user="root",
    )
    odd = [f"{PLACE}/{name}" for name in ("fifo", "alias", "zero", "tty", "sock", "self")]
    for path in (*odd, "/dev/zero", "/dev/random", "/dev/ptmx", "/proc/kmsg", "/proc/kcore", "/proc/1/mem"):
        try:
            box.files.read_bytes(path)
        except CorralError:
            continue
        expect(False, f"{path} was read")  # noqa: FBT003
    return "FIFOs, sockets, devices and terminals are refused at once, and block nobody"


def _kernel(arena: Arena) -> str:
    before = _SETTING.read_text()
    arena.plain.exec(f"rm -rf {PLACE}; mkdir -p {PLACE}; ln -s {_SETTING.parent} {PLACE}/kernel", user="root")
    for path in (f"{_SETTING}", f"{PLACE}/kernel/{_SETTING.name}", f"/proc/self/root{_SETTING}"):
        with contextlib.suppress(CorralError):
            arena.plain.files.write(path, f"{int(before) + 1}\n", user="root")
    after = _SETTING.read_text()
    if after != before:
        _SETTING.write_text(before)
    expect(after == before, f"{_SETTING} of the host was written")
    return "the daemon's own rights are not lent to a path below /proc or /sys"


def _copies(arena: Arena) -> str:
    target = arena.folder / "copied"
    target.mkdir()
    _lay(arena.plain, arena.secret_file)
    with contextlib.suppress(CorralError):
        arena.plain.files.download(PLACE, target / "trap")
    secret = arena.secret_file.read_bytes()
    for path in target.rglob("*"):
        outside = path.is_symlink() and not path.resolve().is_relative_to(target)
        expect(not outside, f"a copy holds a link that leaves it: {path.name}")
        expect(
            path.is_symlink() or path.is_dir() or secret not in path.read_bytes(),
            "a copy holds a host's file",
        )
    return "a copy holds no link that leaves it, and nothing beside it is written"


ATTACKS = (
    Attack("links-read", "G-276", "have a file of the host read through links", _read),
    Attack("links-write", "G-276", "have a file of the host written or removed through links", _write),
    Attack("links-race", "G-276", "win a race by swapping a directory for a link", _race),
    Attack("special-files", "G-342", "block or flood the daemon with FIFOs and devices", _special),
    Attack("kernel-files", "G-1", "steer the host's kernel through the files API", _kernel),
    Attack("copies", "G-276", "plant links in what is copied out", _copies),
)
