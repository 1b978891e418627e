"""Several daemons on one PostgreSQL: what is shared, what is not, and that budgets hold over all of them."""

import asyncio
import signal
from pathlib import Path

import pytest
from tests.system.postgres import Server
from tests.unit.store.test_budgets_store import done, wanted
from tests.unit.store.test_sql_store import a_grant, a_sandbox, a_secret, a_template

from corral.errors import Conflict, HostError, UpstreamFailed
from corral.model.budget import Window
from corral.model.ids import DEFAULT_TENANT
from corral.store.store import SqlStore


async def _open(server: Server, tmp_path: Path, instance: str) -> SqlStore:
    """Daemons that share a database share its key."""
    return await SqlStore.open(server.database(str(tmp_path)), tmp_path / "key", instance=instance)


async def test_each_has_its_own_sandboxes_and_templates_and_all_have_one_vault(
    server: Server, tmp_path: Path
) -> None:
    one, two = await _open(server, tmp_path, "one"), await _open(server, tmp_path, "two")
    await one.add_template(a_template(1))
    await two.add_template(a_template(2))  # of the same name
    await one.add_sandbox(a_sandbox(1, "first"), a_grant(a_sandbox(1, "first")))
    assert [item.spec.name for item in await one.sandboxes()] == ["first"]
    assert await two.sandboxes() == []
    assert [item.id for item in await one.templates()] == [a_template(1).id]
    assert await two.layers_in_use() == set(a_template(2).layers)
    box = a_sandbox(2, "first")
    with pytest.raises(Conflict, match="taken"):
        await two.add_sandbox(box, a_grant(box))
    await one.put_secret(a_secret(), a_sandbox().changed_at)
    assert [item.name for item in await two.secrets(DEFAULT_TENANT)] == ["anthropic"]
    assert await one.tenant(DEFAULT_TENANT) == await two.tenant(DEFAULT_TENANT)
    await one.close()
    await two.close()


async def test_a_cap_holds_over_calls_of_both(server: Server, tmp_path: Path) -> None:
    """G-212: all of a tenant's calls together, wherever they are made."""
    stores = [await _open(server, tmp_path, name) for name in ("one", "two", "three")]
    await stores[0].set_caps(DEFAULT_TENANT, None, {Window.TOTAL: 1000})
    given: list[bool] = []

    async def call(store: SqlStore) -> None:
        entry = wanted(10)
        (outcome,) = await store.apply_ledger([entry], None)
        given.append(outcome.refusal is None)
        if outcome.refusal is None:
            await store.apply_ledger([done(entry, 10)], None)

    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(call(stores[number % 3]))
    assert given.count(True) == 100
    (ever, _) = await stores[1].balances(DEFAULT_TENANT, None, None)
    assert (ever.spent, ever.reserved) == (1000, 0)
    for store in stores:
        await store.close()


async def test_one_that_starts_does_not_settle_what_the_other_has_under_way(
    server: Server, tmp_path: Path
) -> None:
    one, two = await _open(server, tmp_path, "one"), await _open(server, tmp_path, "two")
    entry = wanted(10)
    await one.apply_ledger([entry], None)
    assert await two.abandon_reservations(None, None) == []
    assert len(await one.abandon_reservations(None, None)) == 1
    await one.close()
    await two.close()


async def test_the_audit_log_of_all_is_one_chain(server: Server, tmp_path: Path) -> None:
    stores = [await _open(server, tmp_path, name) for name in ("one", "two")]
    async with asyncio.TaskGroup() as tasks:
        for number in range(60):
            tasks.create_task(stores[number % 2].audit(DEFAULT_TENANT, None, "exec", {"n": str(number)}))
    check = await stores[0].verify_audit()
    assert (check.records, check.fault) == (60, "")
    for store in stores:
        await store.close()


async def test_the_same_installation_twice_is_refused(server: Server, tmp_path: Path) -> None:
    """A copy of a data directory must not take up the sandboxes of the original."""
    one = await _open(server, tmp_path, "one")
    with pytest.raises(Conflict, match="same installation"):
        await _open(server, tmp_path, "one")
    await one.close()
    await (await _open(server, tmp_path, "one")).close()


async def test_an_installation_stays_its_daemons_own_when_the_server_was_restarted(
    server: Server, tmp_path: Path
) -> None:
    """Its lock went with the connection, and is taken again with the next one."""
    one = await _open(server, tmp_path, "one")
    server.stop(signal.SIGQUIT)
    with pytest.raises(UpstreamFailed, match="PostgreSQL does not serve Corral") as refused:
        await one.sandboxes()
    assert "CORRAL_DATABASE_URL" in refused.value.hint
    server.start()
    assert await one.sandboxes() == []
    with pytest.raises(Conflict, match="same installation"):
        await _open(server, tmp_path, "one")
    await one.close()


async def test_a_daemon_is_not_kept_out_by_a_connection_of_its_own_that_only_the_server_still_has(
    server: Server, tmp_path: Path
) -> None:
    """As after a network failed: the former connection is there, and holds the installation's lock, and nobody uses it."""
    one = await _open(server, tmp_path, "one")
    assert one._database._engine is not None
    lost = one._database._engine.raw_connection()
    lost.detach()
    assert await one.sandboxes() == []
    lost.close()
    await one.close()


async def test_a_name_of_another_host_is_not_free(server: Server, tmp_path: Path) -> None:
    one, two = await _open(server, tmp_path, "one"), await _open(server, tmp_path, "two")
    await one.add_template(a_template(1))
    await one.add_sandbox(a_sandbox(1, "first"), a_grant(a_sandbox(1, "first")))
    assert [await two.is_free_name(DEFAULT_TENANT, name) for name in ("first", "second")] == [False, True]
    await one.close()
    await two.close()


async def test_another_key_is_refused_and_no_password_is_told(server: Server, tmp_path: Path) -> None:
    await (await _open(server, tmp_path, "one")).close()
    (tmp_path / "other").mkdir()
    with pytest.raises(HostError, match="key"):
        await SqlStore.open(server.database(str(tmp_path)), tmp_path / "other" / "key", instance="two")
    wrong = f"postgresql://corral:canary-7f3a@/nowhere?host={tmp_path}"
    with pytest.raises(HostError) as refused:
        await SqlStore.open(wrong, tmp_path / "key")
    assert "canary" not in refused.value.message + refused.value.hint
