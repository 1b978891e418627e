"""Which attacks `corral self-test` carries out."""

import pytest

from corral.errors import InvalidInput
from corral.testing.attack.selftest import ATTACKS, chosen


def test_all_attacks_are_carried_out_unless_some_are_named() -> None:
    assert chosen() == list(ATTACKS)
    assert {attack.name for attack in chosen(("metadata", "forks"))} == {"metadata", "forks"}


def test_words_choose_among_those_named() -> None:
    assert {attack.name for attack in chosen(words="BUDGET")} >= {"budget-race", "own-budget"}
    assert [attack.name for attack in chosen(("metadata", "forks"), "fork")] == ["forks"]


@pytest.mark.parametrize(("names", "words"), [(("metadat",), ""), (("x" * 300,), ""), ((), "no such words")])
def test_what_names_no_attack_is_an_error(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidInput) as error:
        chosen(names, words)
    assert "metadata" in error.value.hint or "--list" in error.value.hint
    assert len(error.value.message) < 120
