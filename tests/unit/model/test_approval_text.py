"""What a sandbox writes into a question is bounded and harmless."""

from hypothesis import given
from hypothesis import strategies as st

from corral.model.approval import (
    MAX_DEADLINE,
    MAX_DETAIL,
    MAX_FIELD,
    MAX_FIELDS,
    MAX_SUMMARY,
    Kind,
    bounded,
)


@given(st.text(), st.dictionaries(st.text(), st.text()), st.floats(-1e9, 1e9))
def test_any_text_is_bounded(summary: str, detail: dict[str, str], seconds: float) -> None:
    question = bounded(Kind.HOST, summary, detail, seconds)
    assert len(question.summary) <= MAX_SUMMARY
    assert "\n" not in question.summary
    assert 1 <= question.seconds <= MAX_DEADLINE
    for text in (question.summary, *(field.text for field in question.detail)):
        assert all(c.isprintable() or c in "\n\t" for c in text)
        text.encode()


def test_too_much_is_cut_and_says_so() -> None:
    question = bounded(Kind.PUSH, "x" * 10_000, {str(i): "y" * 100_000 for i in range(100)}, 60)
    assert question.summary.endswith("(cut)")
    assert question.detail[0].text.endswith("(cut)")
    assert len(question.detail) == MAX_FIELDS
    assert max(len(field.text) for field in question.detail) == MAX_FIELD
    assert sum(len(field.text) for field in question.detail) <= MAX_DETAIL


def test_bounding_twice_changes_nothing() -> None:
    once = bounded(Kind.PUSH, "a\x1b[2J", {"n": "b\0" * 20_000}, 60)
    assert bounded(once.kind, once.summary, {f.name: f.text for f in once.detail}, once.seconds) == once
