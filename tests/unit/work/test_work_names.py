"""Names that are taken, and names that are made."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.work.names import (
    check_clone_url,
    choose_branch,
    clean_text,
    directory_name,
    identity_value,
    informative_origin,
    is_branch,
    is_object_id,
)


@pytest.mark.parametrize(
    "name", ["main", "corral/x", "a.b", "feature/ä", "x" * 200, "a@b", "-".join("ab"), "a{b"]
)
def test_branches(name: str) -> None:
    assert is_branch(name)


@pytest.mark.parametrize(
    "name",
    [
        "", "-x", "--upload-pack=x", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "/a", "a/", "a//b",
        ".a", "a/.b", "a.lock", "a.lock/b", "a.", "@", "HEAD", "a@{1}", "a\nb", "a\0", "a\x7f", "x" * 201, "a\u202eb",
    ],
)  # fmt: skip
def test_no_branches(name: str) -> None:
    assert not is_branch(name)
    with pytest.raises(InvalidInput):
        choose_branch(name, "otter")


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=12))
@settings(max_examples=60)
def test_git_accepts_every_branch_that_is_accepted(name: str) -> None:
    if is_branch(name):
        subprocess.run(["git", "check-ref-format", f"refs/heads/{name}"], check=True)


def test_auto_branch() -> None:
    assert choose_branch(None, "otter") == choose_branch("auto", "otter") == "corral/otter"
    assert choose_branch("fix", "otter") == "fix"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/home/me/project", "project"),
        ("/home/me/project.git/", "project"),
        ("https://forge.example/o/r.git", "r"),
        ("/x/..", "repo"),
        ("/x/-rf", "rf"),
        ("/x/a b\nc", "a-b-c"),
        ("/x/\udcff", "repo"),
        ("/x/.git", "repo"),
        ("/x/" + "y" * 300, "y" * 100),
    ],
)
def test_directory_names(source: str, name: str) -> None:
    assert directory_name(source) == name


@pytest.mark.parametrize(
    "url", ["https://forge.example/o/r", "https://forge.example:8443/o/r.git", "https://127.0.0.1/r"]
)
def test_clone_urls(url: str) -> None:
    assert check_clone_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://forge.example/o/r", "ssh://git@forge.example/o/r", "git@forge.example:o/r", "file:///etc", "/etc",
        "ext::sh -c id", "https://user:pw@forge.example/o/r", "https://token@forge.example/o/r", "https:///o/r",
        "https://forge.example", "https://forge.example/", "https://forge.example/o?x=1", "https://forge.example/o#x",
        "https://forge.example/o r", "https://forge.example/o\nr", "https://forge.example:99999/o", "https://[::1/x",
        "--upload-pack=x", "https://-x/o/r", "https://forge.example/" + "x" * 3000, "https://förge.example/o", "",
    ],
)  # fmt: skip
def test_no_clone_urls(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_clone_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("git@forge.example:o/r.git", "https://forge.example/o/r.git"),
        ("ssh://git@forge.example:2222/o/r", "https://forge.example/o/r"),
        ("https://u:p@forge.example:8443/o/r", "https://forge.example:8443/o/r"),
        ("/srv/git/r.git", None),
        ("file:///srv/r", None),
        ("http://forge.example/o/r", None),
        ("ext::sh -c id", None),
        ("", None),
    ],
)
def test_origins(url: str, shown: str | None) -> None:
    assert informative_origin(url) == shown


@pytest.mark.parametrize(
    ("value", "kept"),
    [(" A B ", "A B"), ("", None), ("a\nb", None), ("a<b", None), ("x" * 257, None), ("Ü", "Ü")],
)
def test_identities(value: str, kept: str | None) -> None:
    assert identity_value(value) == kept


def test_object_ids() -> None:
    assert is_object_id("a" * 40)
    assert is_object_id("0" * 64)
    for wrong in ("a" * 39, "A" * 40, "g" * 40, "a" * 41, "a" * 40 + "\n"):
        assert not is_object_id(wrong)


def test_messages_are_made_harmless() -> None:
    assert clean_text(b"fatal:\x1b[31m no\n\xff\xfe\x00end\x9b") == "fatal: [31m no \ufffd\ufffd end\ufffd"
    assert len(clean_text(b"x" * 100_000)) == 500
