"""Which attack is seen to succeed without its defence; see tests/removals."""

import shutil
from pathlib import Path

import pytest
from tests.removals.defences import NOTHING_TO_REMOVE, REMOVALS
from tests.removals.removal import SOURCE, Edit, Removal, remove

from corral.testing.attack.selftest import ATTACKS


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.defence)
def test_the_defence_stands_where_it_is_taken_from(removal: Removal, tmp_path: Path) -> None:
    for file in {edit.file for edit in removal.edits}:
        place = tmp_path / "corral" / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / "corral" / file, place)
    remove(removal, tmp_path)
    for file in {edit.file for edit in removal.edits}:
        compile((tmp_path / "corral" / file).read_text(), file, "exec")


def test_every_attack_is_seen_to_succeed_or_has_a_reason() -> None:
    seen = {name for removal in REMOVALS for name in removal.attacks}
    assert not seen & set(NOTHING_TO_REMOVE)
    assert seen | set(NOTHING_TO_REMOVE) == {attack.name for attack in ATTACKS}


def test_an_edit_whose_text_does_not_stand_there_once_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "corral").mkdir()
    (tmp_path / "corral" / "a.py").write_text("one\none\ntwo\n")
    for old in ("one", "three"):
        with pytest.raises(ValueError, match="times in a"):
            remove(Removal("", {}, (Edit("a.py", old, ""),)), tmp_path)
    remove(Removal("", {}, (Edit("a.py", "two", "three"),)), tmp_path)
    assert (tmp_path / "corral" / "a.py").read_text() == "one\none\nthree\n"
