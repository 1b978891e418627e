"""Pkt-lines, and lists of refs on their way to a sandbox (G-242)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, InvalidInput
from corral.wire.gitrefs import RefsFilter, Texts
from corral.wire.pktline import FLUSH, Kind, Line, encode, take

OLD = "1" * 40


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_lines_come_back_however_they_are_cut(items: list[bytes], step: int) -> None:
    data = b"".join(map(encode, items)) + FLUSH + b"0001" + b"0002"
    buffer, found = bytearray(), []
    for start in range(0, len(data), step):
        buffer += data[start : start + step]
        while (line := take(buffer)) is not None:
            found.append(line)
    marks = [Line(Kind.FLUSH), Line(Kind.DELIMITER), Line(Kind.RESPONSE_END)]
    assert found == [Line(Kind.DATA, item) for item in items] + marks


@pytest.mark.parametrize("data", [b"0003", b"fff1", b"ffff", b"00g0", b"-001", b"0x10", b" 004", b"+004"])
def test_lengths_that_are_none(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        take(bytearray(data))


@given(st.binary(max_size=400), st.booleans(), st.integers(1, 64))
def test_any_bytes_pass_or_are_refused(data: bytes, push: bool, step: int) -> None:
    filter = RefsFilter(push=push)
    try:
        for start in range(0, len(data), step):
            filter.feed(data[start : start + step])
    except CorralError:
        return


def test_capabilities_that_lead_elsewhere_are_not_offered() -> None:
    advert = b"".join(
        [
            encode(b"# service=git-upload-pack\n"), FLUSH, encode(b"version 2\n"), encode(b"agent=git/2\n"),
            encode(b"fetch=shallow filter packfile-uris sideband-all\n"), encode(b"bundle-uri\n"), FLUSH,
        ]
    )  # fmt: skip
    passed = RefsFilter(push=False).feed(advert)
    assert b"bundle-uri" not in passed
    assert encode(b"fetch=shallow filter sideband-all\n") in passed
    assert encode(b"agent=git/2\n") in passed


def test_a_push_is_offered_only_what_can_be_read() -> None:
    capabilities = b"report-status side-band-64k push-options atomic push-cert=abc ofs-delta"
    advert = encode(f"{OLD} refs/heads/main\0".encode() + capabilities + b"\n")
    advert += encode(f"{OLD} .have\n".encode()) + encode(f"{OLD} refs/heads/x\n".encode()) + FLUSH
    filter = RefsFilter(push=True)
    passed = filter.feed(advert)
    filter.finish()
    assert b"report-status side-band-64k atomic ofs-delta no-thin\n" in passed
    assert b".have" not in passed
    assert filter.refs == {"refs/heads/main": OLD, "refs/heads/x": OLD}
    assert b"push-options" in RefsFilter(push=True, options=True).feed(advert)


def test_capabilities_once_only() -> None:
    line = encode(f"{OLD} refs/heads/main\0report-status\n".encode())
    with pytest.raises(InvalidInput):
        RefsFilter(push=True).feed(line + line)


def test_a_list_that_is_cut_is_not_whole() -> None:
    filter = RefsFilter(push=False)
    filter.feed(encode(b"version 2\n") + b"00")
    with pytest.raises(InvalidInput):
        filter.finish()


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_the_text_of_a_fetch_is_changed_and_packs_are_not(step: int) -> None:
    """G-137: also what is told while a pack comes; the pack is what follows the last line, or comes in lines of its own."""
    lines = encode(OLD.encode() + b" refs/heads/a") + encode(b"\2a is told") + FLUSH + encode(b"ERR a")
    pack = encode(b"\1a pack") + FLUSH
    texts = Texts(lambda data: data.replace(b"a", b"*"))
    data, out = lines + pack + b"PACK with a", b""
    for start in range(0, len(data), step):
        out += texts.feed(data[start : start + step])
    out += texts.finish()
    told = encode(OLD.encode() + b" refs/he*ds/*") + encode(b"\2* is told") + FLUSH + encode(b"ERR *")
    assert out == told + pack + b"PACK with a"


@given(st.binary(max_size=400), st.integers(1, 64))
def test_any_answer_passes_unless_it_is_changed(data: bytes, step: int) -> None:
    """G-93."""
    texts, out = Texts(bytes), b""
    for start in range(0, len(data), step):
        out += texts.feed(data[start : start + step])
    assert (out + texts.finish()).lower() == data.lower()
