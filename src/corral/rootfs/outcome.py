"""How a program that handles hostile archives and trees is asked, and answers: JSON on its standard streams."""

import json
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from corral.errors import CorralError, TooLarge

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REFUSED = 3
"""Exit code of a program whose outcome is an error of `corral.errors`."""

MEMORY = 2 << 30
"""Bytes that such a program may have: an archive names the windows of its compression itself, up to 4 GiB."""

Request = TypeVar("Request")


def answer(request: type[Request], work: "Callable[[Request], DataclassInstance | None]") -> int:
    """Read a `request`, do the `work`, write its outcome; the program's exit code."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        done = work(request(**json.load(sys.stdin)))
        outcome, code = {} if done is None else asdict(done), 0
    except CorralError as error:
        outcome, code = error.to_dict(), REFUSED
    except MemoryError:
        refused = TooLarge(
            f"more than {MEMORY >> 30} GiB of memory would be needed to read it",
            "compress archives with a smaller window, and leave files out",
        )
        outcome, code = refused.to_dict(), REFUSED
    print(json.dumps(outcome))  # noqa: T201 - the outcome
    return code
