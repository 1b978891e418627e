"""A ChatGPT login, renewed against a token endpoint of the test's."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from corral.agents.chatgpt import ChatGptSource, Login, parse_login
from corral.agents.logins import login_file, without_keys
from corral.agents.placeholders import claude_credentials, codex_auth
from corral.engine.ports import OpenedSecret
from corral.errors import Conflict, InvalidInput, UpstreamFailed
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret, SecretForm

NOW = datetime(2026, 5, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def jwt(issued: datetime, ends: datetime) -> str:
    claims = {"iat": int(issued.timestamp()), "exp": int(ends.timestamp()), "n": str(issued)}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.sig"


def a_login(
    refresh: str = "refresh-1", *, issued: datetime = NOW - HOUR, ends: datetime = NOW + HOUR
) -> OpenedSecret:
    tokens = {
        "access_token": jwt(issued, ends),
        "refresh_token": refresh,
        "id_token": jwt(issued, ends),
        "account_id": "acc",
    }
    value = Secret(json.dumps({"tokens": tokens}))
    return OpenedSecret(TenantId("t"), "codex", Provider.OPENAI, "https://h", value, form=SecretForm.CHATGPT)


@dataclass
class Provided:
    """A token endpoint, and the store beside it."""

    url: str = ""
    kept: OpenedSecret = field(default_factory=a_login)
    asked: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    answer: Any = None
    saved: list[str] = field(default_factory=list)
    now: datetime = NOW

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        access = jwt(self.now, self.now + 24 * HOUR)
        good = {"access_token": access, "refresh_token": f"refresh-{len(self.asked) + 1}", "id_token": access}
        return web.json_response(self.answer if self.answer is not None else good, status=self.status)

    async def current(self, tenant: TenantId, name: str) -> OpenedSecret:
        return self.kept

    async def save(self, secret: OpenedSecret) -> None:
        self.kept = secret
        self.saved.append(secret.value.reveal())

    def source(self) -> ChatGptSource:
        return ChatGptSource(self.current, self.save, lambda: self.now, self.url)

    def login(self) -> Login:
        return parse_login(self.kept.value.reveal())


@pytest.fixture
async def provided() -> AsyncIterator[Provided]:
    found = Provided()
    app = web.Application()
    app.router.add_post("/oauth/token", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/oauth/token"
    yield found
    await runner.cleanup()


async def test_a_login_that_is_good_is_used_as_it_is(provided: Provided) -> None:
    found = await provided.source().present(provided.kept, anew=False)
    assert (found.value.reveal(), found.account) == (provided.login().access, "acc")
    assert provided.asked == []


async def test_one_renewal_for_all_who_wait_stored_before_it_is_used(provided: Provided) -> None:
    """G-163, G-174."""
    provided.kept = a_login(ends=NOW + timedelta(minutes=5))
    source, old = provided.source(), provided.kept
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(source.present(old, anew=False)) for _ in range(20)]
    assert {call.result().value.reveal() for call in calls} == {provided.login().access}
    assert [(item["grant_type"], item["refresh_token"]) for item in provided.asked] == [
        ("refresh_token", "refresh-1")
    ]
    assert len(provided.saved) == 1
    assert provided.login().refresh == "refresh-2"


async def test_a_refused_refresh_token_is_asked_once_and_the_old_token_serves_until_its_end(
    provided: Provided,
) -> None:
    """G-164, G-173."""
    provided.kept = a_login(ends=NOW + timedelta(minutes=5))
    provided.status, provided.answer = 400, {"error": "invalid_grant"}
    source = provided.source()
    for _ in range(3):
        assert (await source.present(provided.kept, anew=False)).value.reveal() == provided.login().access
    assert len(provided.asked) == 1
    provided.now = NOW + HOUR
    with pytest.raises(UpstreamFailed):
        await source.present(provided.kept, anew=False)
    assert provided.saved == []


@pytest.mark.parametrize(
    ("status", "answer"), [(503, {}), (200, {}), (200, []), (200, {"access_token": "x"}), (302, {})]
)
async def test_another_failure_is_tried_again(provided: Provided, status: int, answer: Any) -> None:
    """G-164."""
    provided.kept = a_login(ends=NOW + timedelta(minutes=5))
    provided.status, provided.answer = status, answer
    source = provided.source()
    for _ in range(2):
        await source.present(provided.kept, anew=False)
    assert (len(provided.asked), provided.saved) == (2, [])
    provided.status, provided.answer = 200, None
    await source.present(provided.kept, anew=False)
    assert len(provided.saved) == 1


async def test_an_older_login_replaces_no_newer_one(provided: Provided) -> None:
    """G-164."""
    older = a_login("refresh-0", issued=NOW - 2 * HOUR)
    with pytest.raises(Conflict):
        await provided.source().present(older, anew=True)
    newer = a_login("refresh-9", issued=NOW)
    assert (await provided.source().present(newer, anew=True)).account == "acc"
    assert provided.asked == []


@given(
    st.text(max_size=200)
    | st.dictionaries(st.sampled_from(["tokens", "x"]), st.none() | st.text()).map(json.dumps)
)
def test_any_document_is_a_login_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        parse_login(text)


def test_placeholders_look_like_logins_and_hold_none() -> None:
    """G-30, G-161, G-167, G-169, G-175."""
    login = parse_login(codex_auth(NOW))
    assert login.expires_at > NOW + 365 * 24 * HOUR
    credentials = json.loads(claude_credentials("sk-crl-token"))["claudeAiOauth"]
    assert credentials["accessToken"] == "sk-ant-oat01-sk-crl-token"
    assert {"user:inference", "user:profile", "user:sessions:claude_code"} <= set(credentials["scopes"])
    assert login_file("claude", SecretForm.VALUE, "t") is None
    assert login_file("pi", SecretForm.CLAUDE, "t") is None
    for agent, form in (("claude", SecretForm.CLAUDE), ("codex", SecretForm.CHATGPT)):
        file = login_file(agent, form, "t")
        assert file is not None
        assert file.mode == 0o600
    env = {"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "u"}
    assert without_keys("claude", SecretForm.CLAUDE, env) == {"ANTHROPIC_BASE_URL": "u"}
    assert without_keys("claude", SecretForm.VALUE, env) == env
    assert replace(login).document()
