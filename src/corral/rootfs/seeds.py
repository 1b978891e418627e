"""Inode numbers that are unique within every sandbox.

The problem. Layers and uppers are subvolumes of one btrfs, and each subvolume numbers its inodes from 257. overlayfs sees
one file system and passes the numbers through, so that two different files of a sandbox can show the same device and
inode: `cp` calls them the same file, archivers take them for hard links, and gVisor, which remembers files by these two
numbers, mixes them up. (overlayfs can add the layer to the number, but only for layers of different file systems.)

What we do. btrfs gives a new inode the number after the highest that is in its subvolume. So a new subvolume is made as a
snapshot of a *seed*: an empty subvolume with one file of a high number. The seed is chosen above every number in the
layers below, which the layers' records tell. A committed layer keeps the numbers that its sandbox gave, and they are above
those of the layers that it was made over. A seed is made from the one before it by making and dropping as many files as
it is to be higher, about 12 µs each, and takes its place.

Layers that the host fills start above all that there are, one after the other, since which of them will lie over which is
not known yet.
"""

import os
from pathlib import Path

from corral.host import btrfs

MARK = "seed"
"""The file that holds a subvolume's numbers up."""
_STEP = 2048


def seed_above(inode: int, seeds: Path, scratch: Path) -> Path:
    """The seed below `seeds`, named by its number, whose snapshots give numbers above `inode`; a higher one takes its
    place, made by way of `scratch`, where it is too low. One caller at a time, until the seed has been used. Raises
    OSError."""
    former = max((int(entry.name) for entry in seeds.iterdir()), default=0)
    if former > inode:
        return seeds / str(former)
    if former:
        btrfs.snapshot(seeds / str(former), scratch)
        (scratch / MARK).unlink()
    else:
        btrfs.create_subvolume(scratch)
        scratch.chmod(0o711)
    place = seeds / str(_climb(scratch, inode + _STEP))
    scratch.rename(place)
    if former:
        btrfs.delete_subvolume(seeds / str(former))
    return place


def _climb(folder: Path, target: int) -> int:
    """Make the mark with a number of at least `target`; that number."""
    reached = 0
    while reached < target - 1:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        reached = os.fstat(fd).st_ino
        os.close(fd)
    (folder / MARK).touch(0o600)
    return (folder / MARK).stat().st_ino


def top_of(folder: Path) -> int:
    """A number that no inode below the subvolume `folder` exceeds; found by making a file in it and dropping it."""
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)
