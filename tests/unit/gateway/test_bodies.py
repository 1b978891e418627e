"""Request bodies: decoding within bounds, and JSON that has only one reading."""

import gzip
import json
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput, TooLarge
from corral.gateway.body import MAX_BODY, decode, parse

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
    assert found == b"" or coding == "zstd"  # two bytes can be a whole body of deflate, with nothing in it


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


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_objects_are_read(value: dict[str, object]) -> None:
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


@given(st.binary(max_size=200))
def test_noise_is_no_body(data: bytes) -> None:
    """G-342."""
    try:
        parse(data)
    except InvalidInput:
        return
    json.loads(data)
