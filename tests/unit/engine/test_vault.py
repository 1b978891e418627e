"""The vault's use cases: forms of secrets, rotation, and sources that fail."""

import asyncio
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from corral.daemon.clock import SystemClock
from corral.engine.ports import OpenedSecret
from corral.engine.vault import Secrets, check_base_url
from corral.errors import CorralError, HostError, InvalidInput, NotFound
from corral.host.tasks import TaskOwner
from corral.model.binding import Binding, Mode
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret, SecretForm
from corral.store.store import SqlStore
from corral.testing.fakes import FakeGateway

TENANT = TenantId("default")


class Source:
    """A source that gives what it is told."""

    def __init__(self) -> None:
        self.gives = "key-one-0123"
        self.fails: CorralError | None = None
        self.asked: list[bool] = []

    async def present(self, secret: OpenedSecret, *, anew: bool) -> OpenedSecret:
        self.asked.append(anew)
        if self.fails is not None:
            raise self.fails
        return replace(secret, value=Secret(self.gives))


class Vault:
    def __init__(self, store: SqlStore) -> None:
        self.store, self.gateway, self.source = store, FakeGateway(), Source()
        self.secrets = Secrets(store, self.gateway, SystemClock(), sources={SecretForm.COMMAND: self.source})

    def given(self) -> dict[str, str]:
        return {item.name: item.value.reveal() for item in self.gateway.secrets}


@pytest.fixture
async def vault(tmp_path: Path):  # type: ignore[no-untyped-def]
    store = await SqlStore.open(f"sqlite:///{tmp_path}/corral.db", tmp_path / "key")
    yield Vault(store)
    await store.close()


async def test_a_rotated_secret_keeps_all_but_its_value(vault: Vault) -> None:
    """G-42."""
    url = "https://h.example/v1"
    added = await vault.secrets.add(TENANT, "mine", Secret("old-value-1"), Provider.OPENAI, url)
    rotated = await vault.secrets.rotate(TENANT, "mine", Secret("new-value-with-another-length"))
    assert (rotated.provider, rotated.base_url, rotated.created_at) == (
        added.provider,
        added.base_url,
        added.created_at,
    )
    assert vault.given() == {"mine": "new-value-with-another-length"}
    with pytest.raises(NotFound):
        await vault.secrets.rotate(TENANT, "other", Secret("new-value-1"))
    with pytest.raises(InvalidInput):
        await vault.secrets.rotate(TENANT, "mine", None)


async def test_a_command_gives_the_key(vault: Vault) -> None:
    command = Secret('["op", "read"]')
    info = await vault.secrets.add(TENANT, "openai", command, form=SecretForm.COMMAND)
    assert (info.form, info.problem, vault.given()) == (SecretForm.COMMAND, "", {"openai": "key-one-0123"})
    vault.source.gives = "key-two-0123"
    await vault.secrets.rotate(TENANT, "openai", None)
    assert vault.given() == {"openai": "key-two-0123"}
    assert vault.source.asked[-1] is True


async def test_a_github_app_is_taken_with_its_key_or_not_at_all(vault: Vault) -> None:
    pem = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    app, form = Secret.checked(json.dumps({"app": "Iv1.0a", "key": pem.decode()})), SecretForm.GITHUB_APP
    info = await vault.secrets.add(TENANT, "ours", app, form=form)
    assert (info.provider, info.base_url, info.form) == (Provider.GITHUB, "https://github.com", form)
    assert vault.gateway.secrets[0].form is form
    # A copy of the key's file is what a checkpoint is searched for.
    assert (await vault.secrets.values(TENANT))["ours"].reveal() in pem.decode().splitlines()
    for value, provider, binding in (
        (Secret("ghp_0123456789"), None, None),
        (app, Provider.GITLAB, None),
        (app, None, Binding(hosts=("api.github.com",))),
    ):
        with pytest.raises(InvalidInput):
            await vault.secrets.add(TENANT, "other", value, provider, binding=binding, form=form)
    with pytest.raises(InvalidInput):
        await vault.secrets.rotate(TENANT, "ours", Secret("ghp_0123456789"))
    assert [one.name for one in await vault.secrets.list(TENANT)] == ["ours"]


async def test_no_secret_is_bound_to_a_host_that_is_not_looked_into(vault: Vault) -> None:
    """G-46: told at once, not when the first request goes without it."""
    secrets = Secrets(
        vault.secrets._store, vault.gateway, SystemClock(), bypassed=lambda host: host == "pinned.example"
    )
    with pytest.raises(InvalidInput, match="never looked into"):
        await secrets.add(
            TENANT, "pin", Secret("0123456789"), binding=Binding(hosts=("a.example", "pinned.example"))
        )
    assert await secrets.list(TENANT) == []


async def test_of_a_key_of_aws_its_secret_parts_are_looked_for(vault: Vault) -> None:
    """G-44: whoever writes one down writes the key or the token, and not as they are kept."""
    value = Secret(f"AKIA{'A' * 16}:{'k' * 40}:{'t' * 100}")
    await vault.secrets.add(TENANT, "aws", value, binding=Binding(hosts=("*.amazonaws.com",), mode=Mode.AWS))
    found = {name: one.reveal() for name, one in (await vault.secrets.values(TENANT)).items()}
    assert found == {"aws": "k" * 40, "aws, its session token": "t" * 100}


async def test_of_a_key_of_aws_that_a_command_gives_the_same_parts_are_looked_for(vault: Vault) -> None:
    """G-44: the command is no key of AWS, and what it says later may be none either."""
    vault.source.gives = f"AKIA{'A' * 16}:{'k' * 40}"
    binding = Binding(hosts=("*.amazonaws.com",), mode=Mode.AWS)
    await vault.secrets.add(TENANT, "aws", Secret('["op"]'), binding=binding, form=SecretForm.COMMAND)
    for gives, sought in ((vault.source.gives, "k" * 40), ("something else", "something else")):
        vault.source.gives = gives
        found = {name: one.reveal() for name, one in (await vault.secrets.values(TENANT)).items()}
        assert found == {"aws": '["op"]', "aws, the key that it gives": sought}


@pytest.mark.parametrize(
    "change", ["base_url = 'https://thief.example'", "provider = 'none'", "sealed = 'x'"]
)
async def test_an_altered_row_holds_back_its_secret_alone(
    vault: Vault, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """G-342: the others go on; the one that does not open is named, and can be stored again or removed."""
    for name in ("anthropic", "openai"):
        await vault.secrets.add(TENANT, name, Secret(f"value-of-{name}"))
    with sqlite3.connect(tmp_path / "corral.db") as db:
        db.execute(f"UPDATE secrets SET {change} WHERE name = 'openai'")
    await vault.secrets.publish()
    assert vault.given() == {"anthropic": "value-of-anthropic"}
    assert "secret openai of tenant default cannot be used" in caplog.text
    problems = {info.name: info.problem for info in await vault.secrets.list(TENANT)}
    assert problems["anthropic"] == ""
    assert problems["openai"]
    with pytest.raises(HostError):
        await vault.secrets.values(TENANT)
    assert await vault.secrets.values(TenantId("other")) == {}
    await vault.secrets.add(TENANT, "openai", Secret("another-value"))
    assert vault.given()["openai"] == "another-value"
    assert [info.problem for info in await vault.secrets.list(TENANT)] == ["", ""]


async def test_a_source_that_fails_holds_back_its_secret_alone(vault: Vault) -> None:
    """G-173, G-342."""
    await vault.secrets.add(TENANT, "anthropic", Secret("plain-value-1"))
    vault.source.fails = HostError("it is locked", "unlock it")
    with pytest.raises(HostError):
        await vault.secrets.add(TENANT, "openai", Secret('["op"]'), form=SecretForm.COMMAND)
    assert [info.name for info in await vault.secrets.list(TENANT)] == ["anthropic"]
    vault.source.fails = None
    await vault.secrets.add(TENANT, "openai", Secret('["op"]'), form=SecretForm.COMMAND)
    vault.source.fails = HostError("it is locked", "unlock it")
    await vault.secrets.publish()
    assert list(vault.given()) == ["anthropic"]
    assert [info.problem for info in await vault.secrets.list(TENANT)] == ["", "it is locked"]
    vault.source.fails = None
    await vault.secrets.publish()
    assert [info.problem for info in await vault.secrets.list(TENANT)] == ["", ""]


async def test_a_claude_subscription_is_known_by_its_token(vault: Vault) -> None:
    info = await vault.secrets.add(TENANT, "anthropic", Secret("sk-ant-oat01-xyz-0123"))
    assert info.form is SecretForm.CLAUDE


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com"),
        ("https://api.groq.com/openai/v1/", "https://api.groq.com/openai/v1"),
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434"),
    ],
)
def test_the_version_alone_is_left_out_of_a_base_url(given: str, kept: str) -> None:
    """G-178."""
    assert check_base_url(given) == kept


async def test_the_form_is_bound_to_the_value(vault: Vault, tmp_path: Path) -> None:
    """Who can write to the database alone cannot have a stored value run as a command."""
    import sqlite3

    await vault.secrets.add(TENANT, "anthropic", Secret("plain-value-1"))
    with sqlite3.connect(tmp_path / "corral.db") as db:
        db.execute("UPDATE secrets SET form = 'command'")
    await vault.secrets.publish()
    assert (vault.given(), vault.source.asked) == ({}, [])


@pytest.mark.parametrize("shared", [True, False])
async def test_a_database_of_ones_own_is_not_looked_at_again_and_again(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Unless a key comes from somewhere else."""
    looked = asyncio.Event()

    async def look() -> None:
        looked.set()

    async def looks() -> bool:
        looked.clear()
        async with TaskOwner() as tasks:
            tasks.start(vault.secrets.keep_fresh(shared=shared), name="fresh")
            for _ in range(10):
                await asyncio.sleep(0)
        return looked.is_set()

    monkeypatch.setattr("corral.engine.vault.FRESH_SECONDS", 0)
    monkeypatch.setattr(vault.secrets, "_refresh", look)
    await vault.secrets.add(TENANT, "mine", Secret("old-value-1"), Provider.OPENAI, "https://h.example")
    assert await looks() is shared
    await vault.secrets.add(
        TENANT, "given", Secret("a command"), Provider.OPENAI, "https://h.example", form=SecretForm.COMMAND
    )
    assert await looks()


async def test_what_another_daemon_changed_in_the_vault_is_served_and_told(
    vault: Vault, tmp_path: Path
) -> None:
    changed: list[str] = []

    async def told(_: TenantId, name: str) -> None:
        changed.append(name)

    vault.secrets._changed = told
    other = Vault(await SqlStore.open(f"sqlite:///{tmp_path}/corral.db", tmp_path / "key"))
    await other.secrets.add(TENANT, "mine", Secret("old-value-1"), Provider.OPENAI, "https://h.example")
    await vault.secrets._refresh()
    assert (vault.given(), changed) == ({"mine": "old-value-1"}, ["mine"])
    await other.secrets.rotate(TENANT, "mine", Secret("new-value-2"))
    await vault.secrets._refresh()
    assert (vault.given(), changed) == ({"mine": "new-value-2"}, ["mine", "mine"])
    await vault.secrets._refresh()
    await other.secrets.remove(TENANT, "mine")
    await vault.secrets._refresh()
    assert (vault.given(), changed) == ({}, ["mine"] * 3)
    await other.store.close()
