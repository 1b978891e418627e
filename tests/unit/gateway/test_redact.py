"""A secret is found in a stream however it is cut and spelled; nothing else is touched or held up."""

import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.redact import Forms, Redactor

SECRET = "sk-ant-0123/45+67=\"<&>'xyz"
FORMS = Forms(SECRET)


def run(data: bytes, cuts: list[int], forms: Forms = FORMS) -> tuple[bytes, int]:
    redactor = Redactor(forms, "key")
    found = b""
    for cut in cuts:
        found += redactor.feed(data[:cut])
        data = data[cut:]
    return found + redactor.feed(data) + redactor.finish(), redactor.hits


SPELLINGS = [
    SECRET.encode(), SECRET.encode().hex().encode(), SECRET.encode().hex().upper().encode(), quote(SECRET, safe="").encode(),
    json.dumps(SECRET).encode(), b64encode(SECRET.encode()), b64encode(b"a" + SECRET.encode() + b"b"),
    quote(SECRET).encode(), quote(SECRET).lower().encode(),
    b64encode(b"user:" + SECRET.encode()), urlsafe_b64encode(b"ab" + SECRET.encode()),
]  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(cuts=st.lists(st.integers(0, 30), max_size=20))
def test_every_form_cut_anywhere(spelling: bytes, cuts: list[int]) -> None:
    """G-138, G-139, G-141."""
    data = b"before " + spelling + b" after"
    found, hits = run(data, cuts)
    assert hits == 1
    assert len(found) == len(data)
    assert found.startswith(b"before ")
    assert found.endswith(b" after")
    assert b"[redacted:key]" in found


@given(st.binary(max_size=200), st.lists(st.integers(0, 20), max_size=20))
def test_other_bytes_pass_unchanged(data: bytes, cuts: list[int]) -> None:
    """G-93."""
    assert run(data, cuts) == (data, 0)


@given(
    st.lists(st.sampled_from([b"ababab", b"abab", b"ab", b"a", b"abababab", b"x"]), max_size=20),
    st.lists(st.integers(0, 9), max_size=40),
)
def test_a_secret_that_overlaps_itself(parts: list[bytes], cuts: list[int]) -> None:
    """G-139."""
    found, _ = run(b"".join(parts), cuts, Forms("abababab"))
    assert b"abababab" not in found


def test_events_are_not_held_up() -> None:
    """G-99, G-139."""
    redactor = Redactor(FORMS, "key")
    assert redactor.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert redactor.feed(b"data: sk-an") == b"data: "
    assert redactor.feed(b"d more\n\n") == b"sk-and more\n\n"
    assert redactor.finish() == b""


def test_header_values() -> None:
    """G-137."""
    redactor = Redactor(FORMS, "key")
    assert SECRET not in redactor.text(f"Bearer {SECRET}")
    assert redactor.text("plain") == "plain"
