"""Takes as much as it can get of one thing; prints how much that was."""

import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .kit import outcome, report

MIB = 1024 * 1024
_SUBVOLUME, _SAYS_GROUPS = 0x50009418, 4
"""A call of btrfs, and its flag that it says which groups the new subvolume joins."""


def forks(limit: int) -> None:
    """A fork bomb: every process forks on for ever. Says nothing, ends never."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)


def memory(limit: int) -> None:
    """Touch memory, `limit` MiB of it."""
    kept: list[bytes] = []
    while len(kept) * 8 < limit:
        kept.append(b"x" * (8 * MIB))
    report({"touched": len(kept) * 8 * MIB})


def disk(limit: int) -> None:
    """Write until there is no more; at most `limit` MiB."""
    written, error = 0, 0
    with open("/home/user/fill", "wb", buffering=0) as file:
        try:
            while written < limit * MIB:
                written += file.write(os.urandom(MIB))
                os.fsync(file.fileno())
        except OSError as problem:
            error = problem.errno or 0
    report({"written": written, "error": errno.errorcode.get(error, "none")})


def inodes(limit: int) -> None:
    """Make empty files, at most `limit`."""
    made, error = 0, 0
    Path("/home/user/many").mkdir()
    try:
        for made in range(limit):
            os.close(os.open(f"/home/user/many/{made:0200d}", os.O_CREAT | os.O_WRONLY))
    except OSError as problem:
        error = problem.errno or 0
    report({"made": made, "error": errno.errorcode.get(error, "none")})


def shared(limit: int) -> None:
    """Fill every tmpfs."""
    found = {}
    for place in ("/dev/shm", "/run", "/dev", "/run/corral"):
        written, error = 0, 0
        try:
            with open(f"{place}/fill", "wb", buffering=0) as file:
                while written < limit * MIB:
                    written += file.write(bytes(256 * 1024))
        except OSError as problem:
            error = problem.errno or 0
        found[place] = {"written": written, "error": errno.errorcode.get(error, "none")}
        if written:
            Path(place, "fill").unlink()
    report(found)


def descriptors(limit: int) -> None:
    """Open files and pipes, at most `limit`."""
    kept: list[int] = []
    error = 0
    try:
        while len(kept) < limit:
            kept += [os.open("/", os.O_RDONLY), *os.pipe()]
    except OSError as problem:
        error = problem.errno or 0
    report({"opened": len(kept), "error": errno.errorcode.get(error, "none")})


def connections(limit: int) -> None:
    """Connect to the gateway, `limit` times, and send the beginning of a request on each; say how many it keeps, and wait
    for a line of input."""
    kept: list[socket.socket] = []
    failed = 0
    for number in range(limit):
        connection = socket.socket()
        connection.settimeout(0.5)
        try:
            connection.connect(("10.200.0.1", (80, 443, 53)[number % 3]))
            connection.send(b"G" if number % 3 == 0 else b"\x16\x03\x01\x02" if number % 3 == 1 else b"\x01")
            kept.append(connection)
        except OSError:
            failed += 1
            connection.close()
    held = len(kept) + 1
    while held > (held := sum(map(_is_open, kept))):
        time.sleep(0.5)
    print(f"ready {held} {failed}", flush=True)
    sys.stdin.readline()


def _is_open(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def terminals(limit: int) -> None:
    """Open terminals, at most `limit`; then wait for a line of input."""
    kept: list[int] = []
    error = 0
    try:
        while len(kept) < limit:
            kept.append(os.open("/dev/ptmx", os.O_RDWR))
    except OSError as problem:
        error = problem.errno or 0
    report({"opened": len(kept), "error": errno.errorcode.get(error, "none")})
    print(flush=True)
    sys.stdin.readline()


def unread(limit: int) -> None:
    """Connections to oneself, full of what nobody reads, at most `limit` MiB of it."""
    kept: list[socket.socket] = []
    sent = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(400):
            connection = socket.create_connection(server.getsockname())
            kept += [connection, server.accept()[0]]
            connection.settimeout(0)
            try:
                while sent < limit * MIB:
                    sent += connection.send(bytes(MIB))
            except BlockingIOError:
                continue
    report({"held": sent})


def subvolume(place: str) -> None:
    """A directory in `place` that counts against no limit: a btrfs subvolume that joins no quota group."""
    groups = ctypes.create_string_buffer(struct.pack("<9Q", *([0] * 9)))
    wanted = struct.pack("<qQQQQQQ", 0, 0, _SAYS_GROUPS, len(groups.raw) - 1, ctypes.addressof(groups), 0, 0)
    folder = os.open(place, os.O_RDONLY)
    report(
        {
            "made": outcome(
                fcntl.ioctl, folder, _SUBVOLUME, bytearray(wanted + b"uncounted".ljust(4040, b"\0"))
            )
        }
    )


WAYS: dict[str, Callable[[int], None]] = {
    "forks": forks, "memory": memory, "disk": disk, "inodes": inodes, "shared": shared, "descriptors": descriptors,
    "connections": connections, "terminals": terminals, "unread": unread,
}  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1] == "subvolume":
        subvolume(sys.argv[2])
    else:
        WAYS[sys.argv[1]](int(sys.argv[2]))
