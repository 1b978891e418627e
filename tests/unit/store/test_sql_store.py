"""The SQL store: what goes in comes out, and nothing else does."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.unit.store import where

from corral.daemon.clock import SystemClock
from corral.engine.acting import act_for
from corral.engine.fingerprint import fingerprint
from corral.engine.keys import ApiKeys
from corral.engine.ports import ModelPrice, OpenedSecret, Store
from corral.errors import Conflict, DiskFull, HostError, InvalidInput, NoCapacity, NotFound, Unsupported
from corral.model.approval import Approval, ApprovalId, Kind, Permission, Question, Scope, Status
from corral.model.audit import AuditItem
from corral.model.budget import Outcome, Rate, Reservation, Settlement, Window
from corral.model.egress import EgressPolicy, HostRule
from corral.model.grants import Alias, Grant, ModelRules, TenantModels
from corral.model.ids import DEFAULT_TENANT, GrantId, LayerDigest, SandboxId, TemplateId, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Isolation, Limits, Sandbox, SandboxSpec
from corral.model.secrets import Identity, Provider, Secret
from corral.model.template import Template, TemplateConfig
from corral.model.usage import Tokens, Usage, UsageTotal
from corral.store import audit, schema
from corral.store import store as store_module
from corral.store.database import Database
from corral.store.store import SqlStore
from corral.store.templates import KEPT_ASSIGNMENTS

NOW = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
NUMBERS = itertools.count(1)
CANARY = "canary-7f3a9c51e2b84d60"
OTHER = TenantId("other")


def a_template(number: int = 1, name: str = "base", tenant: TenantId = DEFAULT_TENANT) -> Template:
    return Template(
        id=TemplateId(f"{number:016x}"),
        tenant=tenant,
        name=name,
        layers=(LayerDigest(f"sha256:{0:064x}"), LayerDigest(f"sha256:{number:064x}")),
        config=TemplateConfig(env={"PATH": "/bin"}, start_command=("sleep", "1")),
        size=123,
        created_at=NOW + timedelta(microseconds=number),
        source="debian",
    )


def a_sandbox(number: int = 1, name: str = "brave-otter", tenant: TenantId = DEFAULT_TENANT) -> Sandbox:
    spec = SandboxSpec(
        id=SandboxId(f"{number:016x}"),
        tenant=tenant,
        name=name,
        template=TemplateId(f"{1:016x}"),
        isolation=Isolation.GVISOR,
        runtime="runsc",
        limits=Limits(cpus=2),
        env={"A": "ü\udce9\n", "B": ""},
        labels={"team/x": "1"},
        user="user",
        workdir="/home/user",
        egress=EgressPolicy((HostRule("*.example.org", (443,)),), ("10.0.0.0/8",)),
        secrets=("anthropic",),
        created_at=NOW + timedelta(microseconds=number),
        ttl=60,
        agent="claude",
    )
    return Sandbox(spec, State.CREATING, NOW)


def a_grant(box: Sandbox) -> Grant:
    return Grant(
        id=GrantId(f"g{box.id}"),
        tenant=box.spec.tenant,
        sandbox=box.id,
        token_hash=f"{int(box.id, 16):064x}",
        secrets=("anthropic", "openai"),
        created_at=NOW,
    )


def a_secret(name: str = "anthropic", tenant: str = "default", value: str = CANARY) -> OpenedSecret:
    return OpenedSecret(TenantId(tenant), name, Provider.ANTHROPIC, "https://api.example", Secret(value))


def a_usage(model: str = "m1", cost: int = 7, **changes: Any) -> Usage:
    usage = Usage(
        tenant=DEFAULT_TENANT,
        sandbox=a_sandbox().id,
        secret="anthropic",
        provider="anthropic",
        model=model,
        tokens=Tokens(1, 2, 3, 4),
        cost=cost,
        assumed=False,
        status=200,
        duration_ms=12,
        at=NOW,
    )
    return replace(usage, **changes)


async def record(store: SqlStore, usage: Usage) -> None:
    """A call from its reservation to its settlement."""
    number = next(NUMBERS)
    wanted = Reservation(
        "gateway", number, usage.tenant, usage.sandbox, usage.cost, usage.at, usage.secret, usage.provider,
        usage.model, usage.path,
    )  # fmt: skip
    assert await store.apply_ledger([wanted, Settlement("gateway", number, usage)], None) == [Outcome()] * 2


async def open_store(directory: Path, **options: Any) -> SqlStore:
    return await SqlStore.open(where.url_of(directory), directory / "key", **options)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await open_store(tmp_path, now=lambda: NOW)
    yield opened
    await opened.close()


async def test_it_is_the_engines_store(store: SqlStore) -> None:
    port: Store = store
    assert await port.sandboxes() == []


# tenants


async def test_tenants_get_ranges_that_never_overlap(store: SqlStore) -> None:
    first = await store.tenant(DEFAULT_TENANT)
    second = await store.tenant(OTHER)
    assert (first.uid_base, second.uid_base) == (100_000, 165_536)
    assert await store.tenant(DEFAULT_TENANT) == first


async def test_first_range_is_configurable_and_ranges_end(tmp_path: Path) -> None:
    store = await open_store(tmp_path, uid_start=2**32 - 2 * 65_536)
    try:
        assert (await store.tenant(DEFAULT_TENANT)).uid_base == 2**32 - 2 * 65_536
        with pytest.raises(NoCapacity):
            await store.tenant(OTHER)  # its last uid would be 2**32 - 1, which means "none"
    finally:
        await store.close()


# sandboxes and grants


async def test_sandbox_and_grant_survive_reopening(tmp_path: Path) -> None:
    box = a_sandbox()
    store = await open_store(tmp_path)
    await store.add_template(a_template())
    await store.add_sandbox(box, a_grant(box))
    await store.close()
    store = await open_store(tmp_path)
    try:
        assert await store.sandboxes() == [box]
        assert await store.grant_of(box.id) == a_grant(box)
    finally:
        await store.close()


async def test_states_change_and_nothing_else(store: SqlStore) -> None:
    await store.add_template(a_template())
    box = a_sandbox()
    await store.add_sandbox(box, a_grant(box))
    stopped = box.with_state(State.STOPPED, NOW + timedelta(seconds=1), "exited", 137)
    await store.set_state(stopped)
    assert await store.sandboxes() == [stopped]
    with pytest.raises(NotFound):
        await store.set_state(a_sandbox(2, "absent"))


async def test_ttl_and_egress_can_change(store: SqlStore) -> None:
    await store.add_template(a_template())
    box = a_sandbox()
    await store.add_sandbox(box, a_grant(box))
    spec = replace(box.spec, ttl=None, egress=EgressPolicy())
    await store.set_spec(spec)
    assert await store.sandboxes() == [replace(box, spec=spec)]
    with pytest.raises(NotFound):
        await store.set_spec(a_sandbox(2, "absent").spec)


async def test_names_are_unique_per_tenant(store: SqlStore) -> None:
    await store.add_template(a_template())
    first = a_sandbox(1)
    await store.add_sandbox(first, a_grant(first))
    second = a_sandbox(2)
    with pytest.raises(Conflict, match=first.id):
        await store.add_sandbox(second, a_grant(second))
    elsewhere = a_sandbox(3, tenant=OTHER)
    await store.add_sandbox(elsewhere, a_grant(elsewhere))
    assert await store.sandboxes(DEFAULT_TENANT) == [first]
    assert await store.sandboxes() == [first, elsewhere]


async def test_a_taken_id_adds_nothing(store: SqlStore) -> None:
    await store.add_template(a_template())
    first = a_sandbox(1)
    await store.add_sandbox(first, a_grant(first))
    with pytest.raises(Conflict):
        await store.add_sandbox(a_sandbox(2, "swift-elk"), a_grant(first))
    assert await store.sandboxes() == [first]


async def test_a_sandbox_needs_its_template(store: SqlStore) -> None:
    with pytest.raises(NotFound, match="template"):
        await store.add_sandbox(a_sandbox(), a_grant(a_sandbox()))


async def test_removal_takes_the_grant_and_leaves_the_usage(store: SqlStore) -> None:
    await store.add_template(a_template())
    box = a_sandbox()
    await store.add_sandbox(box, a_grant(box))
    await record(store, a_usage())
    await store.remove_sandbox(box.id)
    await store.remove_sandbox(box.id)
    assert await store.sandboxes() == []
    with pytest.raises(NotFound):
        await store.grant_of(box.id)
    assert [total.calls for total in await store.usage(box.id)] == [1]


async def test_sandboxes_that_are_long_gone_are_forgotten_with_what_is_only_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_FORGET_AT_ONCE", 2)
    now = NOW
    store = await open_store(tmp_path, now=lambda: now)
    await store.add_template(a_template())
    boxes = [replace(a_sandbox(number, f"box-{number}"), state=State.STOPPED) for number in range(1, 6)]
    for box in boxes:
        await store.add_sandbox(box, a_grant(box))
        await record(store, a_usage(sandbox=box.id))
        for scope in (Scope.ONCE, Scope.ALWAYS):
            id = ApprovalId(f"{box.id[-1]}{scope.value}")
            question = Question(Kind.HOST, "a host", (), 60)
            asked = Approval(
                id, DEFAULT_TENANT, box.id, box.spec.name, question, NOW, NOW, Status.ALLOWED, scope
            )
            await store.add_approval(asked)
            if scope is Scope.ALWAYS:
                await store.settle_approval(
                    asked, Permission(id, DEFAULT_TENANT, None, Kind.HOST, "example.com", None)
                )
    for box in boxes[:4]:  # one is still there
        await store.remove_sandbox(box.id)
        now += timedelta(days=1)
    total = (await store.balances(DEFAULT_TENANT, None, None))[0].spent

    assert await store.forget_receipts(NOW + timedelta(days=2, hours=1)) == 3
    assert await store.forget_receipts(NOW + timedelta(days=2, hours=1)) == 0

    for box in boxes:
        there = box not in boxes[:3]
        assert [total.calls for total in await store.usage(box.id)] == [1] * there
        assert (await store.balances(DEFAULT_TENANT, box.id, None))[0].spent == 7 * there
        assert len(await store.approvals(DEFAULT_TENANT, box.id)) == 1 + there
        remembered = await store.past_sandbox(DEFAULT_TENANT, box.id)
        assert (remembered is not None) == (box is boxes[3])
    assert len(await store.permissions()) == 5
    assert (await store.balances(DEFAULT_TENANT, None, None))[0].spent == total == 35
    assert (await store.verify_audit()).fault == ""
    await store.close()


# templates


async def test_a_replaced_template_lives_as_long_as_its_sandboxes(store: SqlStore) -> None:
    old, new = a_template(1), a_template(2)
    await store.add_template(old)
    box = a_sandbox()
    await store.add_sandbox(box, a_grant(box))
    await store.add_template(new)
    assert await store.templates() == [new]
    assert await store.template(old.id) == old
    assert await store.layers_in_use() == {*old.layers, *new.layers}
    await store.remove_sandbox(box.id)
    with pytest.raises(NotFound):
        await store.template(old.id)
    assert await store.layers_in_use() == set(new.layers)


async def test_a_removed_template_is_forgotten_once_unused(store: SqlStore) -> None:
    await store.add_template(a_template())
    box = a_sandbox()
    await store.add_sandbox(box, a_grant(box))
    await store.remove_template(a_template().id)
    assert await store.templates() == []
    assert await store.template(a_template().id) == a_template()
    await store.remove_sandbox(box.id)
    await store.remove_template(a_template().id)
    assert await store.layers_in_use() == set()


async def test_templates_of_tenants_are_apart(store: SqlStore) -> None:
    mine, theirs = a_template(1), a_template(2, tenant=OTHER)
    await store.add_template(mine)
    await store.add_template(theirs)
    assert await store.templates(OTHER) == [theirs]
    assert await store.templates() == [mine, theirs]


def named(number: int, name: str = "app:v1") -> Template:
    config = TemplateConfig(limits=Limits(cpus=2))
    return replace(a_template(number, name), layers=(LayerDigest(f"sha256:{number:064x}"),), config=config)


async def test_what_a_name_stood_for_is_kept_until_it_is_removed(store: SqlStore) -> None:
    for template in (named(1), named(2), named(3, "app"), named(4, "app_2"), named(5, "other:v1")):
        await store.add_template(template)
    found = await store.assignments(DEFAULT_TENANT, "app")
    assert [(item.template, item.name, item.at) for item in found] == [
        (item.id, item.name, item.created_at) for item in (named(1), named(2), named(3, "app"))
    ]
    assert len({item.build for item in found}) == 3
    assert await store.assignments(OTHER, "app") == []
    await store.add_hidden_template(replace(named(6), id=TemplateId("f" * 16)))
    await store.remove_template(TemplateId("f" * 16))  # which never had the name
    assert await store.assignments(DEFAULT_TENANT, "app") == found
    await store.remove_template(named(2).id)
    assert await store.assignments(DEFAULT_TENANT, "app") == found[2:]


async def test_one_build_under_several_names_is_one_build(store: SqlStore) -> None:
    first, again = (
        named(1),
        replace(named(1, "app:v2"), id=TemplateId("e" * 16), created_at=NOW + timedelta(1)),
    )
    for template in (first, again, named(3)):
        await store.add_template(template)
    one, other, two = await store.assignments(DEFAULT_TENANT, "app")
    assert (one.name, other.name, two.name) == ("app:v1", "app:v1", "app:v2")
    assert one.build == two.build != other.build
    assert two.built_at == one.built_at == first.created_at
    assert two.at == again.created_at


async def test_a_build_that_was_read_back_is_the_same_build(store: SqlStore) -> None:
    config = TemplateConfig(env={"B": "", "A": "1"}, limits=Limits(cpus=2, memory=1 << 30))
    await store.add_template(replace(named(1), config=config))
    read = await store.template(named(1).id)
    assert fingerprint(read) == fingerprint(replace(named(1), config=config))
    assert fingerprint(read) != fingerprint(replace(read, config=replace(config, env={"A": "1"})))
    assert fingerprint(read) != fingerprint(replace(read, config=replace(config, sudo=False)))


async def test_a_template_that_was_shortened_is_the_one_that_it_was(store: SqlStore) -> None:
    await store.add_template(named(1))
    await store.add_template(named(2))
    former = await store.assignments(DEFAULT_TENANT, "app")
    shorter = replace(named(3), created_at=named(2).created_at)
    await store.add_template(shorter, shortened=named(2).id)
    first, last = await store.assignments(DEFAULT_TENANT, "app")
    assert first == former[0]
    assert replace(last, build="", template=former[1].template) == replace(former[1], build="")
    assert (last.template, last.build) == (shorter.id, fingerprint(shorter))


async def test_of_each_name_the_last_hundred_are_kept(store: SqlStore) -> None:
    await store.add_template(named(1000, "app:v2"))
    for number in range(1, KEPT_ASSIGNMENTS + 3):
        await store.add_template(named(number))
    found = await store.assignments(DEFAULT_TENANT, "app:v1")
    assert [item.template for item in found] == [
        named(number).id for number in range(3, KEPT_ASSIGNMENTS + 3)
    ]
    assert len(await store.assignments(DEFAULT_TENANT, "app:v2")) == 1
    past = replace(named(2000), created_at=NOW - timedelta(1))  # as after a clock was set back
    await store.add_template(past)
    found = await store.assignments(DEFAULT_TENANT, "app:v1")
    assert (len(found), found[0].template) == (KEPT_ASSIGNMENTS, past.id)


async def test_names_of_an_older_schema_stand_for_what_they_stood_for(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    one, same = named(1), replace(named(1, "app"), id=TemplateId("e" * 16), created_at=NOW + timedelta(1))
    box = a_sandbox()
    for template in (one, same, named(3, "app:v2")):
        await store.add_template(template)
    await store.add_sandbox(box, a_grant(box))
    await store.add_template(named(4))  # the one that it replaces stays for the sandbox, and has no name
    wanted = [item for item in await store.assignments(DEFAULT_TENANT, "app") if item.template != one.id]
    await store.close()
    where.change(
        tmp_path,
        "DROP TABLE assignments",
        "UPDATE alembic_version SET version_num = '0013'",
    )
    again = await open_store(tmp_path)
    found = await again.assignments(DEFAULT_TENANT, "app")
    assert [replace(item, built_at=NOW) for item in found] == [replace(item, built_at=NOW) for item in wanted]
    assert {item.name: item.built_at for item in found}["app"] == same.created_at
    await again.close()


# secrets, tokens, API keys


async def test_secrets_round_trip_per_tenant(store: SqlStore) -> None:
    await store.put_secret(a_secret(), NOW)
    await store.put_secret(a_secret(tenant="other", value="the-others-value"), NOW)
    later = NOW + timedelta(hours=1)
    info = await store.put_secret(a_secret(value="a-new-value"), later)
    assert (info.created_at, info.updated_at) == (NOW, later)
    assert await store.secrets(DEFAULT_TENANT) == [info]
    opened = {(one.tenant, one.name): one.value.reveal() for one in (await store.open_secrets()).whole}
    assert opened == {("default", "anthropic"): "a-new-value", ("other", "anthropic"): "the-others-value"}


async def test_a_secret_can_be_removed_and_added_again(store: SqlStore) -> None:
    await store.put_secret(a_secret(), NOW)
    await store.remove_secret(DEFAULT_TENANT, "anthropic")
    with pytest.raises(NotFound):
        await store.remove_secret(DEFAULT_TENANT, "anthropic")
    await store.put_secret(a_secret(), NOW)
    assert [one.value.reveal() for one in (await store.open_secrets()).whole] == [CANARY]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE secrets SET name = 'openai' WHERE tenant = 'default'",
        "UPDATE secrets SET tenant = 'thief' WHERE tenant = 'default'",
        "UPDATE secrets SET base_url = 'https://thief.example' WHERE tenant = 'default'",
        "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE tenant = 'other')",
        "UPDATE secrets SET sealed = substr(sealed, 2) WHERE tenant = 'default'",
    ],
)
async def test_a_moved_secret_does_not_open(store: SqlStore, tmp_path: Path, change: str) -> None:
    await store.put_secret(a_secret(), NOW)
    await store.put_secret(a_secret(tenant="other", value="the-others-value"), NOW)
    tamper(tmp_path, change)
    opened = await store.open_secrets()
    assert "altered" in str(opened.broken[0].error)
    assert {"the-others-value", CANARY} >= {one.value.reveal() for one in opened.whole}
    assert len(opened.whole) + len(opened.broken) == 2
    for one in opened.whole:
        assert (one.tenant, one.value.reveal()) in ((DEFAULT_TENANT, CANARY), ("other", "the-others-value"))


async def test_tokens_are_stable_distinct_and_belong_to_the_installation(
    store: SqlStore, tmp_path: Path
) -> None:
    one = await store.derive_token(GrantId("g1"))
    assert one == await store.derive_token(GrantId("g1"))
    assert one != await store.derive_token(GrantId("g2"))
    assert one.reveal().startswith("sk-crl-")
    assert len(one.reveal()) == len("sk-crl-") + 43
    (tmp_path / "other").mkdir()
    stranger = await open_store(tmp_path / "other")
    try:
        assert await stranger.derive_token(GrantId("g1")) != one
    finally:
        await stranger.close()


async def test_api_keys(store: SqlStore) -> None:
    key, _ = await store.add_api_key(OTHER, "laptop", NOW)
    assert await store.identity_of_key(key.reveal()) == Identity(OTHER, (await store.api_keys(OTHER))[0])
    for wrong in (key.reveal()[:-1], "", "crl_\udc80", key.reveal() + "x"):
        assert await store.identity_of_key(wrong) is None


def all_bytes(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir())


def modes(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}


async def test_no_secret_reaches_a_file_or_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = await open_store(tmp_path)
    await store.put_secret(a_secret(), NOW)
    await store.open_secrets()
    token = await store.derive_token(GrantId("g1"))
    key, _ = await store.add_api_key(DEFAULT_TENANT, "laptop", NOW)
    await store.identity_of_key(key.reveal())
    held = all_bytes(tmp_path)
    await store.close()
    held += all_bytes(tmp_path)
    for value in (CANARY, token.reveal(), key.reveal()):
        assert value.encode() not in held
        assert value not in caplog.text


async def test_files_are_private(store: SqlStore, tmp_path: Path) -> None:
    await store.put_secret(a_secret(), NOW)
    assert modes(tmp_path) == dict.fromkeys(("corral.db", "corral.db-wal", "corral.db-shm", "key"), 0o600)


# the ledger


async def test_usage_is_summed_by_model(store: SqlStore) -> None:
    await record(store, a_usage("m1", 7))
    await record(store, a_usage("m1", 2**40, assumed=True))
    await record(store, a_usage("a0", 1))
    await record(store, a_usage("m1", 9, sandbox=SandboxId("f" * 16)))
    assert await store.usage(a_sandbox().id) == [
        UsageTotal("a0", 1, Tokens(1, 2, 3, 4), 1, assumed=False),
        UsageTotal("m1", 2, Tokens(2, 4, 6, 8), 2**40 + 7, assumed=True),
    ]
    assert await store.usage(SandboxId("0" * 16)) == []


async def test_a_hostile_model_name_is_recorded_all_the_same(store: SqlStore) -> None:
    await record(store, a_usage("m\0\udc80" + "x" * 5000, path="/\udcff"))
    (total,) = await store.usage(a_sandbox().id)
    assert total.model == "m\ufffd?" + "x" * 1021


async def test_a_price_replaces_the_former(store: SqlStore) -> None:
    await store.set_price(ModelPrice("local", "*", 1, 2, 3, 4))
    await store.set_price(ModelPrice("local", "*", 5, 6, 7, 8))
    await store.set_price(ModelPrice("local", "m", 0, 0, 0, 0))
    assert await store.prices() == [
        ModelPrice("local", "*", 5, 6, 7, 8),
        ModelPrice("local", "m", 0, 0, 0, 0),
    ]


async def test_a_tenants_models_replace_the_former(store: SqlStore) -> None:
    await store.set_tenant_models(TenantId("b"), ModelRules(("x-*",), (Alias("opus", "haiku"),)))
    await store.set_tenant_models(TenantId("a"), ModelRules(("none",)))
    await store.set_tenant_models(TenantId("a"), ModelRules(("y",)))
    assert await store.tenant_models() == [
        TenantModels(TenantId("a"), ModelRules(("y",))),
        TenantModels(TenantId("b"), ModelRules(("x-*",), (Alias("opus", "haiku"),))),
    ]


# the audit log


async def write_audit(store: SqlStore, count: int = 5) -> None:
    for number in range(count):
        await store.audit(DEFAULT_TENANT, a_sandbox().id, "exec", {"n": str(number), "b": "ü\udc80"})


tamper = where.change


async def test_a_clock_that_is_set_back_reorders_no_records(tmp_path: Path) -> None:
    """G-331."""
    times = iter([NOW, NOW - timedelta(days=1), NOW + timedelta(days=1)])
    store = await SqlStore.open(where.url_of(tmp_path), tmp_path / "key", now=lambda: next(times))
    for number in range(3):
        await store.audit(DEFAULT_TENANT, None, "exec", {"n": str(number)})
    entries = await store.audit_entries(DEFAULT_TENANT)
    assert [(entry.sequence, entry.detail["n"]) for entry in entries] == [(1, "0"), (2, "1"), (3, "2")]
    assert (await store.verify_audit()).fault == ""
    await store.close()


async def test_who_had_it_done_is_on_record(store: SqlStore) -> None:
    """G-322."""
    await store.audit(DEFAULT_TENANT, None, "secret.put", {"name": "a"})
    act_for("this host")
    await store.audit(DEFAULT_TENANT, None, "secret.put", {"name": "b"})
    details = [entry.detail for entry in await store.audit_entries(DEFAULT_TENANT)]
    assert details == [{"name": "a"}, {"name": "b", "actor": "this host"}]
    assert (await store.verify_audit()).fault == ""


@pytest.mark.parametrize(
    ("change", "look"),
    [
        (lambda s, r: s.put_secret(a_secret(), NOW, r), lambda s: s.secrets(DEFAULT_TENANT)),
        (lambda s, r: s.remove_secret(DEFAULT_TENANT, "kept", r), lambda s: s.secrets(DEFAULT_TENANT)),
        (lambda s, r: s.set_grant(replace(a_grant(a_sandbox()), secrets=()), r), lambda s: s.grant_of(a_sandbox().id)),
        (lambda s, r: s.set_spec(replace(a_sandbox().spec, ttl=7), r), lambda s: s.sandboxes()),
        (
            lambda s, r: s.set_caps(DEFAULT_TENANT, None, {Window.DAY: 5, Rate.CALLS: 7}, (Window.TOTAL,), r),
            lambda s: s.balances(DEFAULT_TENANT, None, None),
        ),
        (
            lambda s, r: s.set_tenant_models(DEFAULT_TENANT, ModelRules(("x",)), r),
            lambda s: s.tenant_models(),
        ),
        (lambda s, r: s.set_price(ModelPrice("kept", "m", 1, 2, 3, 4), r), lambda s: s.prices()),
        (
            lambda s, r: s.add_api_key(DEFAULT_TENANT, "one", NOW, lambda made: replace(r, detail={"id": made.id})),
            lambda s: s.api_keys(DEFAULT_TENANT),
        ),
        (
            lambda s, r: s.revoke_api_key(DEFAULT_TENANT, "laptop", lambda gone: replace(r, detail={"id": gone.id})),
            lambda s: s.api_keys(DEFAULT_TENANT),
        ),
    ],
)  # fmt: skip
async def test_a_change_and_its_record_are_one(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, change: Any, look: Any
) -> None:
    """G-322, G-326: what cannot be recorded does not happen, and what did is on record."""
    await store.add_template(a_template())
    await store.add_sandbox(a_sandbox(), a_grant(a_sandbox()))
    await store.put_secret(a_secret("kept"), NOW)
    await store.set_caps(DEFAULT_TENANT, None, {Window.TOTAL: 9})
    await store.add_api_key(DEFAULT_TENANT, "laptop", NOW)
    before = await look(store)
    record = AuditItem(DEFAULT_TENANT, None, "changed", {})

    with monkeypatch.context() as broken:
        broken.setattr(audit, "append_all", _full)
        with pytest.raises(DiskFull):
            await change(store, record)
    assert await look(store) == before
    assert await store.audit_entries(DEFAULT_TENANT) == []

    act_for("key 'laptop'")
    await change(store, record)
    assert await look(store) != before
    (entry,) = await store.audit_entries(DEFAULT_TENANT)
    assert (entry.kind, entry.detail["actor"]) == ("changed", "key 'laptop'")


def _full(*_: object) -> None:
    raise DiskFull("the disk is full", "make room")


async def test_a_change_that_is_refused_is_not_on_record(store: SqlStore) -> None:
    record = AuditItem(DEFAULT_TENANT, None, "secret.remove", {"name": "never-there"})
    with pytest.raises(NotFound):
        await store.remove_secret(DEFAULT_TENANT, "never-there", record)
    assert await store.audit_entries(DEFAULT_TENANT) == []


async def test_an_api_key_is_on_record_from_its_making_on(store: SqlStore) -> None:
    """G-322: what it did, too, by its id and label and never by itself."""
    keys = ApiKeys(store, SystemClock())
    key = await keys.create(OTHER, "ci")
    identity = await store.identity_of_key(key.reveal())
    assert identity is not None
    assert identity.key is not None
    act_for(identity.who)
    await store.audit(OTHER, None, "budget.set", {"cap": "5"})
    await keys.revoke(OTHER, "ci")
    entries = await store.audit_entries(OTHER)
    who = f"tenant {OTHER}, key ci ({identity.key.id})"
    named = {"label": "ci", "id": identity.key.id}
    assert [(entry.kind, entry.detail) for entry in entries] == [
        ("key.create", named),
        ("budget.set", {"cap": "5", "actor": who}),
        ("key.revoke", {**named, "actor": who}),
    ]
    assert key.reveal() not in repr(entries)


async def test_an_untouched_audit_log_verifies(store: SqlStore) -> None:
    assert (await store.verify_audit()).records == 0
    await write_audit(store)
    await store.audit(OTHER, None, "secret.add", {})
    check = await store.verify_audit()
    assert (check.records, check.fault) == (6, "")


@pytest.mark.parametrize(
    ("change", "sound", "fault"),
    [
        ("UPDATE audit SET detail = '{}' WHERE sequence = 3", 2, "record 3 was altered"),
        ("UPDATE audit SET tenant = 'other' WHERE sequence = 1", 0, "record 1 was altered"),
        ("UPDATE audit SET at = at + 1 WHERE sequence = 5", 4, "record 5 was altered"),
        ("UPDATE audit SET sandbox = NULL WHERE sequence = 2", 1, "record 2 was altered"),
        ("DELETE FROM audit WHERE sequence = 2", 1, "record 2 is missing"),
        ("DELETE FROM audit WHERE sequence = 1", 0, "record 1 is missing"),
        ("DELETE FROM audit WHERE sequence = 5", 4, "the end of the log is missing, or it was rewritten"),
        ("DELETE FROM audit", 0, "the end of the log is missing, or it was rewritten"),
        (
            "DELETE FROM installation WHERE key = 'audit_head'",
            5,
            "the end of the log is missing, or it was rewritten",
        ),
    ],
)
async def test_a_changed_audit_log_does_not_verify(
    store: SqlStore, tmp_path: Path, change: str, sound: int, fault: str
) -> None:
    await write_audit(store)
    tamper(tmp_path, change)
    check = await store.verify_audit()
    assert (check.records, check.fault) == (sound, fault)


async def test_a_truncated_audit_log_refuses_to_be_continued_silently(
    store: SqlStore, tmp_path: Path
) -> None:
    await write_audit(store)
    tamper(tmp_path, "DELETE FROM audit WHERE sequence = 5")
    with pytest.raises(HostError, match="audit"):
        await store.audit(DEFAULT_TENANT, None, "exec", {})


async def test_a_large_audit_log_is_checked_in_parts(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.store.audit.BATCH", 2)
    await write_audit(store)
    assert (await store.verify_audit()).records == 5


async def test_an_oversized_record_is_refused(store: SqlStore) -> None:
    with pytest.raises(InvalidInput):
        await store.audit(DEFAULT_TENANT, None, "exec", {"x": "y" * 20_000})


# opening


async def test_another_key_is_refused(tmp_path: Path) -> None:
    await (await open_store(tmp_path)).close()
    (tmp_path / "key").write_text("ab" * 32)
    with pytest.raises(HostError, match="not the one"):
        await open_store(tmp_path)


async def test_a_lost_key_is_not_replaced(tmp_path: Path) -> None:
    await (await open_store(tmp_path)).close()
    (tmp_path / "key").unlink()
    with pytest.raises(HostError, match="missing"):
        await open_store(tmp_path)
    assert not (tmp_path / "key").exists()


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    """G-341."""
    await (await open_store(tmp_path)).close()
    tamper(tmp_path, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(HostError, match="9999"):
        await open_store(tmp_path)
    assert where.ask(tmp_path, "SELECT version_num FROM alembic_version") == [("9999",)]


async def test_a_specification_with_unknown_fields_is_refused(store: SqlStore, tmp_path: Path) -> None:
    await store.add_template(a_template())
    await store.add_sandbox(a_sandbox(), a_grant(a_sandbox()))
    tamper(tmp_path, "UPDATE sandboxes SET spec = '{\"novelty\": 1}'")
    with pytest.raises(HostError, match="novelty"):
        await store.sandboxes()


async def test_migrations_and_tables_agree(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    await (await open_store(tmp_path)).close()
    assert ScriptDirectory("src/corral/store/migrations").get_current_head() == schema.HEAD
    engine = create_engine(where.url_of(tmp_path).replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
    engine.dispose()


@pytest.mark.parametrize(
    "url", ["postgresql+pg8000://db/x", "sqlite://", "sqlite:///:memory:", "nonsense://x"]
)
async def test_other_databases_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        await SqlStore.open(url, tmp_path / "key")


async def test_a_malformed_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        await SqlStore.open("no url", tmp_path / "key")


async def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    await store.close()
    await store.close()


async def test_a_corrupt_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "corral.db").write_bytes(b"this is no database" * 1000)
    with pytest.raises(HostError):
        await open_store(tmp_path)


async def test_a_symlink_in_place_of_the_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corral.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostError):
        await open_store(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


# concurrency


async def test_concurrent_writers_lose_nothing(store: SqlStore) -> None:
    await store.add_template(a_template())
    boxes = [a_sandbox(number, f"box-{number}") for number in range(1, 41)]
    async with asyncio.TaskGroup() as tasks:
        for box in boxes:
            tasks.create_task(store.add_sandbox(box, a_grant(box)))
            tasks.create_task(store.audit(DEFAULT_TENANT, box.id, "create", {}))
    assert await store.sandboxes() == boxes
    assert (await store.verify_audit()).records == 40


async def test_two_processes_worth_of_connections_wait_for_each_other(tmp_path: Path) -> None:
    stores = [await open_store(tmp_path, instance=str(number)) for number in range(3)]
    try:
        async with asyncio.TaskGroup() as tasks:
            for store in stores:
                for _ in range(10):
                    tasks.create_task(store.audit(DEFAULT_TENANT, None, "exec", {}))
        assert (await stores[0].verify_audit()).records == 30
    finally:
        for store in stores:
            await store.close()


async def test_first_openers_at_once_agree_on_one_key(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        opening = [tasks.create_task(open_store(tmp_path, instance=str(number))) for number in range(4)]
    stores = [task.result() for task in opening]
    tokens = {(await store.derive_token(GrantId("g"))).reveal() for store in stores}
    for store in stores:
        await store.close()
    assert len(tokens) == 1


async def test_a_failed_query_rolls_back(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    await store.close()
    database = Database(where.url_of(tmp_path), "other")
    await database.open()

    def spoil(connection: Any) -> None:
        connection.exec_driver_sql("INSERT INTO tenants VALUES ('x', 1)")
        raise InvalidInput("stop")

    def count(connection: Any) -> int:
        return int(connection.exec_driver_sql("SELECT count(*) FROM tenants").scalar())

    try:
        with pytest.raises(InvalidInput):
            await database.run(spoil)
        assert await database.run(count) == 0
    finally:
        await database.close()


async def test_a_revoked_api_key_is_nobodys(store: SqlStore) -> None:
    """By id, or by a label that only one has; another tenant's is not found."""
    one, _ = await store.add_api_key(DEFAULT_TENANT, "laptop", NOW)
    two, _ = await store.add_api_key(DEFAULT_TENANT, "laptop", NOW + timedelta(seconds=1))
    other, _ = await store.add_api_key(TenantId("acme"), "ci", NOW)
    listed = await store.api_keys(DEFAULT_TENANT)
    assert [key.label for key in listed] == ["laptop", "laptop"]
    assert not any(secret.reveal() in repr(listed) for secret in (one, two))
    with pytest.raises(Conflict, match="2 API keys"):
        await store.revoke_api_key(DEFAULT_TENANT, "laptop")
    for ref in ("ci", "", "%", listed[0].id[:6]):
        with pytest.raises(NotFound):
            await store.revoke_api_key(DEFAULT_TENANT, ref)
    await store.revoke_api_key(DEFAULT_TENANT, listed[0].id)
    assert await store.identity_of_key(one.reveal()) is None
    assert await store.identity_of_key(two.reveal()) == Identity(DEFAULT_TENANT, listed[1])
    await store.revoke_api_key(DEFAULT_TENANT, "laptop")
    assert await store.identity_of_key(two.reveal()) is None
    assert (await store.identity_of_key(other.reveal()) or Identity(DEFAULT_TENANT)).tenant == TenantId(
        "acme"
    )
