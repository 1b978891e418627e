"""What is particular to Gemini's API: two spellings of every field, answers as a JSON array that grows, its counts.

Google's servers read `maxOutputTokens` and `max_output_tokens` as one. A request that has both would be read by one
parser in one way and by another in the other, so it is refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corral.errors import InvalidInput, TooLarge

_CAPITAL = re.compile(r"(?<!^)([A-Z])")
_IN_STRUCTURE = re.compile(rb'[{}"]')
_IN_STRING = re.compile(rb'["\\]')


def pick(value: Mapping[str, Any], name: str) -> Any:
    """The field `name` (in lowerCamel) in whichever spelling it stands; None if it is not there. Raises InvalidInput
    where it is there twice.
    """
    snake = _CAPITAL.sub(r"_\1", name).lower()
    if snake != name and name in value and snake in value:
        raise InvalidInput(f"`{name}` and `{snake}` are the same field", "send one of them")
    return value.get(name, value.get(snake))


def spelled(value: Mapping[str, Any], name: str) -> str:
    """The spelling in which a field stands, or would."""
    snake = _CAPITAL.sub(r"_\1", name).lower()
    return snake if snake in value else name


@dataclass(frozen=True, slots=True)
class GeminiUsage:
    """Counts of `usageMetadata`: input without what came from a cache; thoughts are output."""

    input: int
    output: int
    cache_read: int


def usage(metadata: Mapping[str, Any]) -> GeminiUsage:
    """The counts in a `usageMetadata` (G-195)."""
    prompt = _count(metadata, "promptTokenCount")
    cached = min(_count(metadata, "cachedContentTokenCount"), prompt)
    output = _count(metadata, "candidatesTokenCount") + _count(metadata, "thoughtsTokenCount")
    tools = _count(metadata, "toolUsePromptTokenCount")
    # Where the parts are less than the whole, the rest is of a kind that has no field yet: dear is safe.
    output = max(output, _count(metadata, "totalTokenCount") - prompt - tools)
    return GeminiUsage(prompt - cached + tools, output, cached)


def searches(answer: Mapping[str, Any]) -> int:
    """Searches that an answer says it made."""
    made = 0
    for candidate in mappings(answer.get("candidates")):
        queries = mapping(pick(candidate, "groundingMetadata")).get("webSearchQueries")
        made += len(queries) if isinstance(queries, list) else 0
    return made


def text_size(answer: Mapping[str, Any]) -> int:
    """UTF-8 bytes of what the model wrote in one answer or one piece of it."""
    return sum(
        _strings(part) for candidate in mappings(answer.get("candidates"))
        for part in mappings(mapping(candidate.get("content")).get("parts"))
    )  # fmt: skip


def _strings(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, Mapping):
        return sum(
            _strings(item) for name, item in value.items() if name not in ("thoughtSignature", "mimeType")
        )
    return sum(map(_strings, value)) if isinstance(value, list) else 0


def _count(metadata: Mapping[str, Any], name: str) -> int:
    value = metadata.get(name)
    plain = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**12
    return value if plain and isinstance(value, int) else 0


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """The objects in a list."""
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else iter(())


class Objects:
    """The JSON objects of a body that is one, or an array of them, as they are completed; cut anywhere.

    What stands between objects is skipped. Raises TooLarge for an object over `limit` bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._at = 0
        self._depth = 0
        self._quoted = False

    def feed(self, data: bytes) -> list[bytes]:
        """The objects that `data` completes."""
        self._buffer += data
        found: list[bytes] = []
        while self._string() if self._quoted else self._structure(found):
            pass
        if self._depth == 0 and not self._quoted:
            self._cut(len(self._buffer))
        if len(self._buffer) > self._limit:
            raise TooLarge("a part of the answer is too large", f"send at most {self._limit} bytes")
        return found

    def rest(self) -> bytes:
        """What is left of an object that was not completed; forgotten afterwards."""
        left = bytes(self._buffer)
        self._cut(len(left))
        return left

    def _string(self) -> bool:
        """Go on to the end of a string; False once there is no more to look at."""
        sign = _IN_STRING.search(self._buffer, self._at)
        if sign is None:
            self._at = len(self._buffer)
            return False
        if sign[0] == b'"':
            self._quoted = False
        elif sign.end() == len(self._buffer):
            # What the backslash stands before is still to come.
            self._at = sign.start()
            return False
        self._at = sign.end() + (sign[0] != b'"')
        return True

    def _structure(self, found: list[bytes]) -> bool:
        """Go on to the next brace or string; False once there is no more to look at."""
        sign = _IN_STRUCTURE.search(self._buffer, self._at)
        if sign is None:
            self._at = len(self._buffer)
            return False
        self._at = sign.end()
        if sign[0] == b'"':
            self._quoted = True
        elif sign[0] == b"{":
            if self._depth == 0:
                self._cut(sign.start())
                self._at = 1
            self._depth += 1
        elif self._depth:
            self._depth -= 1
            if self._depth == 0:
                found.append(bytes(self._buffer[: self._at]))
                self._cut(self._at)
        return True

    def _cut(self, size: int) -> None:
        del self._buffer[:size]
        self._at = 0
