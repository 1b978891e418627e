"""The program by which sandboxes ask for more, written where they can be given it."""

from importlib import resources
from pathlib import Path

from corral.host.statefile import write_state


def write_client(target: Path) -> Path:
    """Write it, atomically; sandboxes that run keep the one that they have."""
    text = resources.files("corral.daemon").joinpath("corral-ask.sh").read_bytes()
    write_state(target, text, 0o755, lasting=False)
    return target
