"""Exchanges a directory with a symlink to elsewhere, for ever: what is checked is not what is used."""

import ctypes
import os
import sys
from pathlib import Path

from .kit import libc

RENAME_EXCHANGE = 2


def main(place: str, target: str) -> None:
    """`place/real` holds a file; `place/link` points to `target`; `place/race` is one of them at any time."""
    Path(place, "race").mkdir(parents=True, exist_ok=True)
    Path(place, "race", "file").write_text("mine")
    os.symlink(target, f"{place}/other")
    race, other = f"{place}/race".encode(), f"{place}/other".encode()
    print("ready", flush=True)
    while True:
        libc.renameat2(-100, race, -100, other, ctypes.c_uint(RENAME_EXCHANGE))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
