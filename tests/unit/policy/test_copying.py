"""Which files a COPY takes, and where each goes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, InvalidInput
from corral.policy.copying import Item, Kind, choose, clean, digest_of


def tree(*paths: str) -> dict[str, Item]:
    """Items: `a/` is a directory, `a -> b` a link, others are files."""
    items = {}
    for path in paths:
        name, arrow, target = path.partition(" -> ")
        if arrow:
            items[name] = Item(name, Kind.SYMLINK, target=target)
        elif path.endswith("/"):
            items[path[:-1]] = Item(path[:-1], Kind.DIRECTORY)
        else:
            items[path] = Item(path, Kind.FILE, digest=path)
    return items


FILES = tree(
    "a.txt", "b.txt", "c.md", "d/", "d/x", "d/e/", "d/e/y", "l -> d", "out -> ../../etc", "loop -> loop"
)


@pytest.mark.parametrize(
    ("sources", "directory", "places"),
    [
        (["a.txt"], False, {"": "a.txt"}),
        (["a.txt"], True, {"a.txt": "a.txt"}),
        (["./x/../a.txt"], False, {"": "a.txt"}),
        (["*.txt"], False, {"a.txt": "a.txt", "b.txt": "b.txt"}),
        (["a.txt", "c.md"], True, {"a.txt": "a.txt", "c.md": "c.md"}),
        (["d"], False, {"": "d", "x": "d/x", "e": "d/e", "e/y": "d/e/y"}),
        (["/d/"], True, {"": "d", "x": "d/x", "e": "d/e", "e/y": "d/e/y"}),
        (["l"], False, {"": "d", "x": "d/x", "e": "d/e", "e/y": "d/e/y"}),
        (["d/*"], True, {"": "d/e", "x": "d/x", "y": "d/e/y"}),
        (["[ab].txt"], True, {"a.txt": "a.txt", "b.txt": "b.txt"}),
        (["[^a].txt"], True, {"b.txt": "b.txt"}),
    ],
)
def test_sources(sources: list[str], directory: bool, places: dict[str, str]) -> None:
    placed = choose(FILES, sources, directory=directory)
    assert {one.place: one.item.path for one in placed} == places


def test_the_root_is_everything() -> None:
    placed = choose(FILES, ["."], directory=True)
    assert {one.item.path for one in placed} == {"", *FILES}


def test_exclusions() -> None:
    placed = choose(FILES, ["."], ["d", "*.txt", "!b.txt"], directory=True)
    assert {one.place for one in placed} == {"", "b.txt", "c.md", "l", "out", "loop"}


@pytest.mark.parametrize("source", ["nothing", "*.rs", "d/nothing", "out", "loop"])
def test_what_is_not_there_is_refused(source: str) -> None:
    with pytest.raises(InvalidInput):
        choose(FILES, [source], directory=True)


def test_parents_come_first() -> None:
    places = [one.place for one in choose(FILES, ["d"], directory=True)]
    assert places == sorted(places)


def test_the_digest_is_of_names_and_contents() -> None:
    one = choose(tree("a", "b"), ["."], directory=True)
    other = choose({**tree("a"), "b": Item("b", Kind.FILE, digest="else")}, ["."], directory=True)
    again = choose(
        {**tree("a"), "b": Item("b", Kind.FILE, digest="b", mtime=5.0, offset=9)}, ["."], directory=True
    )
    assert digest_of(one) != digest_of(other)
    assert digest_of(one) == digest_of(again)


@given(st.text(max_size=60))
def test_any_pattern_chooses_or_is_refused(pattern: str) -> None:
    with contextlib.suppress(CorralError):
        choose(FILES, [pattern], directory=True)


@given(st.text(max_size=60))
def test_a_source_never_climbs(path: str) -> None:
    assert ".." not in clean(path).split("/")
