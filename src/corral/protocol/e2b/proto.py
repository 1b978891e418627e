"""The services' messages in binary form, by Google's library: what clients of the Connect protocol send unless told to
send JSON.

Each message has one description, its model. A field's number is its place there, its type follows from its annotation; the
few that are otherwise stand below. The library reads and writes the bytes and knows how they map to JSON, from which the
models are made: both forms mean the same.
"""

import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MessageOptions,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError, Message

from corral.errors import InvalidInput
from corral.protocol.e2b import filesystem, process
from corral.protocol.e2b.base import Wire

M = TypeVar("M", bound=Wire)
_PACKAGE = "corral.e2b"
_SCALARS = {
    str: FieldDescriptorProto.TYPE_STRING,
    bytes: FieldDescriptorProto.TYPE_BYTES,
    bool: FieldDescriptorProto.TYPE_BOOL,
    int: FieldDescriptorProto.TYPE_UINT32,
}
_OTHER_TYPES: dict[tuple[type[Wire], str], FieldDescriptorProto.Type.ValueType | str] = {
    (process.EndEvent, "exit_code"): FieldDescriptorProto.TYPE_SINT32,
    (process.SendSignalRequest, "signal"): "Signal",
    (filesystem.EntryInfo, "size"): FieldDescriptorProto.TYPE_INT64,
    (filesystem.EntryInfo, "type"): "FileType",
    (filesystem.EntryInfo, "modified_time"): ".google.protobuf.Timestamp",
    (filesystem.FilesystemEvent, "type"): "EventType",
}
_OTHER_NUMBERS: dict[tuple[type[Wire], str], int] = {(process.InputData, "input"): 2}
_ENUMS = {
    "Signal": {"SIGNAL_UNSPECIFIED": 0, "SIGNAL_SIGKILL": 9, "SIGNAL_SIGTERM": 15},
    "FileType": {
        f"FILE_TYPE_{name}": number
        for number, name in enumerate(("UNSPECIFIED", "FILE", "DIRECTORY", "SYMLINK"))
    },
    "EventType": {
        f"EVENT_TYPE_{name}": number
        for number, name in enumerate(("UNSPECIFIED", "CREATE", "WRITE", "REMOVE", "RENAME", "CHMOD"))
    },
}


def encode(message: Wire) -> bytes:
    """A message in binary form."""
    made = ParseDict(message.to_dict(), _classes()[type(message)]())
    return made.SerializeToString()


def decode(model: type[M], raw: bytes) -> M:
    """A message of binary form; fields that are not known are left out.

    Raises InvalidInput for bytes that are none, ValidationError for values that the model refuses.
    """
    made = _classes()[model]()
    try:
        made.ParseFromString(raw)
    except DecodeError:
        raise InvalidInput(
            "the message is not in binary form", "send JSON, or what the schema says"
        ) from None
    value = MessageToDict(made, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return model.model_validate(value)


@cache
def _classes() -> dict[type[Wire], type[Message]]:
    """The library's class of each model."""
    described = FileDescriptorProto(
        name="corral/e2b.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
        message_type=[_message(model) for model in models()],
        enum_type=[_enum(name, values) for name, values in _ENUMS.items()],
    )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(described.SerializeToString())
    return {
        model: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{model.__name__}"))
        for model in models()
    }


def models() -> Iterator[type[Wire]]:
    """All messages of both services."""
    for module in (process, filesystem):
        for item in vars(module).values():
            if isinstance(item, type) and issubclass(item, Wire) and item.__module__ == module.__name__:
                yield item


def _message(model: type[Wire]) -> DescriptorProto:
    made = DescriptorProto(name=model.__name__)
    for place, (name, info) in enumerate(model.model_fields.items(), 1):
        number = _OTHER_NUMBERS.get((model, name), place)
        field = made.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        kind, optional = _plain(info.annotation)
        if typing.get_origin(kind) is dict:
            kind = _add_entry(made, name)
            field.label = FieldDescriptorProto.LABEL_REPEATED
        elif typing.get_origin(kind) is list:
            (kind,) = typing.get_args(kind)
            field.label = FieldDescriptorProto.LABEL_REPEATED
        _set_type(field, _OTHER_TYPES.get((model, name), kind))
        if optional and not field.type_name:
            field.proto3_optional = True
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{name}")
    return made


def _plain(annotation: Any) -> tuple[Any, bool]:
    """A type without what pydantic is told of it, and whether None stands for its absence."""
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return _plain(args[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType) and type(None) in args:
        return _plain(next(item for item in args if item is not type(None)))[0], True
    return annotation, False


def _set_type(field: FieldDescriptorProto, kind: Any) -> None:
    if isinstance(kind, str):
        field.type_name = kind if kind.startswith(".") else f".{_PACKAGE}.{kind}"
        field.type = FieldDescriptorProto.TYPE_ENUM if kind in _ENUMS else FieldDescriptorProto.TYPE_MESSAGE
    elif kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif isinstance(kind, type) and issubclass(kind, Wire):
        _set_type(field, kind.__name__)
    else:
        field.type = kind


def _add_entry(made: DescriptorProto, name: str) -> str:
    """The type of a map's entries, texts by text."""
    entry = made.nested_type.add(
        name=f"{name.title().replace('_', '')}Entry", options=MessageOptions(map_entry=True)
    )
    for number, part in enumerate(("key", "value"), 1):
        entry.field.add(
            name=part,
            number=number,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            type=FieldDescriptorProto.TYPE_STRING,
        )
    return f"{made.name}.{entry.name}"


def _enum(name: str, values: dict[str, int]) -> EnumDescriptorProto:
    told = [EnumValueDescriptorProto(name=value, number=number) for value, number in values.items()]
    return EnumDescriptorProto(name=name, value=told)
