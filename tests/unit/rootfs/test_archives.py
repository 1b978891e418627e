"""Uploaded contexts: what is old or half made goes, and nothing else."""

import os
import time
from pathlib import Path
from typing import cast

from corral.rootfs.archives import KEPT_SECONDS, ArchiveStore
from corral.rootfs.store import RootStore


async def test_what_is_old_goes_and_what_a_daemon_that_was_killed_has_left(tmp_path: Path) -> None:
    root = tmp_path / "contexts"
    tenant = "0" * 32
    names = (f"{tenant}/old", f"{tenant}/kept", f"{tenant}/new-1", "plan-1")
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "plan").touch()
    past = time.time() - KEPT_SECONDS - 60
    for name in (f"{tenant}/old", tenant):
        os.utime(root / name, (past, past))
    await ArchiveStore(cast(RootStore, None), tmp_path).tidy()
    assert [name for name in names if (root / name).exists()] == [f"{tenant}/kept"]
