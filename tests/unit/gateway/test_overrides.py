"""Bodies that ask a server to take another method."""

from collections.abc import AsyncIterator

import pytest

from corral.errors import Forbidden
from corral.gateway.overrides import Overrides

FORM, PARTS, JSON = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "application/json"


async def passed(kind: str, body: bytes, size: int) -> bytes:
    """What of a body passes, which comes in chunks of a size."""
    found = Overrides.of("POST", kind, "")
    assert found is not None

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    sent = b""
    try:
        async for chunk in found.stream(chunks()):
            sent += chunk
    except Forbidden:
        assert found.found
        raise
    assert not found.found
    return sent


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, b"_method=DELETE"),
        (FORM, b"a=1&_METHOD=put&b=2"),
        (FORM, b"x=" + b"y" * 500 + b"&%5fm%65thod=DELETE"),
        (FORM + "; charset=utf-8", b"a=1;_method=x"),
        (PARTS, b'--b\r\nContent-Disposition: form-data; name="_method"\r\n\r\nDELETE\r\n--b--'),
        (PARTS, b"--b\r\nContent-Disposition: form-data; name=_method\r\n\r\nDELETE\r\n--b--"),
        (PARTS, b"--b\r\nContent-Disposition: form-data; name*=UTF-8''%5fmethod\r\n\r\nDELETE\r\n--b--"),
        (JSON, b'{"a": 1, "_method" : "DELETE"}'),
        ("application/vnd.api+json", b'{"\\u005fmethod":"DELETE"}'),
    ],
)
async def test_a_body_that_names_another_method_does_not_pass(kind: str, body: bytes, size: int) -> None:
    """G-60: in whatever pieces it comes."""
    with pytest.raises(Forbidden):
        await passed(kind, body, size)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, b"the_method=1&_methods=2&a=_method=3"),
        (PARTS, b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n_method=DELETE\r\n--b--'),
        (JSON, b'{"text": "\\"_method\\": 1", "x_method": "_method"}'),
    ],
)
async def test_what_only_speaks_of_it_passes(kind: str, body: bytes) -> None:
    assert await passed(kind, body, 5) == body


def test_only_what_a_server_reads_it_from_is_looked_through() -> None:
    assert Overrides.of("GET", FORM, "gzip") is None
    assert Overrides.of("POST", "application/octet-stream", "gzip") is None
    with pytest.raises(Forbidden):
        Overrides.of("POST", FORM, "gzip")
