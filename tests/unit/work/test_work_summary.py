"""What a sandbox's git says of its work: bounded, whatever it says."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from corral.model.receipt import MAX_COMMITS, MAX_FILES, ChangedFile, MadeCommit
from corral.work.summary import parse

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = "a" * 40


def test_files_and_commits_are_read() -> None:
    text = f"1\t2\ta b.py\0-\t-\tc\td.bin\0\0end of files\0002\n{ID}\nme\nfix\0{ID}\nme\n\0"
    work = parse(text, NOW)
    assert work.files == (ChangedFile("a b.py", 1, 2), ChangedFile("c\td.bin", None, None))
    assert work.commits == (MadeCommit(ID, "me", "fix"), MadeCommit(ID, "me", ""))
    assert (work.file_count, work.commit_count) == (2, 2)


def test_more_than_is_kept_is_counted() -> None:
    text = "1\t1\tx\0" * 2000 + "\0end of files\00099\n" + f"{ID}\nme\nfix\0" * 300
    work = parse(text, NOW)
    assert (len(work.files), work.file_count) == (MAX_FILES, 2000)
    assert (len(work.commits), work.commit_count) == (MAX_COMMITS, 300)


@given(st.text(alphabet=st.sampled_from("\0\t\n01a-² "), max_size=300) | st.text())
def test_any_text_is_bounded(text: str) -> None:
    work = parse(text + "\0end of files\0" + text, NOW)
    assert len(work.files) <= MAX_FILES
    assert all(item.added is None or item.added >= 0 for item in work.files)
    assert work.commit_count >= len(work.commits)
