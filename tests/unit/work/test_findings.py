"""What is found in a push, from what git printed of it; the readers' words are taken in pieces of any size."""

from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.model.push import MAX_COMMITS, MAX_FILES, MAX_FLAGS, Command, FlagKind
from corral.policy.forms import forms
from corral.policy.needles import Needles
from corral.wire.gitobjects import Change, Commit, ObjectReader
from corral.work.findings import (
    LARGE,
    Gathered,
    LeakSearch,
    follows,
    look_at,
    missing_parents,
    old_blobs,
    report,
    take_objects,
)

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


def test_what_was_printed_of_objects() -> None:
    gathered = Gathered()
    take_objects(gathered, f"large {A} {LARGE}\ntotal 9 3\ncontent {'c' * 64}\n".encode(), 2)
    assert (gathered.large, gathered.objects, gathered.content) == ({A: LARGE}, 9, "c" * 64)
    assert gathered.truncated == "the push brings 3 commits"


@given(st.binary(max_size=200) | st.text("largetoconten 0123456789\n\x00\u0660", max_size=80).map(str.encode))
def test_what_objects_are_told_in_other_words_is_refused(told: bytes) -> None:
    try:
        take_objects(Gathered(), told, 5)
    except InvalidInput:
        return
    assert all(
        line.split()[0] in (b"large", b"total", b"content") for line in told.split(b"\n") if line.split()
    )


ids = st.integers(0, 6).map(lambda n: f"{n:040x}")
modes = st.sampled_from(["000000", "100644", "100755", "120000", "160000", "040000", "x"])
paths = st.binary(max_size=30) | st.sampled_from(
    [b".github/workflows/x.yml", b".gitmodules", b'".envrc"', b"a\x1b[31m"]
)
changes = st.builds(Change, ids, paths, modes, modes, ids, ids, st.sampled_from("AMDTCRUX"))
texts = st.text(max_size=20)
commits = st.builds(Commit, ids, st.tuples(ids, ids), texts, texts, texts, st.booleans(), st.booleans())
commands = st.builds(Command, st.text(min_size=1, max_size=9), ids, ids)


@given(st.lists(changes, max_size=200), st.lists(commits, max_size=80), st.lists(commands, max_size=4), texts)
def test_whatever_a_pack_holds_the_report_is_bounded_and_can_be_shown(
    found: list[Change], made: list[Commit], asked: list[Command], author: str
) -> None:
    """G-259, G-340: cycles too, which git refuses and this does not rely on."""
    gathered = Gathered(changes=found, commits={one.id: one for one in made}, large={A: LARGE})
    look_at(gathered, (author,), signed=True)
    told = report(gathered, asked, {one.ref: follows(gathered.commits, one.old, one.new) for one in asked})
    assert len(told.commits) <= MAX_COMMITS
    assert len(told.files) <= MAX_FILES
    assert len(told.flags) <= MAX_FLAGS <= max(told.flags_total, MAX_FLAGS)
    assert all(line.path.isprintable() and len(line.path) <= 300 for line in told.files)
    assert [one.ref for one in told.refs] == [one.ref for one in asked]
    assert set(missing_parents(gathered.commits, asked)).isdisjoint(gathered.commits)
