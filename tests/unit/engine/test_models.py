"""Tenants' rules for models, by the engine's use case."""

from pathlib import Path

import pytest

from corral.engine.models import Models
from corral.errors import InvalidInput
from corral.model.grants import ModelRules, TenantModels
from corral.model.ids import TenantId
from corral.store.store import SqlStore
from corral.testing.fakes import FakeGateway

ACME, OTHER = TenantId("acme"), TenantId("other")


async def test_a_change_is_kept_on_record_and_told_with_the_others(tmp_path: Path) -> None:
    store, gateway = await SqlStore.open(f"sqlite:///{tmp_path}/db", tmp_path / "key"), FakeGateway()
    models = Models(store, gateway)
    assert await models.of(ACME) == ModelRules()
    await models.change(OTHER, ModelRules(("o3",)))
    await models.change(ACME, ModelRules(("claude-*",)))
    with pytest.raises(InvalidInput):
        await models.change(ACME, ModelRules(("bad name",)))
    told = [TenantModels(ACME, ModelRules(("claude-*",))), TenantModels(OTHER, ModelRules(("o3",)))]
    assert gateway.models == told
    assert await models.of(ACME) == ModelRules(("claude-*",))
    again = FakeGateway()
    await Models(store, again).publish()
    assert again.models == told
    records = await store.audit_entries(ACME)
    assert [(record.kind, record.detail) for record in records] == [("models.set", {"models": "claude-*"})]
    await store.close()


async def test_what_another_daemon_changed_is_told_the_gateway_once(tmp_path: Path) -> None:
    store, gateway = await SqlStore.open(f"sqlite:///{tmp_path}/db", tmp_path / "key"), FakeGateway()
    models = Models(store, gateway)
    await models.publish()
    await Models(store, FakeGateway()).change(ACME, ModelRules(("claude-*",)))
    await models.publish()
    assert gateway.models == [TenantModels(ACME, ModelRules(("claude-*",)))]
    gateway.models = []
    await models.publish()
    assert gateway.models == []
    await store.close()
