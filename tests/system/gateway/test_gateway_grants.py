"""What a grant covers, by a real gateway process: models, until when, and what is cut when it no longer does."""

import asyncio
import hashlib
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from corral.engine.ports import OpenedSecret
from corral.model.egress import EgressPolicy, HostRule
from corral.model.grants import Alias, Grant, ModelRules, TenantModels
from corral.model.ids import GrantId, SandboxId, TenantId
from corral.model.secrets import Provider, Secret

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed, BoxEnd

TENANT = TenantId("default")
SANDBOX = SandboxId(f"{1:016x}")
MODEL = "claude-sonnet-4-5"
REQUEST: dict[str, Any] = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
POLICY = EgressPolicy((HostRule("example.org"),))


def a_grant(token: str = "corral-token-1", **changes: Any) -> Grant:
    hashed = hashlib.sha256(token.encode()).hexdigest()
    grant = Grant(GrantId("g"), TENANT, SANDBOX, hashed, ("anthropic", "gemini"), datetime.now(UTC))
    return replace(grant, **changes)


async def post(
    bed: "Bed", box: "BoxEnd", body: Any = REQUEST, path: str = "anthropic/v1/messages", token: str = ""
) -> tuple[int, str]:
    headers = {"Host": "gateway.corral", "x-api-key": token or box.token, "Content-Type": "application/json"}
    data = io.BytesIO(json.dumps(body).encode())
    async with bed.http.post(f"{box.url}/s/{path}", data=data, headers=headers) as answer:
        return answer.status, await answer.text()


class Endless:
    """An upstream that begins to answer and does not end; `begun` once, `gone` when the gateway hung up."""

    def __init__(self, bed: "Bed") -> None:
        self.begun, self.gone = asyncio.Event(), asyncio.Event()
        bed.upstream.handler = self._handle

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: ping\ndata: {}\n\n")
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.gone.set()
        return response


async def test_models_are_allowed_and_replaced(bed: "Bed") -> None:
    """G-17, G-180: what runs is checked, in the body and in the path, of every model that is named."""
    models = ModelRules(
        ("claude-haiku-*", "gemini-2.5-flash"),
        (Alias("opus", "haiku"), Alias("gemini-*-pro", "gemini-2.5-flash")),
    )
    base = f"http://127.0.0.1:{bed.upstream.port}"
    await bed.secrets(OpenedSecret(TENANT, "gemini", Provider.GEMINI, base, Secret("AIza-01234567")))
    box = await bed.attach(grant=a_grant(models=models))
    status, text = await post(bed, box)
    assert (status, "claude-haiku-*" in text, "corral grant set box-1" in text) == (403, True, True)
    for body in (
        {**REQUEST, "model": "claude-haiku-4-5", "models": ["claude-haiku-4-5", MODEL]},
        {**REQUEST, "model": "claude-haiku-4-5\n"},
    ):
        assert (await post(bed, box, body))[0] in (400, 403)
    assert bed.upstream.seen == []
    assert (await post(bed, box, {**REQUEST, "model": "claude-opus-4-5"}))[0] == 200
    sent = json.loads(bed.upstream.seen[-1].body)
    assert sent["model"].startswith("claude-haiku-")
    assert sent["messages"] == REQUEST["messages"]
    assert (await bed.usage.get()).model == sent["model"]
    assert (
        await post(
            bed, box, {"model": "claude-opus-4-5", "messages": []}, "anthropic/v1/messages/count_tokens"
        )
    )[0] == 200
    assert json.loads(bed.upstream.seen[-1].body)["model"] == sent["model"]
    ask = {"contents": [{"parts": [{"text": "hi"}]}], "model": "models/gemini-2.5-pro"}
    assert (await post(bed, box, ask, "gemini/v1beta/models/gemini-2.5-pro:generateContent"))[0] == 200
    assert bed.upstream.seen[-1].path == "/v1beta/models/gemini-2.5-flash:generateContent"
    assert json.loads(bed.upstream.seen[-1].body)["model"] == "models/gemini-2.5-flash"
    assert (await post(bed, box, ask, "gemini/v1beta/models/gemini-2.5-flash:generateContent"))[0] == 400
    # The host's own rules hold beside the sandbox's.
    await bed.client.set_config(models=ModelRules(("gpt-*",)))
    assert (await post(bed, box, {**REQUEST, "model": "claude-opus-4-5"}))[0] == 403


async def test_a_tenants_rules_hold_for_its_sandboxes_also_after_a_restart(bed: "Bed") -> None:
    """G-13, G-180: with rules of another tenant beside, and in a new process from its first call on."""
    box = await bed.attach(grant=a_grant())
    ask = {**REQUEST, "model": "claude-sonnet-4-5"}
    others = TenantModels(TenantId("other"), ModelRules(("none",)))
    await bed.client.set_models([others])
    assert (await post(bed, box, ask))[0] == 200
    await bed.client.set_models([others, TenantModels(TENANT, ModelRules(("claude-haiku-*",)))])
    status, told = await post(bed, box, ask)
    assert (status, "`corral models set PATTERN`" in str(told)) == (403, True)
    sent = len(bed.upstream.seen)
    await bed.kill()
    await bed.client.lost()
    await bed.client.reattach(bed.spawn())
    assert (await post(bed, box, ask))[0] == 403
    assert len(bed.upstream.seen) == sent
    await bed.client.set_models([others])
    assert (await post(bed, box, ask))[0] == 200


async def test_a_revoked_grant_covers_nothing_and_cuts_what_is_under_way(bed: "Bed") -> None:
    """G-18, G-173, G-333."""
    box, endless = await bed.attach(policy=POLICY), Endless(bed)
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    url = f"{box.url}/s/anthropic/v1/messages"
    async with bed.http.post(url, json={**REQUEST, "stream": True}, headers=headers) as answer:
        await endless.begun.wait()
        await bed.client.regrant(a_grant(revoked_at=datetime.now(UTC)))
        with pytest.raises(aiohttp.ClientError):
            async with asyncio.timeout(30):
                await answer.read()
    async with asyncio.timeout(30):
        await endless.gone.wait()
        assert (await bed.usage.get()).assumed
    status, text = await post(bed, box)
    assert (status, "revoked" in text, "corral grant renew box-1" in text) == (403, True, True)
    async with bed.http.get(box.url, headers={"Host": "example.org"}) as answer:
        assert (answer.status, "grant-over" in await answer.text()) == (403, True)
    # It stays so in a gateway that is new, until it is renewed.
    await bed.kill()
    await bed.client.lost()
    await bed.client.reattach(bed.spawn())
    await bed.secrets()
    assert (await post(bed, box))[0] == 403
    await bed.client.regrant(a_grant("another"))
    assert (await post(bed, box))[0] == 401
    endless.gone.clear()
    bed.upstream.handler = answer_ok
    assert (await post(bed, box, token="another"))[0] == 200


async def answer_ok(request: web.Request) -> web.StreamResponse:
    return web.json_response({"model": MODEL, "usage": {"input_tokens": 1, "output_tokens": 1}})


async def test_a_grant_ends_by_itself(bed: "Bed") -> None:
    """G-18: nobody has to do anything, and what is under way is cut."""
    box, endless = await bed.attach(policy=POLICY), Endless(bed)
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    async with bed.http.post(
        f"{box.url}/s/anthropic/v1/messages", json={**REQUEST, "stream": True}, headers=headers
    ) as answer:
        await endless.begun.wait()
        await bed.client.regrant(a_grant(expires_at=datetime.now(UTC) + timedelta(milliseconds=300)))
        with pytest.raises(aiohttp.ClientError):
            async with asyncio.timeout(30):
                await answer.read()
    status, text = await post(bed, box)
    assert (status, "expired" in text) == (403, True)
    async with bed.http.get(box.url, headers={"Host": "example.org"}) as answer:
        assert answer.status == 403


async def test_a_renewed_token_and_its_former_one(bed: "Bed") -> None:
    """G-15, G-16, G-21."""
    box = await bed.attach()
    bed.upstream.handler = answer_ok
    hashed = hashlib.sha256(box.token.encode()).hexdigest()
    soon = datetime.now(UTC) + timedelta(hours=1)
    await bed.client.regrant(a_grant("new", former_hash=hashed, former_until=soon))
    assert [(await post(bed, box, token=token))[0] for token in ("new", box.token, "other")] == [
        200,
        200,
        401,
    ]
    await bed.client.regrant(a_grant("new", former_hash=hashed, former_until=datetime.now(UTC)))
    assert [(await post(bed, box, token=token))[0] for token in ("new", box.token)] == [200, 401]


@pytest.mark.parametrize("how", ["vault", "grant"])
async def test_a_secret_that_is_gone_cuts_its_calls_and_no_others(bed: "Bed", how: str) -> None:
    """G-173, G-333, G-334."""
    box, endless = await bed.attach(secrets=("anthropic", "openai")), Endless(bed)
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    chat = {"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with (
        bed.http.post(f"{box.url}/s/openai/v1/chat/completions", json=chat, headers=headers) as other,
        bed.http.post(
            f"{box.url}/s/anthropic/v1/messages", json={**REQUEST, "stream": True}, headers=headers
        ) as answer,
    ):
        await answer.content.readany()
        await other.content.readany()
        if how == "vault":
            base = f"http://127.0.0.1:{bed.upstream.port}"
            await bed.client.set_secrets(
                [OpenedSecret(TENANT, "openai", Provider.OPENAI, base, Secret("sk-01234567"))]
            )
        else:
            await bed.client.regrant(a_grant(secrets=("openai",)))
        with pytest.raises(aiohttp.ClientError):
            async with asyncio.timeout(30):
                await answer.read()
        assert not other.content.at_eof()
        assert other.content.exception() is None
    assert endless.begun.is_set()
