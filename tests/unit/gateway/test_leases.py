"""Leases in the gateway, and the journal that outlives it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.gateway import leases as module
from corral.gateway.journal import Journal, Journals
from corral.gateway.leases import Leases
from corral.model.ids import SandboxId

BOX, OTHER = SandboxId("a" * 16), SandboxId("b" * 16)


@pytest.fixture
def journals(tmp_path: Path) -> Journals:
    return Journals(tmp_path / "leases")


@pytest.fixture
def journal(journals: Journals) -> Iterator[Journal]:
    fd = journals.create("g")
    yield Journal(fd)
    os.close(fd)


@pytest.fixture
def returned() -> list[int]:
    return []


@pytest.fixture
def leases(journal: Journal, returned: list[int]) -> Leases:
    found = Leases(returned.append)
    found.use(journal)
    return found


async def test_calls_draw_what_was_added_and_no_more(leases: Leases, journals: Journals) -> None:
    number = leases.wanted(BOX)
    assert leases.draw(BOX, 0) == 0  # nothing was given yet, not even for nothing
    leases.extended(number, 100)
    assert [leases.draw(BOX, 60), leases.draw(BOX, 60), leases.draw(BOX, 40)] == [number, 0, number]
    leases.extended(number, 20)
    assert leases.draw(BOX, 20) == number
    assert leases.draw(OTHER, 1) == 0
    drawn = journals.drawn("g")
    assert drawn is not None
    assert drawn[number] == 120


async def test_what_is_given_back_is_said_once_and_drawn_no_more(leases: Leases, returned: list[int]) -> None:
    first, second = leases.wanted(BOX), leases.wanted(OTHER)
    leases.extended(first, 100)
    leases.drop(BOX)
    leases.drop(BOX)
    assert (returned, leases.draw(BOX, 1)) == ([first], 0)
    leases.drop_all()  # the other was never given anything
    assert (returned, leases.given_back) == ([first], 1)
    # What the engine added before it heard of that goes back too.
    leases.extended(second, 5)
    leases.extended(first, 5)
    assert (returned, leases.draw(OTHER, 1)) == ([first, second, first], 0)
    third = leases.wanted(BOX)
    leases.extended(third, 1)
    assert third not in (first, second)
    leases.recall(OTHER)
    assert leases.draw(BOX, 1) == third
    leases.recall(None)
    assert returned[-1] == third


async def test_without_a_journal_nothing_is_leased(returned: list[int]) -> None:
    leases = Leases(returned.append)
    assert (leases.wanted(BOX), leases.draw(BOX, 1)) == (0, 0)


async def test_what_is_not_used_for_long_is_given_back(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)
    returned = asyncio.get_running_loop().create_future()
    leases = Leases(returned.set_result)
    leases.use(journal)
    number = leases.wanted(BOX)
    leases.extended(number, 100)
    async with asyncio.timeout(30):
        assert await returned == number
    assert leases.draw(BOX, 1) == 0


def test_a_journal_is_read_after_its_process_and_goes_with_it(journals: Journals, journal: Journal) -> None:
    assert (journals.drawn("g"), journals.drawn("unknown")) == ({0: 0}, None)
    assert journal.open(7)
    journal.draw(7, 2**40)
    journal.close(7)
    assert journal.open(8)
    drawn = journals.drawn("g")
    assert drawn is not None
    assert (drawn[7], drawn[8]) == (2**40, 0)  # a place is not taken again at once
    journals.remove("g")
    journals.remove("g")
    assert journals.drawn("g") is None


def test_a_journal_has_a_place_for_so_many_and_gives_it_again(journal: Journal, journals: Journals) -> None:
    opened = [number for number in range(1, 5000) if journal.open(number)]
    assert len(opened) == 4096
    journal.draw(1, 5)
    journal.close(1)
    assert journal.open(9999)
    drawn = journals.drawn("g")
    assert drawn is not None
    assert (drawn.get(1), drawn[9999]) == (None, 0)


def test_journals_of_a_former_daemon_are_removed(journals: Journals, tmp_path: Path) -> None:
    journals.remove_all()
    os.close(journals.create("one"))
    os.close(journals.create("two"))
    journals.remove_all()
    assert list((tmp_path / "leases").iterdir()) == []
