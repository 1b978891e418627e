"""The run directory belongs to one boot of the host: pins, process numbers and sockets mean nothing after it.

/run is a tmpfs almost everywhere. Where it is not, what is left there from before is removed and a tmpfs is mounted
in its place, which also makes it fast: a start makes some twenty small files there.
"""

import os
import shutil
from pathlib import Path

from corral.errors import HostError
from corral.host import mounts, syscalls

_TMPFS = 0x01021994
_OPTIONS = "mode=711,size=1g,nr_inodes=1m"


def make_volatile(run: Path) -> None:
    """See that `run`, an existing directory whose only user is the caller, ends with this boot. Blocks.

    One that holds mounts is in use by sandboxes of this boot, and stays as it is. Raises HostError.
    """
    if _is_tmpfs(run) or mounts.mounts_below(run):
        return
    try:
        for entry in run.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        mounts.FileSystem("tmpfs", "corral", run, syscalls.MS_NOSUID | syscalls.MS_NODEV, _OPTIONS).make()
    except OSError as error:
        raise HostError(f"the run directory {run} cannot be made ready: {error}") from error


def _is_tmpfs(path: Path) -> bool:
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return syscalls.fstatfs_type(fd) == _TMPFS
    finally:
        os.close(fd)
