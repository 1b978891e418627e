"""Run with E2B's own SDK, in an environment of its own: `e2b_program.py WHAT COUNT` prints samples as JSON.

Milliseconds, or MiB per second.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from e2b import AsyncSandbox, Sandbox  # type: ignore[import-not-found]

SIZE = 256


def samples(count: int, action: Callable[[], Any]) -> list[float]:
    """Times of an action, after one that is not counted."""
    action()
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        action()
        found.append((time.perf_counter() - begun) * 1000)
    return found


def life() -> None:
    box = Sandbox.create(timeout=60)
    box.commands.run("true")
    box.kill()


async def clients(count: int) -> float:
    """Milliseconds until so many clients at once have made, used and ended a sandbox."""

    async def one() -> None:
        box = await AsyncSandbox.create(timeout=120, request_timeout=120)
        assert (await box.commands.run("echo here")).stdout == "here\n"
        await box.kill()

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one())
    return (time.perf_counter() - begun) * 1000


def main() -> dict[str, Any]:
    """The samples of `WHAT`."""
    what, count = sys.argv[1], int(sys.argv[2])
    if what == "life":
        return {"life": samples(count, life)}
    if what == "clients":
        return {"clients": [asyncio.run(clients(count))]}
    box = Sandbox.create(timeout=600)
    try:
        if what == "run":
            return {"run": samples(count, lambda: box.commands.run("true"))}
        if what == "file":

            def both() -> None:
                box.files.write("small", "x" * 1024)
                box.files.read("small")

            return {"file": samples(count, both)}
        data = b"x" * (SIZE << 20)
        up = samples(count, lambda: box.files.write("large", data))
        down = samples(count, lambda: box.files.read("large", format="bytes"))
        return {name: [SIZE * 1000 / ms for ms in times] for name, times in (("up", up), ("down", down))}
    finally:
        box.kill()


print(json.dumps(main()), flush=True)
os._exit(0)  # the SDK's HTTP client aborts once in fifty times while Python ends, when all is done
