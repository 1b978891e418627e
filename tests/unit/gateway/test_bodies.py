"""Request bodies: decoding within bounds, and JSON that has only one reading."""

import gzip
import json
import random
import time
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from corral.errors import InvalidInput, TooLarge
from corral.gateway.body import INLINE, MAX_BODY, MAX_RATIO, decode, decode_small, most_decoded, parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.binary(max_size=500))
def test_codings(data: bytes) -> None:
    """G-182."""
    assert decode(gzip.compress(data), "gzip") == data
    assert decode(zlib.compress(data), "deflate") == data
    assert decode(zstandard.compress(data), "zstd") == data
    assert decode(data, "identity") == data


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
@given(data=st.binary(max_size=100))
def test_noise_is_refused(coding: str, data: bytes) -> None:
    """G-182, G-342."""
    try:
        found = decode(data, coding)
    except (InvalidInput, TooLarge):
        return
    assert (
        found == b"" or coding != "gzip"
    )  # a body of the others need not hold a checksum, so few bytes can be one
    assert len(found) <= most_decoded(len(data), coding)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_bombs_are_refused(coding: str) -> None:
    """G-182."""
    encoders: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.compress,
    }
    bomb = encoders[coding](bytes(MAX_BODY + 1))
    with pytest.raises(TooLarge):
        decode(bomb, coding)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
def test_what_unpacks_to_far_more_than_was_sent_is_refused(coding: str) -> None:
    """G-182: also below the limit of size; and what conversations make is not."""
    encoders: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.compress,
        "br": lambda data: brotli.compress(data, quality=4),
    }
    lists = b"[" + b"[]," * (1 << 20) + b"[]]"
    assert len(encoders[coding](lists)) * MAX_RATIO < len(lists)
    with pytest.raises(TooLarge):
        decode(encoders[coding](lists), coding)
    chosen = random.Random(1)
    words = [chosen.randbytes(8).hex() for _ in range(300)]
    text = json.dumps([chosen.choices(words, k=400) for _ in range(500)]).encode()
    assert decode(encoders[coding](text), coding) == text


def test_small_is_what_is_small_when_it_is_unpacked() -> None:
    """G-340: what is decoded at once is told by what comes out, not by what came in."""
    assert decode_small(bytes(INLINE), "identity") == bytes(INLINE)
    assert decode_small(bytes(INLINE + 1), "identity") is None
    assert decode_small(gzip.compress(bytes(INLINE)), "gzip") == bytes(INLINE)
    assert decode_small(gzip.compress(bytes(INLINE + 1)), "gzip") is None


@pytest.mark.parametrize("part", [b"[],", b"{},", b"1,", b'{"a":[],"b":7},'])
def test_more_values_than_fit_into_memory_are_refused_unparsed(part: bytes) -> None:
    """G-340."""
    body = b'{"a":[' + part * (3 << 20) + b"0]}"
    began = time.process_time()
    with pytest.raises(InvalidInput, match="too many values"):
        parse(body)
    assert time.process_time() - began < 0.5


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_objects_are_read(value: dict[str, object]) -> None:
    assume(all(name == name.casefold() for name in value))
    text = json.dumps(value)
    parsed = parse(text.encode())
    assert parsed.value == value
    assert parsed.text == text


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"1", b"null", b"{", b"{} {}", b'{"a":1,"a":1}', b'{"a":{"b":1,"b":2}}', b'{"a":1,"\\u0061":2}', b'{"a":NaN}',
        b'{"a":-Infinity}', b'{"a":"\xff"}', b"\xef\xbb\xbf{}", b'{"a":' * 100_000, "{}".encode("utf-16"), b'{"a":1,}', b"{'a':1}",
    ],
)  # fmt: skip
def test_what_is_read_in_two_ways_is_refused(data: bytes) -> None:
    """G-181."""
    with pytest.raises(InvalidInput):
        parse(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"model":"small","Model":"big"}', b'{"Model":"big"}', b'{"max_tokens":1,"MAX_TOKENS":9}', b'{"MAX_TOKENS":9}',
        b'{"x":1,"X":2}', '{"\u017ftream":true}'.encode(), '{"\u212a":1,"k":2}'.encode(), b'{"GenerationConfig":{}}',
    ],
)  # fmt: skip
def test_fields_in_another_case_are_refused(data: bytes) -> None:
    """G-180, G-181: some servers take them for the same, and the last of both."""
    with pytest.raises(InvalidInput):
        parse(data)


def test_case_is_free_where_nothing_is_judged_by_it() -> None:
    """Schemas and arguments have fields of their own, some that differ in case."""
    value = {"X": 1, "metadata": {"Model": "a", "model": "b"}, "serviceTier": "flex", "service_tier": None}
    assert parse(json.dumps(value).encode()).value == value


@given(st.binary(max_size=200))
def test_noise_is_no_body(data: bytes) -> None:
    """G-342."""
    try:
        parse(data)
    except InvalidInput:
        return
    json.loads(data)
