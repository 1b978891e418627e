"""The certificates that a sandbox trusts, as a layer above all layers of its template.

A file of the bundle that were bound over the system's own could not be replaced, and that is what a distribution's tool
does with it (`update-ca-certificates`, which every update of the package `ca-certificates` runs): the update would fail.
In a layer it is a file like any other, and it is in no template that is made from the sandbox. Where that tool makes the
bundle anew, it finds the same certificates among those that were added to the system.
"""

import hashlib
import os
import secrets as randomness
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from corral.host.statefile import flush, write_state
from corral.rootfs.overlay import MAX_LAYERS
from corral.rootfs.records import RECORD, TREE, LayerRecord, write_record

BUNDLE = "etc/ssl/certs/ca-certificates.crt"
ADDED = "usr/local/share/ca-certificates/corral.crt"


def trusted_layer(folder: Path, bundle: bytes) -> Path:
    """The tree of the layer with `bundle` (PEM), made below `folder` where it is not there. Never changed afterwards."""
    place = folder / hashlib.sha256(bundle).hexdigest()
    if not place.is_dir():
        fresh = folder / f".{randomness.token_hex(8)}"
        for name in (BUNDLE, ADDED):
            file = fresh / TREE / name
            file.parent.mkdir(parents=True)
            write_state(file, bundle, 0o644)
        for directory, _, _ in os.walk(fresh / TREE):
            Path(directory).chmod(0o755)
        write_record(fresh, LayerRecord(uid_base=0, size=2 * len(bundle), content=False))
        flush(fresh / RECORD)
        try:
            fresh.rename(place)
        except OSError:  # another was first
            shutil.rmtree(fresh)
    return place / TREE


def fits(layers: Sequence[Path]) -> bool:
    """Whether the layer's directories are directories in an image too; `layers` are its trees, lowest first.

    Some images have a link in their place, which the layer would hide with all that it leads to.
    """
    return len(layers) < MAX_LAYERS and all(
        _is_directory(layers, part) for name in (BUNDLE, ADDED) for part in _parents(name)
    )


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _is_directory(layers: Sequence[Path], name: str) -> bool:
    for layer in reversed(layers):
        try:
            found = (layer / name).lstat()
        except NotADirectoryError:
            return False
        except FileNotFoundError:
            continue
        # A deleted one is told by a device, and nothing below counts.
        return stat.S_ISDIR(found.st_mode) or stat.S_ISCHR(found.st_mode)
    return True
