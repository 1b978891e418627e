"""Grants of sandboxes: renewed, changed and revoked; what the gateway and later processes are told."""

from dataclasses import replace

import pytest
from tests.unit.engine.test_sandboxes import World, world

from corral.engine.grants import Grants
from corral.engine.plan import CreateRequest
from corral.engine.ports import OpenedSecret
from corral.engine.vault import Secrets
from corral.errors import Conflict, InvalidInput, NotFound
from corral.model.grants import Alias, Grant, ModelLayer, ModelRules
from corral.model.ids import DEFAULT_TENANT, SandboxId
from corral.model.sandbox import Sandbox
from corral.model.secrets import Provider, Secret
from corral.policy.tokens import token_matches

__all__ = ["world"]


class Granted:
    """A sandbox with a grant for two secrets, and the use case."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.engine = world.engine()
        secrets = Secrets(world.store, world.gateway, world.clock)
        self.refreshed: list[SandboxId] = []
        self.reopened: list[SandboxId] = []
        self.grants = Grants(
            world.store, world.gateway, world.registry, secrets, world.clock, self._refresh, self._reopen
        )

    async def _reopen(self, sandbox: SandboxId) -> None:
        self.reopened.append(sandbox)

    async def _refresh(self, sandbox: Sandbox) -> None:
        self.refreshed.append(sandbox.id)
        raise Conflict("it does not run", "start it")

    async def make(self) -> Sandbox:
        for name in ("anthropic", "openai"):
            secret = OpenedSecret(DEFAULT_TENANT, name, Provider(name), "https://h", Secret("value-0123"))
            await self.world.store.put_secret(secret, self.world.clock.now())
        return await self.engine.create(
            DEFAULT_TENANT, CreateRequest(name="box", secrets=("anthropic", "openai"), expires=60)
        )

    async def told(self, sandbox: Sandbox) -> Grant:
        """The grant by which the gateway goes, which is the store's."""
        grant = self.world.gateway.attached[sandbox.id].grant
        assert grant == await self.world.store.grant_of(sandbox.id)
        return grant


async def test_a_renewed_grant_has_another_token_and_the_former_one_for_a_while(world: World) -> None:
    """G-15, G-21: processes that start from now on get the new one."""
    granted = Granted(world)
    box = await granted.make()
    old = await granted.told(box)
    await granted.grants.renew(DEFAULT_TENANT, "box", overlap=30)
    new = await granted.told(box)
    token = (await world.store.derive_token(new.id)).reveal()
    assert token_matches(token, new.token_hash)
    assert new.token_hash != old.token_hash == new.former_hash
    assert new.former_until is not None
    assert (new.former_until - world.clock.now()).total_seconds() == pytest.approx(30, abs=5)
    assert (new.expires_at, new.secrets) == (old.expires_at, old.secrets)
    assert granted.refreshed == [box.id]


async def test_a_dead_token_is_not_good_again(world: World) -> None:
    """G-18, G-333: after a revocation or the end, renewal gives no overlap; without a new end there is none."""
    granted = Granted(world)
    box = await granted.make()
    await granted.grants.revoke(DEFAULT_TENANT, "box")
    revoked = await granted.told(box)
    assert revoked.state(world.clock.now()) == "revoked"
    await granted.grants.renew(DEFAULT_TENANT, "box")
    renewed = await granted.told(box)
    assert (renewed.former_hash, renewed.expires_at, renewed.state(world.clock.now())) == ("", None, "good")


async def test_each_run_of_a_sandbox_has_a_token_of_its_own_and_a_revoked_grant_stays_so(
    world: World,
) -> None:
    """G-15."""
    granted = Granted(world)
    box = await granted.make()
    first = await granted.told(box)
    await granted.engine.stop(DEFAULT_TENANT, "box", 0)
    await granted.engine.start(DEFAULT_TENANT, "box")
    second = await granted.told(box)
    assert second.token_hash != first.token_hash
    assert (second.former_hash, second.expires_at) == ("", first.expires_at)
    await granted.grants.revoke(DEFAULT_TENANT, "box")
    await granted.engine.stop(DEFAULT_TENANT, "box", 0)
    await granted.engine.start(DEFAULT_TENANT, "box")
    assert (await granted.told(box)).revoked_at is not None


async def test_what_a_grant_covers_can_be_changed(world: World) -> None:
    """G-17, G-221."""
    granted = Granted(world)
    box = await granted.make()
    rules = ModelRules(("claude-*",), (Alias("opus", "haiku"),))
    await granted.grants.change(DEFAULT_TENANT, "box", secrets=["openai"], models=rules, endless=True)
    grant = await granted.told(box)
    assert (grant.secrets, grant.models, grant.expires_at) == (("openai",), rules, None)
    await granted.grants.revoke(DEFAULT_TENANT, "box", ["openai"])
    assert (await granted.told(box)).secrets == ()
    for change in ({"secrets": ["nothing"]}, {"models": ModelRules(("a b",))}, {"expires": 0}):
        with pytest.raises((NotFound, InvalidInput)):
            await granted.grants.change(DEFAULT_TENANT, "box", **change)
    with pytest.raises(NotFound):
        await granted.grants.revoke(DEFAULT_TENANT, "box", ["openai"])
    assert (await granted.told(box)).models == rules


async def test_what_a_template_allows_stays_under_a_grant_that_is_changed(world: World) -> None:
    granted = Granted(world)
    box = await granted.make()
    under = (ModelLayer(("claude-haiku-*",)),)
    grant = await world.store.grant_of(box.id)
    await world.store.set_grant(replace(grant, models=replace(grant.models, under=under)))
    await granted.grants.change(DEFAULT_TENANT, "box", models=ModelRules(("*",)))
    assert (await granted.told(box)).models == ModelRules(("*",), under=under)


async def test_the_hosts_of_secrets_open_and_close_with_the_grant(world: World) -> None:
    """G-17, G-333: what a sandbox may reach for its secrets follows what its grant covers now."""
    granted = Granted(world)
    box = await granted.make()
    changed, _ = await granted.grants.change(DEFAULT_TENANT, "box", secrets=["openai"])
    assert changed.spec.secrets == ("openai",)
    revoked, _ = await granted.grants.revoke(DEFAULT_TENANT, "box", ["openai"])
    assert revoked.spec.secrets == ()
    assert granted.reopened == [box.id, box.id]


async def test_what_a_new_sandbox_is_given_is_on_record(world: World) -> None:
    """G-322: who may use what, from its first moment on; what has nothing is not worth a record."""
    granted = Granted(world)
    box = await granted.make()
    opened = CreateRequest(name="open", allow=("GET pypi.example/simple/**", "db.internal:5432"))
    await granted.engine.create(DEFAULT_TENANT, opened)
    await granted.engine.create(DEFAULT_TENANT, CreateRequest(name="closed"))
    records = [
        each for each in await world.store.audit_entries(DEFAULT_TENANT) if each.kind == "grant.create"
    ]
    secrets, hosts = records
    assert (secrets.sandbox, secrets.detail["secrets"]) == (box.id, "anthropic,openai")
    assert secrets.detail["expires_at"]
    assert hosts.detail["allow"] == "GET pypi.example/simple/** db.internal:5432"
    assert (await world.store.verify_audit()).fault == ""
