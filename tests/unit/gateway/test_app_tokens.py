"""How long an App's token is kept, and that many who want one at once ask once."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from corral.errors import CorralError, Forbidden
from corral.gateway import apptokens
from corral.gateway.apptokens import AppTokens
from corral.gateway.vault import Credential, Vault
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret, SecretForm
from corral.wire.forges import ForgeAnswer, ForgeCall
from corral.wire.githubapp import Need
from corral.wire.link import SecretSpec

TENANT = TenantId("default")


class Api:
    """GitHub's answers, counted."""

    def __init__(self) -> None:
        self.made = 0
        self.refuses = False

    async def exchange(self, call: ForgeCall, *_: object) -> ForgeAnswer:
        await asyncio.sleep(0)
        if self.refuses:
            return ForgeAnswer(401, "{}")
        if call.method == "GET":
            return ForgeAnswer(200, json.dumps({"id": 7, "permissions": {}}))
        self.made += 1
        ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        return ForgeAnswer(201, json.dumps({"token": f"ghs_{self.made:036d}", "expires_at": ends}))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    monkeypatch.setattr(apptokens, "exchange", found.exchange)
    return found


def app() -> Credential:
    pem = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    value = Secret(json.dumps({"app": "1", "key": pem.decode()}))
    spec = SecretSpec(
        TENANT, "ours", Provider.GITHUB, "https://github.com", value, form=SecretForm.GITHUB_APP
    )
    found = Vault([spec]).find(TENANT, "ours")
    assert found is not None
    return found


async def test_many_at_once_ask_once(api: Api) -> None:
    tokens, credential = AppTokens(None), app()  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(tokens.token(credential, "a/b", Need.READ)) for _ in range(20)]
    assert len({task.result().value for task in asked}) == api.made == 1
    await tokens.token(credential, "A/B", Need.READ)
    assert api.made == 1
    await tokens.token(credential, "a/b", Need.PUSH)
    await tokens.token(credential, "a/c", Need.READ)
    assert api.made == 3


async def test_a_token_that_a_server_refuses_is_had_anew_but_not_as_fast_as_one_asks(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, credential = AppTokens(None), app()  # type: ignore[arg-type]
    first = await tokens.token(credential, "a/b", Need.READ)
    tokens.refused(first)
    assert await tokens.token(credential, "a/b", Need.READ) is first
    monkeypatch.setattr(apptokens, "_AGAIN_SECONDS", 0.0)
    tokens.refused(first)
    second = await tokens.token(credential, "a/b", Need.READ)
    assert second.value != first.value
    # What is said of the former one late is not about this one.
    tokens.refused(first)
    assert await tokens.token(credential, "a/b", Need.READ) is second


async def test_nothing_is_kept_of_an_app_that_is_gone(api: Api) -> None:
    tokens, credential = AppTokens(None), app()  # type: ignore[arg-type]
    await tokens.token(credential, "a/b", Need.READ)
    tokens.forget({(TENANT, "ours", credential.spec.value.reveal())})
    await tokens.token(credential, "a/b", Need.READ)
    assert api.made == 1
    tokens.forget(frozenset())
    await tokens.token(credential, "a/b", Need.READ)
    assert api.made == 2


async def test_a_refusal_is_kept_for_a_while(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, credential = AppTokens(None), app()  # type: ignore[arg-type]
    api.refuses = True
    with pytest.raises(Forbidden):
        await tokens.token(credential, "a/b", Need.READ)
    api.refuses = False
    with pytest.raises(CorralError, match="refuses the App"):
        await tokens.token(credential, "a/b", Need.READ)
    monkeypatch.setattr(apptokens, "_AGAIN_SECONDS", 0.0)
    assert (await tokens.token(credential, "a/b", Need.READ)).value
