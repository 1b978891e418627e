"""The program by which sandboxes ask for more, written where they can be given it."""

from importlib import resources
from pathlib import Path


def write_client(target: Path) -> Path:
    """Write it, atomically; sandboxes that run keep the one that they have."""
    temporary = target.with_suffix(".new")
    temporary.write_bytes(resources.files("corral.daemon").joinpath("corral-ask.sh").read_bytes())
    temporary.chmod(0o755)
    temporary.replace(target)
    return target
