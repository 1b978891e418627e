"""The daemon's log where its disk is full."""

import subprocess
import sys

SCRIPT = """
import logging, types
from corral.daemon.main import log_to
log_to(types.SimpleNamespace(log="/dev/full"), to_terminal=False)
logging.getLogger("test").error("lost")
"""


def test_a_log_that_cannot_be_written_is_nothing_on_standard_error() -> None:
    """Whoever started the daemon may hold that as a pipe and read it no more: the daemon would stand still in a write."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert "Logging error" not in done.stderr
