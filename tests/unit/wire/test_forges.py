"""A forge's answers: whatever they hold, a value that was asked for or an error that says what to do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, Forbidden, InvalidInput, NotFound, UpstreamFailed
from corral.model.secrets import Provider
from corral.wire.forges import Forge, ForgeAnswer, Opened, Proposal, message_of

GITHUB = Forge(Provider.GITHUB, "https://github.com")
GITLAB = Forge(Provider.GITLAB, "https://gitlab.example/")
ONE = Proposal("acme/app", "corral/x y", "main", "title", "body", draft=True)

keys = st.sampled_from(["default_branch", "html_url", "web_url", "number", "iid", "message", "errors", "x"])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
)
deep = st.integers(1, 100_000).map(lambda n: "[" * n)
bodies = values.map(json.dumps) | st.text(max_size=60) | deep
answers = st.builds(ForgeAnswer, st.sampled_from([200, 201, 204, 301, 401, 403, 404, 409, 422, 500]), bodies)


def outcome(work: Any, *args: Any) -> Any:
    try:
        return work(*args)
    except CorralError as error:
        return error


@pytest.mark.parametrize("forge", [GITHUB, GITLAB])
@given(answer=answers, refusal=answers)
def test_any_answer_is_read_or_refused(forge: Forge, answer: ForgeAnswer, refusal: ForgeAnswer) -> None:
    assert isinstance(outcome(forge.default_branch, answer), str | CorralError)
    for found in (outcome(forge.opened, answer), outcome(forge.found, answer, refusal)):
        assert found is None or isinstance(found, Opened | CorralError)
        if isinstance(found, Opened):
            assert found.url.isprintable()
            assert type(found.number) is int
    said = message_of(answer)
    assert said.isprintable()
    assert 0 < len(said) <= 500


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, Forbidden), (403, Forbidden), (404, NotFound), (500, UpstreamFailed), (301, UpstreamFailed)],
)
def test_a_status_is_told_as_what_it_means(status: int, error: type[CorralError]) -> None:
    with pytest.raises(error):
        GITHUB.default_branch(ForgeAnswer(status, '{"message": "no"}'))


def test_one_that_exists_is_found_or_the_refusal_told() -> None:
    listed = ForgeAnswer(200, '[{"html_url": "https://x/7", "number": 7}]')
    refusal = ForgeAnswer(422, '{"message": "Validation Failed", "errors": [{"message": "no commits"}, 3]}')
    assert GITHUB.opened(refusal) is None
    assert GITHUB.found(listed, refusal) == Opened("https://x/7", 7, existed=True)
    with pytest.raises(InvalidInput, match="Validation Failed; no commits"):
        GITHUB.found(ForgeAnswer(200, "[]"), refusal)


@given(st.text(max_size=40), st.text(max_size=40))
def test_names_go_into_addresses_encoded(path: str, branch: str) -> None:
    """Whatever a branch is called, it ends no parameter and begins no path."""
    one = Proposal(
        path.encode("utf-8", "replace").decode(),
        branch.encode("utf-8", "replace").decode(),
        "main",
        "t",
        "b",
        draft=False,
    )
    for forge in (GITHUB, GITLAB):
        for call in (forge.existing(one), forge.open(one), forge.repository(one.path)):
            assert call.url.isascii()
            assert call.url.isprintable()
            assert not set(call.url) & set(' #"<>\\')
            assert call.url.count("?") <= 1
            assert call.url.count("&") == (3 if call.method == "GET" and "?" in call.url else 0)


def test_what_is_opened_says_what_was_asked() -> None:
    github, gitlab = json.loads(GITHUB.open(ONE).body), json.loads(GITLAB.open(ONE).body)
    assert (github["head"], github["draft"]) == ("corral/x y", True)
    assert (gitlab["source_branch"], gitlab["title"]) == ("corral/x y", "Draft: title")
