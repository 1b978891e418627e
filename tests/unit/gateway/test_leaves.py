"""Certificates that the gateway makes for hosts: kept, bounded, and made beside its other work."""

import asyncio
import threading
from pathlib import Path

import pytest

from corral.daemon.authority import load_authority
from corral.gateway import authority as module
from corral.gateway.authority import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    file = load_authority(tmp_path / "authority.pem", "test")
    return Authority(file.certificate, file.key)


async def test_a_leaf_is_made_once_for_all_who_wait_and_kept(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-120."""
    made: list[str] = []
    real = authority._leaf

    def leaf(host: str) -> object:
        made.append(host)
        return real(host)

    monkeypatch.setattr(authority, "_leaf", leaf)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(authority.context("a.test")) for _ in range(20)]
    assert {id(one.result()) for one in waiting} == {id(await authority.context("a.test"))}
    assert made == ["a.test"]
    assert authority.has("a.test")


async def test_while_one_is_made_others_are_served(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-120: it holds up neither other hosts nor what is being done."""
    free = threading.Event()
    real = authority._leaf

    def leaf(host: str) -> object:
        if host == "slow.test":
            assert free.wait(30)
        return real(host)

    monkeypatch.setattr(authority, "_leaf", leaf)
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(authority.context("slow.test"))
        await asyncio.sleep(0)
        try:
            await authority.context("quick.test")
            assert not slow.done()
        finally:
            free.set()
    assert authority.has("slow.test")


async def test_no_more_are_kept_than_there_is_room_for(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-120: what was not used for longest goes first."""
    monkeypatch.setattr(module, "MAX_LEAVES", 3)
    for host in ("a.test", "b.test", "c.test", "a.test", "d.test", "e.test"):
        await authority.context(host)
    assert [authority.has(f"{name}.test") for name in "abcde"] == [True, False, False, True, True]
    assert len(authority._leaves) == 3


async def test_one_that_cannot_be_made_is_tried_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-120, G-342: a failure is told to who waits, and kept for nobody."""
    real = authority._leaf

    def fails(_: str) -> object:
        raise OSError("no randomness")

    monkeypatch.setattr(authority, "_leaf", fails)
    with pytest.raises(OSError, match="no randomness"):
        await authority.context("a.test")
    monkeypatch.setattr(authority, "_leaf", real)
    await authority.context("a.test")
    assert authority.has("a.test")
