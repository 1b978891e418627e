"""Messages of the gateway's link as frames: a length of four bytes and a JSON object `{"type": …, fields}`. Without I/O.

The gateway reads hostile bytes all day, so the engine takes nothing from it on trust: sizes are bounded,
every field is checked for its type, and what does not fit ends the link.

Each model call is three messages one way and two the other, so how a class is read and written is worked out once.
"""

import json
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any

from corral.errors import InvalidInput, TooLarge
from corral.model.secrets import Secret
from corral.wire.link import Message

Part = Callable[[Any], Any]

_KINDS: dict[str, type] = {cls.__name__: cls for cls in typing.get_args(Message)}
_UNIONS = (UnionType, typing.Union)
_JSON = json.JSONEncoder(separators=(",", ":"))


def encode(message: Message) -> bytes:
    """A message as a frame."""
    cls = type(message)
    data = _JSON.encode({"type": cls.__name__, **_plain(cls, message)}).encode()
    return len(data).to_bytes(4, "big") + data


def decode(data: bytes) -> Message:
    """The message in a frame's body. Raises InvalidInput for anything that is not exactly one."""
    try:
        body = json.loads(data)
        cls = _KINDS[body.pop("type")]
        message: Message = _build(cls, body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"a message on the gateway's link is malformed ({type(error).__name__})",
            "engine and gateway must be of one version: restart the daemon",
        ) from None
    return message


class Deframer:
    """Frame bodies out of a stream cut anywhere. Raises TooLarge for a frame over `limit`."""

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that `data` completes."""
        self._buffer += data
        found = []
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > self._limit:
                raise TooLarge("a message on the gateway's link is too large", "restart the daemon")
            if len(self._buffer) < 4 + size:
                break
            found.append(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
        return found


def _plain(cls: type, value: Any) -> dict[str, Any]:
    """A dataclass as JSON can hold it."""
    return {
        name: getattr(value, name) if part is None else part(getattr(value, name))
        for name, part in _parts(cls)
    }


@cache
def _parts(cls: type) -> tuple[tuple[str, Part | None], ...]:
    """The fields of a dataclass, each with what makes its value plain; None where it is that already."""
    hints = typing.get_type_hints(cls)
    return tuple((field.name, _part(hints[field.name])) for field in fields(cls))


def _part(hint: Any) -> Part | None:
    """What makes a value of a type plain."""
    hint = getattr(hint, "__supertype__", hint)
    if typing.get_origin(hint) in _UNIONS:
        given = _part(typing.get_args(hint)[0])
        return None if given is None else lambda value: None if value is None else given(value)
    if typing.get_origin(hint) is tuple:
        item = _part(typing.get_args(hint)[0])
        return list if item is None else lambda value: [item(one) for one in value]
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: _plain(hint, value)
    if hint is datetime:
        return datetime.isoformat
    if hint is Secret:
        return Secret.reveal
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: value.value
    if hint in (str, int, bool):
        return None
    raise TypeError(f"messages hold no {hint}")


def _build(cls: type, body: Any) -> Any:
    """An instance of a dataclass from its plain form; missing, unknown and ill-typed fields raise."""
    builders = _builders(cls)
    if set(body) != set(builders):
        raise ValueError("the fields are not those of the message")
    return cls(**{name: builders[name](value) for name, value in body.items()})


@cache
def _builders(cls: type) -> dict[str, Part]:
    hints = typing.get_type_hints(cls)
    return {f.name: _builder(hints[f.name]) for f in fields(cls)}


def _builder(hint: Any) -> Part:
    """A function from the plain form of a type to its value."""
    hint = getattr(hint, "__supertype__", hint)
    if typing.get_origin(hint) in _UNIONS:
        given = _builder(typing.get_args(hint)[0])
        return lambda value: None if value is None else given(value)
    if typing.get_origin(hint) is tuple:
        item = _builder(typing.get_args(hint)[0])
        return lambda value: tuple(item(part) for part in _exactly(list, value))
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: _build(hint, _exactly(dict, value))
    if hint is datetime:
        return _aware
    if hint is Secret:
        return lambda value: Secret(_exactly(str, value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: hint(value)
    if hint in (str, int, bool):
        return lambda value: _exactly(hint, value)
    raise TypeError(f"messages hold no {hint}")


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a value is not of type {kind.__name__}")
    return value


def _aware(value: Any) -> datetime:
    moment = datetime.fromisoformat(_exactly(str, value))
    if moment.tzinfo is None:
        raise ValueError("a time has no zone")
    return moment
