"""Where a placeholder is required, nothing is sent without it: in the body and in signatures too."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
from multidict import CIMultiDict

from corral.gateway.box import MAX_BUFFERED, Box
from corral.gateway.buffered import Buffered, TooManyBytesError
from corral.gateway.inject import Bound, Injected, Rejected, inject
from corral.gateway.outbound import Call, Head, StopError
from corral.gateway.rewrite import WHOLE
from corral.model.binding import Absent, Binding, Mode, Place
from corral.model.egress import HostRule
from corral.model.secrets import Secret
from corral.policy.bindings import complete_binding
from corral.policy.egress import Allowed, Reason

HOST = "api.example"
ALLOWED = Allowed(HOST, 443, HostRule(HOST))
VALUE = "sk_live_0123456789abcdefghij"


def of(value: str, binding: Binding, name: str = "key") -> Bound:
    return Bound.of(name, Secret(value), complete_binding(name, Secret(value), binding, None), Secret("seed"))


BODY = of(VALUE, Binding((HOST,), places=(Place.HEADER, Place.BODY), absent=Absent.REJECT))
STAND = BODY.pairs[0][0]
AWS = of("AKIA0123456789ABCDEF:" + "k" * 40, Binding((HOST,), mode=Mode.AWS, absent=Absent.REJECT))


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def call(bound: Bound, fields: list[tuple[str, str]]) -> Call:
    injected = inject((bound,), "POST", "/x", fields, upgrade=False)
    assert isinstance(injected, Injected)
    return Call(ALLOWED, True, injected, (bound,), None, "/x", False)


async def sent(fields: list[tuple[str, str]], body: AsyncIterator[bytes] | None) -> bytes:
    """The body that goes to the server."""
    made = call(BODY, fields)
    buffered = Buffered(cast("Box", SimpleNamespace(buffered=0)))
    ready = await made.ready(Head("POST", "/x", ()), body, CIMultiDict(fields), buffered)
    if ready.data is None or isinstance(ready.data, bytes):
        return ready.data or b""
    return b"".join([piece async for piece in ready.data])


LONG = b"y" * (2 * WHOLE)


@pytest.mark.parametrize("fields", [[], [("Content-Length", "100")]])
async def test_a_body_with_the_placeholder_is_sent(fields: list[tuple[str, str]]) -> None:
    """G-27, G-35: wherever it is cut, and whatever comes after it."""
    half = len(STAND) // 2
    stand = STAND.encode()
    body = pieces(b"x=", stand[:half], stand[half:], b"&y=1")
    assert await sent(fields, body) == b"x=" + VALUE.encode() + b"&y=1"
    assert await sent(fields, pieces(stand, LONG, b"z")) == VALUE.encode() + LONG + b"z"
    assert await sent(fields, pieces(stand)) == VALUE.encode()


async def test_what_is_gathered_until_it_is_found_counts_for_the_sandbox() -> None:
    """G-340."""
    full = Buffered(cast("Box", SimpleNamespace(buffered=MAX_BUFFERED)))
    with pytest.raises(TooManyBytesError):
        await call(BODY, []).ready(Head("POST", "/x", ()), pieces(STAND.encode()), CIMultiDict(), full)


@pytest.mark.parametrize("fields", [[], [("Content-Length", "100")]])
@pytest.mark.parametrize(
    "parts", [None, (), (b"x=my-own-key",), (STAND.encode()[:-1],), (LONG, STAND.encode())]
)
async def test_a_body_without_it_is_not(
    fields: list[tuple[str, str]], parts: tuple[bytes, ...] | None
) -> None:
    """G-27: nor with it so late that the rest would have been sent before."""
    with pytest.raises(StopError) as stopped:
        await sent(fields, None if parts is None else pieces(*parts))
    assert stopped.value.refusal.reason is Reason.NO_PLACEHOLDER


async def test_the_head_may_hold_it_instead() -> None:
    """G-27."""
    assert await sent([("Authorization", f"Bearer {STAND}")], pieces(b"x")) == b"x"


@pytest.mark.parametrize("authorization", ["", "Bearer my-own", "AWS4-HMAC-SHA256 Credential=AKIAOWN/x"])
def test_a_request_that_is_not_signed_by_the_placeholder_is_refused(authorization: str) -> None:
    """G-27, G-149."""
    fields = [("Authorization", authorization)] if authorization else []
    assert isinstance(inject((AWS,), "GET", "/", fields, upgrade=False), Rejected)
    good = [("authorization", f"AWS4-HMAC-SHA256 Credential={AWS.pairs[0][0]}/20260101/eu/s3/aws4_request")]
    assert isinstance(inject((AWS,), "GET", "/", good, upgrade=False), Injected)
    # The first one is what the request is signed again by.
    assert isinstance(inject((AWS,), "GET", "/", [("Authorization", "x"), *good], upgrade=False), Rejected)


def test_none_is_wanted_where_it_may_be_absent() -> None:
    """G-27."""
    passing = of("AKIA0123456789ABCDEF:" + "k" * 40, Binding((HOST,), mode=Mode.AWS))
    assert isinstance(inject((passing,), "GET", "/", [], upgrade=False), Injected)
