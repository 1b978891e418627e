"""Volumes in the store, and their mounts in a sandbox's root.

A volume is a subvolume with a limit of its own, whose root belongs to the root of its tenant's sandboxes and is open to all
of their users. It is mounted by Corral, on the sandbox's mounted root before anything runs in it: so it is there for every
runtime, for the files API, and in a stopped sandbox, and no runtime resolves the path. The path is opened without following
any symlink, in the sandbox's root, and the mount goes to what was opened. Mounts of volumes end with that of the root: to
unmount one by its path would mean to resolve what a guest has left there.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from corral.errors import HostError, InternalError, InvalidInput
from corral.host import syscalls
from corral.host.filechecks import closing
from corral.host.files import GuestTree
from corral.host.filewrite import Owner
from corral.model.ids import VolumeId, is_id
from corral.model.volume import VolumeMount
from corral.rootfs.store import RootStore, public_errors

_ROOM = 256 * 1024 * 1024
_MODE = 0o777
_TARGET_MODE = 0o755
_ATTRIBUTES = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_TARGET = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV


class VolumeDirectories:
    """The volumes of a store. All methods block for about a millisecond. Raise DiskFull and HostError."""

    def __init__(self, store: RootStore) -> None:
        self._store = store

    def create(self, volume: VolumeId, size: int, uid_base: int) -> None:
        """An empty one that can hold `size` bytes, for the tenant whose first host id is `uid_base`. On return it survives a
        power cut."""
        with public_errors("make a volume"):
            self._store.require_room(_ROOM)
            fresh = self._store.temporary()
            self._store.subvolumes.create(fresh)
            try:
                self._store.subvolumes.limit(fresh, size)
                fresh.chmod(_MODE)
                os.chown(fresh, uid_base, uid_base)
                fresh.rename(self._place(volume))
            except OSError:
                self._store.subvolumes.remove(fresh)
                raise
            self._store.subvolumes.settle(self._store.root)

    def remove(self, volume: VolumeId) -> None:
        """With all that is in it; nothing may have it mounted. Idempotent."""
        with public_errors("remove a volume"):
            self._store.subvolumes.remove(self._place(volume))

    def known(self) -> set[VolumeId]:
        """All that have a directory."""
        return {VolumeId(entry.name) for entry in self._store.volumes.iterdir() if is_id(entry.name)}

    def usage(self, volume: VolumeId) -> int:
        """Bytes that count against its limit; 0 if it is not there."""
        with public_errors("read a volume's disk usage"):
            try:
                return self._store.subvolumes.usage(self._place(volume))
            except FileNotFoundError:
                return 0

    def path(self, volume: VolumeId) -> Path:
        """Its directory. Raises HostError if it is missing."""
        place = self._place(volume)
        if not place.is_dir():
            raise HostError(f"the directory of volume {volume} is missing", "see `corral doctor`")
        return place

    def _place(self, volume: VolumeId) -> Path:
        if not is_id(volume):
            raise InternalError(f"{volume!r} is not a volume's id")
        return self._store.volumes / volume


def attach(root: Path, volumes: Sequence[tuple[Path, VolumeMount]], uid_base: int) -> None:
    """Mount volumes, by their directories, on a mounted root that nothing runs on; where a path is missing, it is made for
    `uid_base`. Blocks.

    Raises InvalidInput for a path that is no directory or leads through a symlink, OSError; then some may be mounted.
    """
    if not volumes:
        return
    owner = Owner(uid_base, uid_base)
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with GuestTree(top) as tree:
        for source, volume in volumes:
            with (
                closing(_target(tree, top, volume.path, owner)) as target,
                closing(_view(source, read_only=volume.read_only)) as view,
            ):
                syscalls.move_mount(
                    view, "", target, "", syscalls.MOVE_MOUNT_F_EMPTY_PATH | syscalls.MOVE_MOUNT_T_EMPTY_PATH
                )


def _target(tree: GuestTree, top: int, path: str, owner: Owner) -> int:
    try:
        return _opened(top, path)
    except FileNotFoundError:
        tree.make_dir(path, owner, _TARGET_MODE)
        return _opened(top, path)


def _opened(top: int, path: str) -> int:
    try:
        return syscalls.openat2(top, path, os.O_PATH | os.O_DIRECTORY, resolve=_TARGET)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        what = "leads through a symlink" if error.errno == errno.ELOOP else "is no directory"
        raise InvalidInput(
            f"a volume cannot be mounted at {path}, which {what} in the sandbox", "mount it elsewhere"
        ) from None


def _view(source: Path, *, read_only: bool) -> int:
    """A detached mount of a volume's directory."""
    flags = _ATTRIBUTES | (syscalls.MOUNT_ATTR_RDONLY if read_only else 0)
    fd = syscalls.open_tree(syscalls.AT_FDCWD, str(source), syscalls.OPEN_TREE_CLONE)
    try:
        syscalls.mount_setattr(fd, set_flags=flags)
    except OSError:
        os.close(fd)
        raise
    return fd
