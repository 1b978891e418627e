"""Choosing and mounting what the store stands on.

In order of preference: the data directory's own btrfs, if it has or takes simple quotas (others' full
quotas would make snapshots slow); a sparse file with a btrfs of Corral's own; plain directories. The choice
is made once and written down: with another kind, what is in the store would be out of sight.
"""

import asyncio
import errno
import json
import logging
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from corral.errors import DiskFull, HostError, Unsupported
from corral.host import btrfs, loop, mounts, syscalls
from corral.host.statefile import flush, write_state
from corral.rootfs.subvolumes import BtrfsSubvolumes, PlainSubvolumes, Subvolumes, free_bytes

_RECORD = "store.json"
IMAGE = "store.img"
"""The sparse file, in the data directory."""
_MOUNT = "store"
_MAX_IMAGE = 1 << 40
_MIN_IMAGE = 1 << 30
_SHARE_OF_FREE = 0.8
_log = logging.getLogger(__name__)


class StoreKind(StrEnum):
    """What the store stands on."""

    BTRFS = "btrfs"
    LOOP = "loop"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Backing:
    """An opened store: its root directory, and why it is not of a better kind (empty if it is the best)."""

    kind: StoreKind
    root: Path
    subvolumes: Subvolumes
    reason: str = ""


async def open_backing(data_dir: Path) -> Backing:
    """The store of a data directory, made on first use, mounted if it is not. Raises HostError,
    Unsupported.
    """
    await asyncio.to_thread(_prepare, data_dir)
    recorded = _read(data_dir)
    if recorded is None:
        backing = await _choose(data_dir)
        _write(data_dir, backing)
        return backing
    kind, reason = recorded
    if kind is StoreKind.LOOP:
        return await asyncio.to_thread(_mounted_image, data_dir)
    if kind is StoreKind.BTRFS:
        if not await asyncio.to_thread(_native_quotas, data_dir):
            raise HostError(
                f"the quotas of the btrfs under {data_dir} are off, but the store needs them",
                f"switch them on: `btrfs quota enable --simple {data_dir}`",
            )
        return Backing(kind, data_dir / _MOUNT, BtrfsSubvolumes())
    return Backing(kind, data_dir / _MOUNT, PlainSubvolumes(), reason)


async def close_backing(backing: Backing) -> None:
    """Unmount what `open_backing` mounted. Only for stores that nothing uses any more."""
    if backing.kind is StoreKind.LOOP:
        await asyncio.to_thread(mounts.unmount, backing.root)


def _prepare(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    (data_dir / _MOUNT).mkdir(mode=0o711, exist_ok=True)


async def _choose(data_dir: Path) -> Backing:
    if await asyncio.to_thread(_native_quotas, data_dir):
        return Backing(StoreKind.BTRFS, data_dir / _MOUNT, BtrfsSubvolumes())
    try:
        _require_btrfs()
    except Unsupported as error:
        reason = f"{error.message}; {error.hint}"
        _log.warning("the store has neither disk quotas nor quick checkpoints: %s", reason)
        return Backing(StoreKind.PLAIN, data_dir / _MOUNT, PlainSubvolumes(), reason)
    await _make_image(data_dir)
    return await asyncio.to_thread(_mounted_image, data_dir)


def _require_btrfs() -> None:
    """Raise Unsupported where the kernel has no btrfs or no loop devices. (A missing mkfs.btrfs can be
    installed in a minute: without it there is no store, rather than for ever a bad one.)"""
    try:
        os.close(syscalls.fsopen("btrfs"))  # loads the module
    except OSError as error:
        raise Unsupported(
            f"this kernel has no btrfs ({error.strerror})", "install the kernel's extra modules"
        ) from error
    loop.require()


def _native_quotas(data_dir: Path) -> bool:
    """Whether the data directory is on a btrfs with simple quotas, switched on here if no others are."""
    if btrfs.filesystem_id(data_dir) is None:
        return False
    try:
        return btrfs.enable_quotas(data_dir, simple_only=True) is btrfs.Quotas.SIMPLE
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EPERM, errno.EROFS):
            return False
        raise


async def _make_image(data_dir: Path) -> None:
    image = data_dir / IMAGE
    if image.exists():
        return
    unfinished = data_dir / f"{IMAGE}.new"
    await asyncio.to_thread(_sparse_file, unfinished, _image_size(data_dir))
    await btrfs.format_file(unfinished, "corral")
    await asyncio.to_thread(flush, unfinished)
    unfinished.rename(image)


def _image_size(data_dir: Path) -> int:
    size = min(_MAX_IMAGE, int(free_bytes(data_dir) * _SHARE_OF_FREE)) & ~0xFFFFF
    if size < _MIN_IMAGE:
        raise DiskFull(
            f"the disk of {data_dir} has too little space for the store",
            "free at least 1.3 GiB there, or set CORRAL_DATA_DIR to a directory on a larger disk",
        )
    return size


def _sparse_file(path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _mounted_image(data_dir: Path) -> Backing:
    image, root = data_dir / IMAGE, data_dir / _MOUNT
    try:
        _let_go_of_read_only(root)
        if not mounts.is_mounted(root):
            with loop.attached(image) as device:
                options = "discard=async"  # what is removed is given back to the disk below
                mounts.FileSystem("btrfs", str(device), root, syscalls.MS_NOATIME, options).make()
        btrfs.enable_quotas(root)
    except OSError as error:
        raise HostError(
            f"the store {image} cannot be mounted: {error}",
            "see `dmesg`; `btrfs check` the file; if it is lost, move it away, with store.json, and start anew",
        ) from error
    return Backing(StoreKind.LOOP, root, BtrfsSubvolumes())


def _let_go_of_read_only(root: Path) -> None:
    """Unmount a store that the kernel has made read-only, which a full disk does: mounted anew it can be written."""
    if not (mounts.is_mounted(root) and os.statvfs(root).f_flag & os.ST_RDONLY):
        return
    try:
        syscalls.umount2(str(root), syscalls.UMOUNT_NOFOLLOW)
    except OSError as error:
        raise HostError(
            f"the kernel has made the store {root} read-only, and sandboxes still use it",
            "free space on its disk and see `dmesg`; then end the sandboxes' processes, or reboot",
        ) from error


def _read(data_dir: Path) -> tuple[StoreKind, str] | None:
    try:
        record = json.loads((data_dir / _RECORD).read_text())
        return StoreKind(record["kind"]), str(record["reason"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(
            f"{data_dir / _RECORD} is damaged: {error}",
            "write the kind of the store into it: loop, btrfs or plain",
        ) from error


def _write(data_dir: Path, backing: Backing) -> None:
    record = json.dumps({"kind": backing.kind, "reason": backing.reason})
    write_state(data_dir / _RECORD, f"{record}\n".encode(), 0o644)
