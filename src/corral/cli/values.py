"""Values as people write them on a command line."""

import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from corral.errors import InvalidInput
from corral.policy.money import parse_dollars

F = TypeVar("F", bound=Callable[..., Any])

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Size(click.ParamType[int]):
    """Bytes: `512M`, `4G`, `1.5g`, `1048576`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a size; write for example 512M or 4G", param, ctx)
        return int(float(found[1]) * _UNITS[found[2].lower()])


class Duration(click.ParamType[float]):
    """Seconds: `90`, `45s`, `30m`, `2h`, `1d`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a time; write for example 90, 30m or 2h", param, ctx)
        return float(found[1]) * _SECONDS[found[2].lower()]


class Dollars(click.ParamType[int]):
    """US dollars, in millionths: `25`, `0.50`."""

    name = "usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Millionths of a US dollar."""
        return value if isinstance(value, int) else parse_dollars(str(value))


def variables(items: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE`, or `KEY` for the caller's own value. Raises InvalidInput where the caller has none."""
    found = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            if key not in os.environ:
                raise InvalidInput(f"the variable {key[:80]!r} is not set here", "give KEY=VALUE")
            value = os.environ[key]
        found[key] = value
    return found


def pairs(items: Iterable[str], what: str) -> dict[str, str]:
    """`LEFT=RIGHT`, both given. Raises InvalidInput."""
    found = {}
    for item in items:
        left, _, right = item.partition("=")
        if not left or not right:
            raise InvalidInput(f"{item[:80]!r} is not {what}", "write LEFT=RIGHT")
        found[left] = right
    return found


def labels(items: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE`, or `KEY` for an empty value."""
    return {key: value for key, _, value in (item.partition("=") for item in items)}


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def force_option(command: F) -> F:
    """`-f`: what a script's cleanup wants, which cannot know whether there is anything to clean."""
    return click.option("-f", "--force", is_flag=True, help="No error for one that does not exist.")(command)


def env_option(command: F) -> F:
    """`-e KEY=VALUE`, as often as needed."""
    return click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="KEY[=VALUE]",
        help="Environment variable; without a value: your own.",
    )(command)


def read_private(path: Path) -> str:
    """The text of a file that is no link, and that nobody but its owner can read (G-40). Raises InvalidInput."""
    from corral.model.secrets import MAX_SECRET

    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}; links are not followed", "give the file itself"
        ) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{path} is not a regular file", "give a file that holds the value")
        if found.st_mode & 0o077:
            raise InvalidInput(
                f"{path} can be read or changed by others",
                f"chmod 600 {path}, and replace the key if others could have read it",
            )
        return os.read(fd, MAX_SECRET + 1).decode().strip()
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} holds no text", "give a file that holds the key alone") from None
    finally:
        os.close(fd)
