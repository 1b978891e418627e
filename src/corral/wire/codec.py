"""Model values to JSON values and back, driven by the types of the dataclasses' fields.

JSON objects hold exactly the fields of the class: a field that the class does not know was written by a
newer version, and dropping it could drop a limit or a rule, so it is refused. A field with a default may be
missing: an older version wrote the object. Tuples become arrays, enums their values, times ISO 8601 with
their offset. A Secret is written only where that is asked for: into what is sealed.
"""

import dataclasses
import types
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from corral.errors import InternalError
from corral.model.secrets import Secret

T = TypeVar("T")
Decoder = Callable[[Any], Any]


class MismatchError(Exception):
    """A JSON value is not of the type that is read. Its text says where."""


def encode(value: object, *, opened: bool = False) -> Any:
    """`value`, a dataclass of the model or a part of one, as a JSON value; `opened`: with the secrets in it."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Secret) and opened:
        return value.reveal()
    if isinstance(value, tuple | list):
        return [encode(item, opened=opened) for item in value]
    if isinstance(value, dict):
        return {key: encode(item, opened=opened) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(getattr(value, field.name), opened=opened)
            for field in dataclasses.fields(value)
        }
    raise InternalError(f"a {type(value).__name__} cannot be stored as JSON")


def decode(cls: type[T], data: object) -> T:
    """The `cls` that `encode` made `data` from. Raises MismatchError for unknown, missing or wrongly typed
    fields, and nothing else, whatever `data` is.
    """
    result = _decoder_of(cls)(data)
    if not isinstance(result, cls):
        raise InternalError(f"decoding {cls.__name__} gave {type(result).__name__}")
    return result


_decoders: dict[Any, Decoder] = {}


def _decoder_of(kind: Any) -> Decoder:
    if kind not in _decoders:
        _decoders[kind] = _decoder(kind)
    return _decoders[kind]


def _decoder(kind: Any) -> Decoder:
    """A function that turns a JSON value into a `kind`."""
    if isinstance(kind, NewType):
        return _decoder(kind.__supertype__)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _optional(kind)
    if origin is tuple:
        return _sequence(kind)
    if origin is dict:
        return _mapping(kind)
    if isinstance(kind, type):
        return _scalar_or_object(kind)
    raise InternalError(f"no decoder for {kind!r}")


def _scalar_or_object(kind: type) -> Decoder:
    if issubclass(kind, Enum):
        return _enum(kind)
    if dataclasses.is_dataclass(kind):
        return _object(kind)
    if kind is datetime:
        return _time
    if kind is Secret:
        text = _exact(str)
        return lambda value: Secret(text(value))
    if kind is float:
        return _number
    if kind in (str, int, bool):
        return _exact(kind)
    raise InternalError(f"no decoder for {kind!r}")


def _exact(kind: type) -> Decoder:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise MismatchError(f"expected {kind.__name__}, found {type(value).__name__}")
        return value

    return read


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise MismatchError(f"expected a number, found {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise MismatchError("a number is too large") from None


def _time(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise MismatchError("a time is malformed") from None


def _enum(kind: type[Enum]) -> Decoder:
    def read(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise MismatchError(f"unknown {kind.__name__} {str(value)[:80]!r}") from None

    return read


def _optional(kind: Any) -> Decoder:
    inner = [arm for arm in get_args(kind) if arm is not type(None)]
    if len(inner) != 1:
        raise InternalError(f"no decoder for {kind!r}")
    read = _decoder(inner[0])
    return lambda value: None if value is None else read(value)


def _sequence(kind: Any) -> Decoder:
    item, dots = get_args(kind)
    if dots is not Ellipsis:
        raise InternalError(f"no decoder for {kind!r}")
    read_item = _decoder(item)

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise MismatchError(f"expected an array, found {type(value).__name__}")
        return tuple(read_item(one) for one in value)

    return read


def _mapping(kind: Any) -> Decoder:
    _, item = get_args(kind)
    read_item = _decoder(item)

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise MismatchError(f"expected an object, found {type(value).__name__}")
        return {str(key): read_item(one) for key, one in value.items()}

    return read


def _object(kind: type) -> Decoder:
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    readers = {field.name: _decoder(hints[field.name]) for field in fields}
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise MismatchError(f"expected a {kind.__name__}, found {type(value).__name__}")
        if unknown := value.keys() - readers.keys():
            raise MismatchError(f"{kind.__name__} has the unknown field {min(unknown)[:80]!r}")
        if missing := required - value.keys():
            raise MismatchError(f"{kind.__name__} lacks the field {min(missing)!r}")
        return kind(**{name: readers[name](item) for name, item in value.items()})

    return read
