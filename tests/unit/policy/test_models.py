"""Which model runs, by the rules of a sandbox and of its host."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import Forbidden, InvalidInput
from corral.model.grants import Alias, ModelRules
from corral.policy.models import MAX_UNDER, Layer, checked_rules, layers, over, parse_alias, resolve

ANY = ModelRules()


def rules(*allow: str, **aliases: str) -> ModelRules:
    return ModelRules(allow or ("*",), tuple(Alias(asked, sent) for asked, sent in aliases.items()))


def newest(family: str, model: str) -> str:
    return {"haiku": "claude-haiku-4-5"}[family]


def runs(asked: str, *layers: ModelRules) -> str:
    return resolve([Layer(each, "change it") for each in layers], asked, newest)


@pytest.mark.parametrize(
    ("pattern", "model", "allowed"),
    [
        ("*", "anything/at:all", True),
        ("claude-haiku-*", "claude-haiku-4-5", True),
        ("claude-haiku-*", "Claude-Haiku-4-5", True),
        ("claude-haiku-*", "claude-opus-4-5", False),
        ("claude-haiku-*", "x-claude-haiku-4", False),
        ("gpt-5", "gpt-5-pro", False),
        ("openai/gpt-5", "openai/gpt-5:nitro", False),
        ("gpt.5", "gpt-5", False),
        ("*-mini", "gpt-5-mini", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
    ],
)
def test_patterns(pattern: str, model: str, allowed: bool) -> None:
    """G-180: suffixes and prefixes are part of the name."""
    if allowed:
        assert runs(model, rules(pattern), ANY) == model
    else:
        with pytest.raises(Forbidden, match="not allowed in this sandbox"):
            runs(model, rules(pattern), ANY)


def test_a_templates_rules_hold_under_the_sandboxes() -> None:
    """G-180: each template's that it stands on, once, in order; its own rules change nothing of that."""
    frugal, family = rules("claude-haiku-*"), rules("claude-*", opus="haiku")
    below = over(frugal, family)
    found = over(rules("*"), below)
    assert [layer.allow for layer in found.under] == [("claude-haiku-*",), ("claude-*",)]
    assert over(found, below) == found
    assert over(rules("*"), None) == rules("*")
    told = layers(found, "box", ANY, ANY)
    assert resolve(told, "claude-opus-4", newest) == "claude-haiku-4-5"
    with pytest.raises(Forbidden, match="not allowed") as error:
        resolve(told, "claude-sonnet-4-5", newest)
    assert "corral template build" in error.value.hint
    for number in range(MAX_UNDER - 1):
        below = over(rules(f"a{number}"), below)
    with pytest.raises(InvalidInput):
        over(rules("one more"), below)


@pytest.mark.parametrize(
    ("narrow", "command"),
    [(0, "corral grant set box --models"), (1, "corral models set"), (2, "corral config set models.allow")],
)
def test_a_refusal_names_the_command_of_the_rules_that_refuse(narrow: int, command: str) -> None:
    box, tenant, host = (rules("a*") if at == narrow else ANY for at in range(3))
    with pytest.raises(Forbidden, match="not allowed in this sandbox") as told:
        resolve(layers(box, "box", tenant, host), "b", newest)
    assert command in told.value.hint


def test_every_layer_must_allow_what_runs() -> None:
    """G-13: a sandbox's own rules only narrow the host's."""
    for both in ((rules("a*"), rules("b*")), (rules("b*"), rules("a*"))):
        with pytest.raises(Forbidden):
            runs("ab", *both)
    assert runs("ab", rules("a*"), rules("*b")) == "ab"


def test_aliases() -> None:
    own = rules(opus="haiku", **{"gpt-5*": "gpt-5-mini"})
    assert runs("claude-opus-4-5", own, ANY) == "claude-haiku-4-5"
    assert runs("opus", own, ANY) == "claude-haiku-4-5"
    assert runs("gpt-5-pro", own, ANY) == "gpt-5-mini"
    assert runs("magnopus-1", own, ANY) == "magnopus-1"
    # The host's aliases hold for what the sandbox's gave, and what runs in the end is what must be allowed.
    assert runs("claude-opus-4-5", own, rules(haiku="claude-3-haiku")) == "claude-3-haiku"
    with pytest.raises(Forbidden, match="asked for as 'claude-opus-4-5'"):
        runs("claude-opus-4-5", rules("claude-opus-*", opus="haiku"), ANY)


def test_an_alias_is_followed_once() -> None:
    """Rules that go round do not go round for ever."""
    circle = rules(a1="b1", b1="a1")
    assert runs("a1", circle, circle) == "a1"


@pytest.mark.parametrize("text", ["opus", "=x", "opus=", "opus=claude-*", "a b=c", "é=x"])
def test_bad_aliases(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_alias(text)


@pytest.mark.parametrize("bad", [rules(*["a"] * 65), rules("a b"), rules("")])
def test_bad_rules(bad: ModelRules) -> None:
    with pytest.raises(InvalidInput):
        checked_rules(bad)


@given(
    st.lists(st.text("ab*-.", min_size=1, max_size=8), min_size=1, max_size=4), st.text("ab-.", max_size=30)
)
def test_anything_is_decided(patterns: list[str], model: str) -> None:
    """G-342: no pattern takes long, or raises anything else."""
    with contextlib.suppress(Forbidden):
        assert runs(model, rules(*patterns)) == model
