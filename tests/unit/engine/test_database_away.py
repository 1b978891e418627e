"""A database that is away for a time, or that other hosts use too: what the engine does without a restart."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.engine.test_sandboxes import World, world
from tests.unit.store.test_sql_store import a_grant, a_sandbox, a_template

from corral.engine.plan import CreateRequest
from corral.engine.pools import Pools
from corral.errors import Conflict, UpstreamFailed
from corral.model.ids import DEFAULT_TENANT
from corral.model.lifecycle import State
from corral.store.store import SqlStore

__all__ = ["world"]


class Away:
    """Calls of the store that fail as long as `now` is true."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *methods: str) -> None:
        self.now = True
        for method in methods:
            monkeypatch.setattr(world.store, method, self._unless_away(getattr(world.store, method)))
        monkeypatch.setattr("corral.engine.running.AGAIN_SECONDS", 0.0)

    def _unless_away(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def refused_or_done(*args: object, **kwargs: object) -> object:
            if self.now:
                raise UpstreamFailed("the database is away")
            return await call(*args, **kwargs)

        return refused_or_done


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - nothing else is waited for
            await asyncio.sleep(0)


async def test_a_sandbox_that_ended_meanwhile_is_known_to_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.engine()
    sandbox = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    away = Away(world, monkeypatch, "set_state")
    world.driver.end(sandbox.id)
    await until(lambda: not world.gateway.attached)
    assert engine.get(DEFAULT_TENANT, "one").state is State.RUNNING
    away.now = False
    await until(lambda: engine.get(DEFAULT_TENANT, "one").state is State.STOPPED)


async def test_a_sandbox_whose_removal_was_cut_is_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    away = Away(world, monkeypatch, "remove_sandbox")
    with pytest.raises(UpstreamFailed):
        await engine.remove(DEFAULT_TENANT, "one")
    assert not world.driver.state
    away.now = False
    await until(lambda: not engine.list(DEFAULT_TENANT))
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))


async def test_pools_are_filled_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools(
        store=world.store,
        sandboxes=world.engine(),
        templates=world.templates,
        registry=world.registry,
        clock=world.clock,
        usable=world.driver.runtimes,
    )
    await pools.set(DEFAULT_TENANT, "base", 1)
    away = Away(world, monkeypatch, "templates")
    running = world.tasks.start(pools.run(), name="warm pools")
    await asyncio.sleep(0.05)
    away.now = False
    pools.wake()
    await until(lambda: running.done() or pools.statuses(DEFAULT_TENANT)[0].ready)
    assert not running.done()


async def test_a_name_that_was_made_up_is_made_up_again_where_another_host_has_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    elsewhere = await SqlStore.open(f"sqlite:///{tmp_path}/db", tmp_path / "key", instance="elsewhere")
    await elsewhere.add_template(a_template(1))
    await elsewhere.add_sandbox(a_sandbox(1, "red-fox"), a_grant(a_sandbox(1, "red-fox")))
    await elsewhere.close()
    slugs = iter(("red-fox", "blue-fox"))
    monkeypatch.setattr("corral.engine.creation.generate_slug", lambda _: next(slugs))
    assert (await engine.create(DEFAULT_TENANT, CreateRequest())).spec.name == "blue-fox"
    with pytest.raises(Conflict, match="of another host"):
        await engine.create(DEFAULT_TENANT, CreateRequest(name="red-fox"))
