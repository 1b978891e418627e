"""The programs of this package that handle hostile archives and trees, each run as a process of its own."""

import json
import sys
from dataclasses import asdict
from typing import Any

from corral.errors import HostError, all_errors
from corral.host import process
from corral.rootfs.outcome import REFUSED

TIMEOUT = 3600.0


async def run_program(module: str, request: Any) -> dict[str, Any]:
    """Run `corral.rootfs.MODULE` on a request, a dataclass; its outcome. Raises the error that it refused with."""
    argv = [sys.executable, "-I", "-m", f"corral.rootfs.{module}"]
    done = await process.run(argv, timeout=TIMEOUT, input=json.dumps(asdict(request)).encode())
    if done.exit_code not in (0, REFUSED) or done.timed_out:
        raise HostError(f"an image's files could not be handled: {done.last_line}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if done.exit_code == REFUSED:
        raise all_errors()[answer["code"]](answer["message"], answer["hint"])
    return answer
