"""Looks for a secret everywhere in a sandbox, as its root.

The secret comes masked (each byte XOR 0x5a), and what is searched is masked the same way, so that the search does not
find itself: the secret is nowhere in this program's memory, arguments or files.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from .kit import report

MASK = bytes(byte ^ 0x5A for byte in range(256))
CHUNK = 4 << 20
OVERLAP = 4096
SKIPPED = ("/proc", "/sys")


def holds(data: bytes, needles: list[bytes]) -> bool:
    """Whether unmasked data holds one of the masked needles."""
    masked = data.translate(MASK)
    return any(needle in masked for needle in needles)


def file_holds(path: str, needles: list[bytes]) -> bool:
    """Whether a file, of any size, holds a needle."""
    try:
        with open(path, "rb") as file:
            tail = b""
            while chunk := file.read(CHUNK):
                if holds(tail + chunk, needles):
                    return True
                tail = chunk[-OVERLAP:]
    except OSError:
        return False
    return False


def files(roots: list[str]) -> Iterator[str]:
    """All regular files below some directories, of all file systems that hold data."""
    for root in roots:
        for place, folders, names in os.walk(root):
            folders[:] = [name for name in folders if os.path.join(place, name) not in SKIPPED]
            for name in names:
                path = os.path.join(place, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    yield path


def memory_holds(pid: str, needles: list[bytes]) -> bool:
    """Whether memory that this process may read holds a needle."""
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
                if found is None or "[v" in line:
                    continue
                start, end = (int(text, 16) for text in found.groups())
                for position in range(start, min(end, start + (256 << 20)), CHUNK):
                    memory.seek(position)
                    if holds(memory.read(min(CHUNK + OVERLAP, end - position)), needles):
                        return True
    except (OSError, ValueError):
        return False
    return False


def search(needles: list[bytes], roots: list[str]) -> list[str]:
    """Places where a needle was found: files below `roots`, and all that processes and the kernel show."""
    found = [path for path in files(roots) if file_holds(path, needles)]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        texts = ("environ", "cmdline", "mountinfo", "comm", "maps", "stack")
        found += [f"{entry}/{name}" for name in texts if file_holds(f"{entry}/{name}", needles)]
        if memory_holds(entry.name, needles):
            found.append(f"{entry}/mem")
    plain = ("mounts", "cmdline", "keys", "net/unix", "net/tcp", "modules", "config.gz", "version")
    found += [f"/proc/{name}" for name in plain if file_holds(f"/proc/{name}", needles)]
    return found


if __name__ == "__main__":
    report(search([bytes.fromhex(line) for line in sys.stdin.read().split()], sys.argv[1:] or ["/"]))
