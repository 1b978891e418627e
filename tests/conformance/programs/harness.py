"""Runs the cases of a module in one process and prints what became of each as JSON: null, or what went wrong."""

import asyncio
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def raises(kind: type[BaseException], work: Callable[[], Any], text: str = "") -> None:
    """Fail unless `work` raises `kind`, with `text` in its message."""
    try:
        work()
    except kind as error:
        said = str(error)
        assert any(part in said for part in text.split("|")), f"{said} does not say {text!r}"
        return
    raise AssertionError(f"nothing was raised, not {kind.__name__}")


async def araises(kind: type[BaseException], work: Any, text: str = "") -> None:
    """The same for something to await."""
    try:
        await work
    except kind as error:
        said = str(error)
        assert any(part in said for part in text.split("|")), f"{said} does not say {text!r}"
        return
    raise AssertionError(f"nothing was raised, not {kind.__name__}")


def main() -> None:
    """`harness.py MODULE`."""
    module = importlib.import_module(sys.argv[1])
    cases = {name: case for name, case in vars(module).items() if name.startswith("case_")}
    outcome: dict[str, str | None] = {}

    async def run() -> None:
        for name, case in cases.items():
            try:
                result = case()
                if inspect.isawaitable(result):
                    await result
                outcome[name] = None
            except BaseException:
                outcome[name] = traceback.format_exc()[-3000:]

    asyncio.run(run())
    print("OUTCOME " + json.dumps(outcome), flush=True)
    os._exit(0)  # the HTTP client of new SDKs aborts once in fifty times while Python ends, when all is done


if __name__ == "__main__":
    main()
