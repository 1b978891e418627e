"""The certificates that a sandbox trusts, as a layer above all layers of its template.

A file of the bundle that were bound over the system's own could not be replaced, and that is what a distribution's tool
does with it (`update-ca-certificates`, which every update of the package `ca-certificates` runs): the update would fail.
In a layer it is a file like any other, and it is in no template that is made from the sandbox. Where that tool makes the
bundle anew, it finds the same certificates among those that were added to the system.

Browsers keep stores of their own (NSS) and ask their policy what else to trust (G-129): the gateway's certificate alone.
"""

import hashlib
import json
import os
import secrets as randomness
import shutil
import ssl
import stat
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from corral.host.statefile import flush, write_state
from corral.rootfs.overlay import MAX_LAYERS
from corral.rootfs.records import RECORD, TREE, LayerRecord, write_record

BUNDLE = "etc/ssl/certs/ca-certificates.crt"
ADDED = "usr/local/share/ca-certificates/corral.crt"
CHROMIUM = "etc/chromium/policies/managed/corral.json"
CHROME = "etc/opt/chrome/policies/managed/corral.json"
FIREFOX = "etc/firefox/policies/policies.json"
_POLICIES = (CHROMIUM, CHROME, FIREFOX)
_FORM = b"2"
"""Another one for a layer that has other files of the same certificates."""


def trusted_layer(folder: Path, bundle: bytes, gateway: str, path: str) -> Path:
    """The tree of the layer with `bundle` (PEM), made below `folder` where it is not there. Never changed afterwards.

    In the bundle stands the certificate of the `gateway` (PEM), which is at `path` in sandboxes too.
    """
    known = hashlib.sha256(b"\0".join((bundle, gateway.encode(), path.encode(), _FORM)))
    place = folder / known.hexdigest()
    if not place.is_dir():
        files = {BUNDLE: bundle, ADDED: bundle, **_policies(gateway, path)}
        fresh = folder / f".{randomness.token_hex(8)}"
        for name, text in files.items():
            file = fresh / TREE / name
            file.parent.mkdir(parents=True)
            write_state(file, text, 0o644)
        for directory, _, _ in os.walk(fresh / TREE):
            Path(directory).chmod(0o755)
        write_record(fresh, LayerRecord(uid_base=0, size=sum(map(len, files.values())), content=False))
        flush(fresh / RECORD)
        try:
            fresh.rename(place)
        except OSError:  # another was first
            shutil.rmtree(fresh)
    return place / TREE


def _policies(gateway: str, path: str) -> Mapping[str, bytes]:
    """What browsers are told to trust."""
    chromium = {"CACertificates": [b64encode(ssl.PEM_cert_to_DER_cert(gateway)).decode()]}
    firefox = {"policies": {"Certificates": {"Install": [path]}}}
    told = (chromium, chromium, firefox)
    return {name: json.dumps(policy).encode() for name, policy in zip(_POLICIES, told, strict=True)}


def fits(layers: Sequence[Path]) -> bool:
    """Whether the layer hides nothing of an image; `layers` are its trees, lowest first.

    Some images have a link in the place of a directory, which the layer would hide with all that it leads to; and Firefox has
    one file for all of its policies.
    """
    parents = {part for name in (BUNDLE, ADDED, *_POLICIES) for part in _parents(name)}
    return (
        len(layers) < MAX_LAYERS
        and all(_kind(layers, part) in (None, stat.S_IFDIR) for part in parents)
        and _kind(layers, FIREFOX) is None
    )


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _kind(layers: Sequence[Path], name: str) -> int | None:
    """What is there in an image; None for nothing."""
    for layer in reversed(layers):
        try:
            found = (layer / name).lstat()
        except NotADirectoryError:
            return stat.S_IFREG
        except FileNotFoundError:
            continue
        # A deleted one is told by a device, and nothing below counts.
        return None if stat.S_ISCHR(found.st_mode) else stat.S_IFMT(found.st_mode)
    return None
