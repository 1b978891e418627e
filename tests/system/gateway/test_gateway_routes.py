"""Header fields that a sandbox's creator has set for hosts: written into its requests, readable nowhere in it."""

import asyncio
import base64
import json
from contextlib import suppress

import pytest
from aiohttp import web
from tests.system.gateway.test_gateway_egress import hello
from tests.system.gateway.test_gateway_inside import HOST, Inside, done, fields_of
from tests.system.gateway.test_gateway_inside import inside as inside

from corral.model.binding import Binding
from corral.model.egress import EgressPolicy, HostRule
from corral.model.ids import SandboxId
from corral.model.route import HeaderField, HeaderRule, Route
from corral.model.secrets import Secret

TOKEN = "canary-0123456789/abcdef"
BOX = SandboxId(f"{1:016x}")


def route(**fields: str) -> Route:
    given = tuple(HeaderField(name.replace("_", "-"), Secret(value)) for name, value in fields.items())
    return Route((HeaderRule(HOST, given),))


async def serve(inside: Inside, route: Route) -> None:
    """Serve the sandbox, whose clients trust the server too: a connection may be passed through unopened."""
    inside.trust.load_verify_locations(inside.bed.environment["SSL_CERT_FILE"])
    await inside.attach(HostRule(HOST, (inside.server,), private=True), route=route)


async def test_fields_are_set_whatever_the_sandbox_sends(inside: Inside) -> None:
    """G-26, G-28, G-38: in place of its own of that name, however spelled; also one that it calls hop-by-hop."""
    await serve(inside, route(Authorization=f"Bearer {TOKEN}", X_Team="red"))
    async with inside.client() as http:
        await done(http.get(inside.url("/a"), headers={"authorization": "Bearer mine", "X-Other": "kept"}))
        assert fields_of(inside, "Authorization") == [f"Bearer {TOKEN}"]
        assert fields_of(inside, "X-Team") == ["red"]
        assert fields_of(inside, "X-Other") == ["kept"]
        await done(
            http.post(inside.url("/b"), headers={"Connection": "authorization, keep-alive"}, data=b"x")
        )
        assert fields_of(inside, "Authorization") == [f"Bearer {TOKEN}"]
    assert (await inside.bed.audit("secret", "used")).secret == "header Authorization"
    assert "canary" not in repr(inside.bed.audits)


async def test_echoes_hold_no_credential(inside: Inside) -> None:
    """G-137 to G-139: as it is, without its scheme, coded; what is no credential comes back as it was."""

    async def echo(request: web.Request) -> web.StreamResponse:
        value = request.headers["Authorization"]
        told = [
            value,
            TOKEN,
            base64.b64encode(TOKEN.encode()).decode(),
            TOKEN.encode().hex(),
            request.headers["Accept"],
        ]
        return web.json_response(told, headers={"X-Echo": value})

    inside.handler = echo
    await serve(inside, route(Authorization=f"Bearer {TOKEN}", Accept="application/json"))
    async with inside.client() as http, http.get(inside.url()) as answer:
        shown = await answer.text() + repr(answer.headers)
    assert json.loads(await answer.text())[-1] == "application/json"
    for form in (TOKEN, base64.b64encode(TOKEN.encode()).decode()[:-2], TOKEN.encode().hex(), "canary"):
        assert form not in shown
    assert (await inside.bed.audit("redaction", "redacted")).secret == "header Authorization"


async def test_a_request_that_holds_the_value_itself_is_an_alarm(inside: Inside) -> None:
    """G-44."""
    await serve(inside, route(Authorization=f"Bearer {TOKEN}"))
    async with inside.client() as http:
        async with http.get(inside.url(), headers={"X-Leak": TOKEN}) as answer:
            assert answer.status == 403
        async with http.post(inside.url(), data=f"a={TOKEN}") as answer:
            assert answer.status == 403
    assert inside.seen == [] or TOKEN not in repr([body for _, _, body in inside.seen])
    assert (await inside.bed.audit("leak", "denied")).secret == "header Authorization"


async def test_secrets_of_the_vault_go_to_the_same_host(inside: Inside) -> None:
    """G-25: each into its own field."""
    await serve(inside, route(X_Team="red"))
    stand = await inside.bind(Binding((HOST,), (inside.server,)))
    async with inside.client() as http:
        await done(http.get(inside.url(), headers={"Authorization": f"Bearer {stand}"}))
    assert stand not in fields_of(inside, "Authorization")[0]
    assert fields_of(inside, "X-Team") == ["red"]


async def test_another_route_holds_from_the_next_request_on(inside: Inside) -> None:
    """G-42, G-308: connections that were made by the former one are cut."""
    await serve(inside, Route())
    policy = EgressPolicy((HostRule(HOST, (inside.server,), private=True),))
    reader, writer = await asyncio.open_connection("127.0.0.1", inside.port)
    writer.write(hello(HOST))
    assert (await reader.read(3))[:1] == b"\x16"  # the server itself answers: nothing is looked into yet
    async with inside.client() as http:
        await inside.bed.client.set_policy(BOX, policy, (), route(X_Team="red"))
        with suppress(ConnectionError):
            while await reader.read(65536):
                pass
        writer.close()
        await done(http.get(inside.url()))
        assert fields_of(inside, "X-Team") == ["red"]
        await inside.bed.client.set_policy(BOX, policy, ())
        await done(http.get(inside.url()))
        assert fields_of(inside, "X-Team") == ["red"]
        await inside.bed.kill()
        await inside.bed.client.reattach(inside.bed.spawn())
    async with inside.client() as http:
        await done(http.get(inside.url()))
        assert fields_of(inside, "X-Team") == ["red"]
        await inside.bed.client.set_policy(BOX, policy, (), Route())
    async with inside.client() as http:
        await done(http.get(inside.url()))
        assert fields_of(inside, "X-Team") == []


@pytest.mark.parametrize("host", ["other.test", "*.corral.test"])
async def test_a_rule_is_for_its_host_alone_and_opens_none(inside: Inside, host: str) -> None:
    """G-32: neither are fields set elsewhere, nor may the host of a rule be reached for it."""
    rule = HeaderRule(host, (HeaderField("X-Key", Secret(TOKEN)),))
    await serve(inside, Route((rule,)))
    async with inside.client() as http:
        await done(http.get(inside.url()))
        assert fields_of(inside, "X-Key") == []
        async with http.get(f"https://{host.replace('*', 'a')}:{inside.server}/") as answer:
            assert answer.status == 403
            assert (await answer.json())["rule"] == "host-not-allowed"
