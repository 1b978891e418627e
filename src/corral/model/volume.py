"""Volumes: directories with a limit that a tenant's sandboxes mount, and that outlive them.

Where one may be mounted is decided here, by the text of the path alone. Nothing of Corral's own in a sandbox lies below a
volume, and no volume below another: so neither Corral nor a runtime ever resolves a path through what a volume holds, which
another sandbox may be changing at that moment.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.errors import InvalidInput
from corral.model.ids import TenantId, VolumeId, check_guest_path

MIB, GIB = 1024**2, 1024**3
VOLUME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
DEFAULT_SIZE = 10 * GIB
MIN_SIZE, MAX_SIZE = 16 * MIB, 64 * 1024 * GIB
MAX_MOUNTS = 16
_NAME = re.compile(VOLUME_PATTERN)
_WISH = re.compile(rf"({VOLUME_PATTERN}):(/[^:]*)(:ro|:rw)?")
_NOT_BELOW = ("/proc", "/sys", "/dev", "/run")
_NOT_ABOVE = (
    *_NOT_BELOW,
    "/etc/hostname",
    "/etc/hosts",
    "/etc/machine-id",
    "/etc/resolv.conf",
    "/usr/local/bin/corral-ask",
    "/etc/ssl/certs/ca-certificates.crt",
)


@dataclass(frozen=True, slots=True)
class Volume:
    """`size` in bytes is the most that it can hold. Until it is `ready`, and from the moment that it is being removed, it
    cannot be mounted and is shown to nobody."""

    id: VolumeId
    tenant: TenantId
    name: str
    size: int
    created_at: datetime
    ready: bool = False

    def checked(self) -> "Volume":
        """Itself, or raise InvalidInput."""
        check_volume_name(self.name)
        if not MIN_SIZE <= self.size <= MAX_SIZE:
            raise InvalidInput(
                f"a volume of {self.size} bytes is not possible", f"give {MIN_SIZE} to {MAX_SIZE}"
            )
        return self


@dataclass(frozen=True, slots=True)
class VolumeWish:
    """That a volume, by its name or id, is mounted at a path of a new sandbox."""

    volume: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume at a path of a sandbox. `name` is what it was called then."""

    id: VolumeId
    name: str
    path: str
    read_only: bool = False


def check_volume_name(name: str) -> str:
    """Return `name`, or raise InvalidInput: 1 to 63 letters, digits, hyphens and underscores."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"volume name {name[:80]!r} is not valid",
            "use 1 to 63 letters, digits, hyphens and underscores, and no hyphen first",
        )
    return name


def parse_mount(text: str) -> VolumeWish:
    """`NAME:/path`, with `:ro` behind it to mount it read-only. Raises InvalidInput."""
    found = _WISH.fullmatch(text)
    if found is None:
        raise InvalidInput(
            f"volume {text[:80]!r} is not valid", "write NAME:/path, or NAME:/path:ro to only read it"
        )
    return VolumeWish(found[1], found[2], found[3] == ":ro")


def check_mounts(wishes: Sequence[VolumeWish]) -> None:
    """Raise InvalidInput for paths at which volumes cannot be mounted together."""
    if len(wishes) > MAX_MOUNTS:
        raise InvalidInput(f"{len(wishes)} volumes are too many", f"mount at most {MAX_MOUNTS}")
    paths = [_checked_path(wish.path) for wish in wishes]
    for index, path in enumerate(paths):
        for other in paths[:index]:
            if _is_below(path, other) or _is_below(other, path):
                raise InvalidInput(
                    f"volumes cannot be mounted at both {other} and {path}", "mount neither below the other"
                )


def _checked_path(path: str) -> str:
    check_guest_path(path)
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        raise InvalidInput(
            f"a volume cannot be mounted at {path[:80]!r}", "give an absolute path without `.`, `..` and `//`"
        )
    if any(_is_below(path, taken) for taken in _NOT_BELOW) or any(
        _is_below(taken, path) for taken in _NOT_ABOVE
    ):
        raise InvalidInput(
            f"a volume cannot be mounted at {path[:80]}: it would hide what the system and Corral have there",
            "give a path such as /data or /home/user/data",
        )
    return path


def _is_below(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}/")
