"""Which files that came out of a sandbox want a look."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.work.review import Change, Flag, findings, flags_of, parse_raw, shown

MODES = ["000000", "100644", "100755", "120000", "160000"]


@pytest.mark.parametrize(
    ("path", "old", "new", "flags"),
    [
        (b"src/a.py", "100644", "100644", ()),
        (b"Makefile", "000000", "100644", (Flag.RUNS_ON_HOST,)),
        (b"sub/.GitHub/Workflows/x", "000000", "100644", (Flag.RUNS_ON_HOST,)),
        (b"Makefile", "100644", "000000", ()),
        (b"run", "100644", "100755", (Flag.EXECUTABLE,)),
        (b"run", "100755", "100755", ()),
        (b"link", "000000", "120000", (Flag.SYMLINK,)),
        (b"lib", "160000", "000000", (Flag.SUBMODULE,)),
        (b".gitmodules", "100644", "000000", (Flag.CHANGES_GIT,)),
        (b"hooks/pre-commit", "000000", "100755", (Flag.RUNS_ON_HOST, Flag.EXECUTABLE)),
    ],
)
def test_what_is_flagged(path: bytes, old: str, new: str, flags: tuple[Flag, ...]) -> None:
    assert flags_of(Change(path, old, new)) == flags


@given(st.binary(max_size=60), st.binary(max_size=40))
def test_a_raw_line_is_read_or_no_value(header: bytes, path: bytes) -> None:
    try:
        found = parse_raw(header, path)
    except ValueError:
        return
    assert found.path == path
    assert isinstance(flags_of(found), tuple)


@given(
    st.lists(
        st.builds(Change, st.binary(max_size=60), st.sampled_from(MODES), st.sampled_from(MODES)), max_size=30
    )
)
def test_what_is_listed_can_be_shown_and_nothing_flagged_is_left_out(changes: list[Change]) -> None:
    told = findings(changes)
    assert [one.path for one in told] == [shown(change.path) for change in changes if flags_of(change)]
    assert all(one.path.isprintable() for one in told)


@given(
    st.sampled_from([b"/", b"a/", b".git/", b"hooks/", b"hooks/pre-", b".mk", b"a.mk/", b"\n", b"BUILD/"]),
    st.integers(1, 40_000),
)
def test_long_paths_take_no_time(part: bytes, times: int) -> None:
    """G-340: a path is as long as a sandbox likes; the test's own limit of time is the only one."""
    flags_of(Change(part * times + b"x", "000000", "100644"))
