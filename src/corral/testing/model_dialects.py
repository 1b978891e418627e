"""What the three model APIs have in common: a request is read into a conversation, a reply written as events."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from corral.model.usage import Tokens
from corral.testing.agent_brain import Conversation, Reply

Json = dict[str, Any]

_PIECE = 24
"""Characters of one streamed delta: small enough that texts and arguments come in several."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. `name` is empty where the API names none; `data` of None is the end mark `[DONE]`."""

    name: str
    data: Json | None

    def encode(self) -> bytes:
        """The event as bytes on the wire."""
        body = "[DONE]" if self.data is None else json.dumps(self.data, separators=(",", ":"))
        head = f"event: {self.name}\n" if self.name else ""
        return f"{head}data: {body}\n\n".encode()


@dataclass(frozen=True, slots=True)
class Call:
    """All that an answer is made of. `id` is unique in the server's run; `created` in seconds since 1970."""

    id: str
    created: int
    conversation: Conversation
    reply: Reply
    tokens: Tokens

    @property
    def tool_call_id(self) -> str:
        """Unique within the conversation."""
        return f"{self.id}{self.reply.number:04d}"


class Dialect(Protocol):
    """One model API. Reading raises ValueError, KeyError or TypeError on a body that is not a request of this API."""

    name: str
    cache_writes: bool

    def read(self, body: Mapping[str, Any], size: int) -> Conversation:
        """The conversation in a request's JSON body of `size` bytes."""

    def events(self, call: Call) -> Iterator[Event]:
        """The answer as a stream, in the order of the API."""

    def body(self, call: Call) -> Json:
        """The answer as one JSON object."""

    def error(self, status: int, message: str) -> Json:
        """An error's body."""


def pieces(text: str) -> Iterator[str]:
    """`text` cut as a stream cuts it."""
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def objects(value: object) -> list[Mapping[str, Any]]:
    """The JSON objects of a list; nothing where `value` is none."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
