"""The two forms in which a client may send messages, and get them back, by the types of content that ask for them."""

import json
from typing import Protocol, TypeVar

from corral.errors import InvalidInput
from corral.protocol.e2b.base import Wire

M = TypeVar("M", bound=Wire)


class Codec(Protocol):
    """A form of messages. `unary` is the type of a body that is one message, `stream` of one that is a row of envelopes."""

    unary: str
    stream: str

    def encode(self, message: Wire) -> bytes:
        """A message's bytes."""

    def decode(self, model: type[M], raw: bytes) -> M:
        """A message; no bytes are one without fields.

        Raises InvalidInput for bytes of another form, ValidationError for values that the model refuses.
        """


class _Json:
    unary = "application/json"
    stream = "application/connect+json"

    def encode(self, message: Wire) -> bytes:
        return message.to_json()

    def decode(self, model: type[M], raw: bytes) -> M:
        try:
            value = json.loads(raw or b"{}")
        except (ValueError, RecursionError):
            raise InvalidInput("the message is not JSON", "send an object") from None
        return model.model_validate(value)


class _Proto:
    unary = "application/proto"
    stream = "application/connect+proto"

    def encode(self, message: Wire) -> bytes:
        from corral.protocol.e2b import proto  # loads a library that clients of the usual form do not need

        return proto.encode(message)

    def decode(self, model: type[M], raw: bytes) -> M:
        from corral.protocol.e2b import proto

        return proto.decode(model, raw)


JSON: Codec = _Json()
PROTO: Codec = _Proto()
BY_UNARY = {codec.unary: codec for codec in (JSON, PROTO)}
BY_STREAM = {codec.stream: codec for codec in (JSON, PROTO)}
