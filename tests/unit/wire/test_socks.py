"""SOCKS5, the client's side."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import UpstreamFailed
from corral.wire.socks import Opening

V4, V6 = ip_address("192.0.2.7"), ip_address("2001:db8::7")
ANSWER = b"\x05\x00\x00\x01\x01\x02\x03\x04\x00\x50"


def test_without_a_login() -> None:
    opening = Opening(V4, 443)
    assert opening.hello == b"\x05\x01\x00"
    assert opening.feed(b"\x05\x00") == b"\x05\x01\x00\x01\xc0\x00\x02\x07\x01\xbb"
    assert opening.feed(ANSWER + b"early") == b""
    assert (opening.opened, opening.rest) == (True, b"early")


def test_with_a_login_and_to_ipv6() -> None:
    opening = Opening(V6, 80, "me", "word")
    assert opening.hello == b"\x05\x01\x02"
    assert opening.feed(b"\x05\x02") == b"\x01\x02me\x04word"
    assert opening.feed(b"\x01\x00") == b"\x05\x01\x00\x04" + V6.packed + b"\x00\x50"
    opening.feed(b"\x05\x00\x00\x03\x04name\x00\x50")
    assert (opening.opened, opening.rest) == (True, b"")


@pytest.mark.parametrize(
    "answers",
    [
        [b"\x05\xff"],
        [b"\x05\x00"],
        [b"\x04\x02"],
        [b"HTTP/1.1 400 Bad\r\n\r\n"],
        [b"\x05\x02", b"\x01\x01"],
        [b"\x05\x02", b"\x01\x00", b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"],
        [b"\x05\x02", b"\x01\x00", b"\x05\x00\x00\x02\x00\x00\x00\x00\x00\x00"],
        [b"\x05\x02", b"\x01\x00", b"\x04\x00\x00\x01\x00\x00\x00\x00\x00\x00"],
    ],
)
def test_what_is_no_yes_is_a_failure(answers: list[bytes]) -> None:
    opening = Opening(V4, 443, "me", "word")
    for answer in answers[:-1]:
        opening.feed(answer)
    with pytest.raises(UpstreamFailed):
        opening.feed(answers[-1])
    assert not opening.opened


def outcome(data: bytes, cuts: list[int]) -> object:
    opening, sent = Opening(V4, 443), b""
    try:
        for cut in [*cuts, len(data)]:
            sent, data = sent + opening.feed(data[:cut]), data[cut:]
    except UpstreamFailed as error:
        return error.message
    return sent, opening.opened, opening.rest


@given(
    st.just(b"\x05\x00" + ANSWER + b"rest") | st.binary(max_size=40), st.lists(st.integers(0, 5), max_size=20)
)
def test_any_bytes_cut_anywhere(data: bytes, cuts: list[int]) -> None:
    assert outcome(data, cuts) == outcome(data, [])
