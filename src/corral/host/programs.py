"""Where outside programs are found: Corral's own cache of built programs first, then the PATH."""

import os
import shutil
from functools import lru_cache
from pathlib import Path

from corral.errors import Unsupported

# Debian and Ubuntu package of a program, where its name does not tell.
_PACKAGES = {
    "mkfs.btrfs": "btrfs-progs",
    "btrfs": "btrfs-progs",
    "dockerd": "docker.io",
    "docker": "docker.io",
    "musl-gcc": "musl-tools",
    "ip": "iproute2",
    "tmux": "tmux",
}
# Programs that `make setup` builds or fetches into the cache.
_BUILT = frozenset({"runsc", "corral-init", "corral-cgroup1"})
# A user's PATH often lacks these, and mkfs and friends live there.
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def cache_dir() -> Path:
    """Directory of what Corral builds or fetches once per machine: `$CORRAL_CACHE_DIR`, else
    ~/.cache/corral.
    """
    configured = os.environ.get("CORRAL_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "corral"


def search_path() -> str:
    """The PATH that programs are searched on, and that children get: the cache's `bin`, PATH, system
    folders.
    """
    return _search_path(cache_dir(), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _search_path(cache: Path, path: str) -> str:
    """It is asked for with each program, and changes only with its arguments."""
    entries = [str(cache / "bin"), *path.split(os.pathsep), *_SYSTEM_PATH]
    # An empty or relative entry means "the current directory" to the C library: never search there.
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if entry.startswith("/")))


def find_program(name: str) -> Path:
    """The absolute path of a program. Raises Unsupported with the next step if this host lacks it."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise Unsupported(f"the program {name!r} was not found on this host", install_hint(name))
    return Path(found)


def install_hint(name: str) -> str:
    """How to get a program."""
    if name in _BUILT:
        return f"run `make setup` in Corral's source tree: it puts {name} into {cache_dir() / 'bin'}"
    return (
        f"install it (Debian, Ubuntu: `apt-get install {_PACKAGES.get(name, name)}`), or put it on the PATH"
    )
