"""A data directory that cannot be written: said, with what to do, and nothing is made or lost meanwhile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.faults.machine import MIB, disk, machine

from corral.errors import HostError

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_a_daemon_does_not_start_on_a_read_only_disk(tmp_path: Path) -> None:
    with disk(tmp_path, 64 * MIB) as data:
        subprocess.run(["mount", "-o", "remount,ro", data], check=True)
        daemon = Daemon(data)
        command = [sys.executable, "-m", "corral.daemon.main", "--detach"]
        refused = subprocess.run(
            command, env=daemon.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert refused.returncode == HostError.exit_code, refused.stderr
        assert f"cannot write to {data}" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert os.listdir(data) == ["lost+found"]  # noqa: PTH208


def test_a_disk_that_fails_is_told_and_what_was_there_comes_back(tmp_path: Path) -> None:
    """Every write fails from one moment on, and every read of what is not in memory."""
    with machine(tmp_path) as host:
        with host.daemon.client() as client:
            client.put_secret("kept", "value-of-a-secret", "openai")
            host.fail_disk()
            with pytest.raises(HostError) as refused:
                client.put_secret("lost", "value-of-a-secret", "openai")
            assert "dmesg" in refused.value.hint
            assert client.health().version  # it goes on to answer
        host.cut()
        host.daemon.start()
        with host.daemon.client() as client:
            assert [secret.name for secret in client.list_secrets()] == ["kept"]
