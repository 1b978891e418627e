"""What is found in a push, from what git printed of it; the readers' words are taken in pieces of any size."""

from hypothesis import given
from hypothesis import strategies as st

from corral.model.push import FlagKind
from corral.policy.forms import forms
from corral.policy.needles import Needles
from corral.wire.gitobjects import Change, ObjectReader
from corral.work.findings import Gathered, LeakSearch, follows, look_at, missing_parents, old_blobs

SECRET = "Canary-Value-That-Stays-0123"
NEEDLES = Needles.of_secrets({"lab": SECRET, "local": "not-needed"})
A, B, Z = "a" * 40, "b" * 40, "0" * 40


def printed(*contents: bytes) -> bytes:
    return b"".join(b"%040x blob %d\n%b\n" % (n, len(one), one) for n, one in enumerate(contents))


def searched(data: bytes, step: int) -> dict[str, str]:
    assert NEEDLES is not None
    reader, search = ObjectReader(), LeakSearch(NEEDLES)
    for start in range(0, len(data), step):
        for part in reader.feed(data[start : start + step]):
            search.feed(part)
    reader.finish()
    return search.found


@given(st.integers(0, 200), st.sampled_from(sorted(forms(SECRET))), st.integers(1, 300))
def test_a_secret_is_found_however_it_is_written_and_cut(before: int, form: bytes, step: int) -> None:
    """G-44: in the object that holds it, not in the next, and not where two objects only make it together."""
    contents = (b"x" * before + form + b"y", b"not-needed", form[:-4], form[-4:])
    assert searched(printed(*contents), step) == {f"{0:040x}": "lab"}


def test_words_are_no_needles() -> None:
    """A model's key of one's own may be a word of any text."""
    assert Needles.of_secrets({}) is None
    assert NEEDLES is not None
    assert NEEDLES.first(b"a key that is not-needed") is None


def test_a_leak_is_named_by_its_path() -> None:
    gathered = Gathered(
        changes=[Change(A, b"conf/x.py", "000000", "100644", Z, B, "A")], leaks={B: "lab", A: "lab"}
    )
    look_at(gathered, (), signed=False)
    assert gathered.flags == {
        (FlagKind.LEAK, "conf/x.py"): "lab",
        (FlagKind.LEAK, f"the object {A[:12]}"): "lab",
    }


def test_what_a_push_lacks() -> None:
    """Contents that it replaces and does not bring; submodules have none."""
    changes = [
        Change(A, b"x", "100644", "100644", A, B, "M"),
        Change(A, b"y", "100644", "100644", B, A[:-1] + "1", "M"),
        Change(A, b"z", "160000", "160000", A[:-1] + "2", B, "M"),
        Change(A, b"n", "000000", "100644", Z, B, "A"),
    ]
    assert old_blobs(changes) == [A]
    assert missing_parents({}, []) == []
    assert follows({}, A, A)
    assert not follows({}, A, B)
