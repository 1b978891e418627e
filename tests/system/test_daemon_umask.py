"""A daemon that is started with another umask than root's usual one, as the systemd unit does."""

import os

import pytest
from tests.conftest import Daemon

pytestmark = pytest.mark.root


@pytest.mark.parametrize("isolation", ["container", "gvisor"])
def test_sandboxes_run_whatever_the_umask_of_the_daemons_start(daemon: Daemon, isolation: str) -> None:
    daemon.stop()
    mask = os.umask(0o077)
    try:
        daemon.start()
    finally:
        os.umask(mask)
    try:
        with daemon.client() as client:
            box = client.create_sandbox(isolation=isolation)
            assert client.exec_command(box.id, ["cat", "/etc/hosts"]).exit_code == 0
            client.remove_sandbox(box.id)
    finally:
        daemon.stop()
        daemon.start()
