"""Requests to AWS that are signed again, or refused: whatever a sandbox writes where a signature is wanted."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from corral.errors import CorralError, Forbidden
from corral.gateway import aws
from corral.gateway.box import MAX_BUFFERED, Box
from corral.gateway.buffered import Buffered, TooManyBytesError
from corral.gateway.inject import Bound
from corral.gateway.rewrite import Outgoing
from corral.model.binding import Binding, Mode
from corral.model.secrets import Secret
from corral.policy.bindings import complete_binding
from corral.wire import sigv4

REAL = "AKIAREALREALREALREAL", "real/Secret+Key0123456789012345678901234"
HOST = "s3.eu-west-1.amazonaws.com"
VALUE = Secret(":".join(REAL))
BOUND = Bound.of(
    "aws", VALUE, complete_binding("aws", VALUE, Binding((HOST,), mode=Mode.AWS), None), Secret("seed")
)
FAKE = BOUND.pairs[0][0]
SCOPE = f"{FAKE}/20261130/eu-west-1/s3/aws4_request"
AUTHORIZATION = f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=host;x-amz-date, Signature={'0' * 64}"

words = st.sampled_from(
    [
        "AWS4-HMAC-SHA256 ", f"Credential={SCOPE}", f"Credential={FAKE}/x/y/z/aws4_request", "SignedHeaders=host;x-amz-date",
        "SignedHeaders=host;host", "SignedHeaders=;", "Signature=" + "0" * 64, "Signature=zz", ", ", ",", FAKE, "\u00e9", "=", "/",
    ]
)  # fmt: skip
authorizations = st.lists(words, max_size=9).map("".join) | st.just(
    f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=host;x-amz-date, Signature={'0' * 64}"
)
targets = st.sampled_from(
    ["/", "/a%20b?x=1&x=0", "/?X-Amz-Signature=1", f"/?X-Amz-Credential={FAKE}", "/%zz?%", "/?a&=&&b=%C3"]
) | st.text("/?&=%a1+~", max_size=20).map("/".__add__)
hashes = st.sampled_from(
    ["", "UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "x", hashlib.sha256(b"body").hexdigest()]
)
names = st.sampled_from(["X-Amz-Date", "X-Amz-Security-Token", "Host", "X-A"])
others = st.lists(st.tuples(names, st.text("ab 20261130TZ", max_size=16)), max_size=4)


def box(held: int = 0) -> Box:
    return cast(Box, SimpleNamespace(buffered=held))


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def made(
    authorization: str, target: str, declared: str, fields: list[tuple[str, str]], size: int
) -> CIMultiDict[str]:
    """The fields as they are sent."""
    headers = CIMultiDict([("Authorization", authorization), *fields])
    if declared:
        headers[sigv4.CONTENT_HASH] = declared
    one = aws.signer([BOUND], target, headers)
    if one is not None:
        with Buffered(box()) as buffered:
            data = await aws.sign(one, "PUT", target, HOST, headers, pieces(b"body", size), buffered)
        assert data == b"body"
    return headers


def outcome(*args: object) -> list[tuple[str, str]] | type[CorralError]:
    try:
        return list(asyncio.run(made(*args)).items())  # type: ignore[arg-type]
    except CorralError as error:
        return type(error)


@given(authorizations, targets, hashes, others, st.integers(1, 4))
def test_a_request_is_signed_left_or_refused(
    authorization: str, target: str, declared: str, fields: list[tuple[str, str]], size: int
) -> None:
    """G-149 to G-155: the same however its body is cut; the key itself is in none of it, and a placeholder in no signed one."""
    found = outcome(authorization, target, declared, fields, size)
    assert found == outcome(authorization, target, declared, fields, 4)
    if isinstance(found, type):
        assert issubclass(found, Forbidden)
        return
    assert not any(REAL[1] in value for _, value in found)
    signed = [value for name, value in found if name == "Authorization"]
    if FAKE in f"{authorization} {target}":
        assert len(signed) == 1
        assert sigv4.parse(signed[0]).key_id == REAL[0]
        assert not any(FAKE in value for _, value in found)
    else:
        assert signed == [authorization]


def test_one_that_is_in_order_is_signed() -> None:
    fields = [("X-Amz-Date", "20261130T101112Z"), ("Host", HOST)]
    found = outcome(
        f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=host;x-amz-date, Signature={'0' * 64}",
        "/",
        "",
        fields,
        1,
    )
    assert isinstance(found, list)
    assert REAL[0] in dict(found)["Authorization"]


async def gathered(buffered: Buffered, *, signed: bool) -> None:
    data = pieces(b"x" * 100, 7)
    if signed:
        fields = [("X-Amz-Date", "20261130T101112Z"), ("Host", HOST), ("Authorization", AUTHORIZATION)]
        await aws.sign(BOUND, "PUT", "/", HOST, CIMultiDict(fields), data, buffered)
    else:
        outgoing = Outgoing(None, (("ph_stand", "value"),), "", "text/plain")
        await outgoing.framed(data, CIMultiDict({"Content-Length": "100"}), buffered)


@pytest.mark.parametrize("signed", [True, False])
def test_what_is_gathered_counts_for_the_sandbox(signed: bool) -> None:
    """G-340: while it is held, and not more than it may hold."""

    async def run(held: int) -> None:
        of = box(held)
        try:
            with Buffered(of) as buffered:
                await gathered(buffered, signed=signed)
                assert of.buffered == held + 100
        finally:
            assert of.buffered == held

    asyncio.run(run(5))
    with pytest.raises(TooManyBytesError):
        asyncio.run(run(MAX_BUFFERED - 99))
