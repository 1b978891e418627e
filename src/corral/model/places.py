"""Where a daemon and its clients meet: one rule, followed by both. Pure but for resolving the data directory's links."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

DEFAULT_DATA_DIR = "/var/lib/corral"
RUN_ROOT = Path("/run/corral")
"""Directory of the run directories of all installations of this host, named by instance."""


def data_dir(environ: Mapping[str, str]) -> Path:
    """The data directory that the environment names by CORRAL_DATA_DIR, or the default one; absolute, links resolved."""
    return Path(environ.get("CORRAL_DATA_DIR") or DEFAULT_DATA_DIR).resolve()


def instance_of(data: Path) -> str:
    """Eight hexadecimal digits that tell the installation of a data directory from all others on the host."""
    return hashlib.sha256(str(data).encode("utf-8", "surrogateescape")).hexdigest()[:8]
