"""What the gateway decides by itself needs nobody outside: no network, no resolver, no vendor."""

import socket
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import dns.message
import dns.rcode
import pytest
from tests.system.gateway.test_gateway_models import REQUEST, post

from corral.model.budget import Refusal, Scope, Window
from corral.model.egress import EgressPolicy, HostRule
from corral.model.listeners import ListenerKind

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed, BoxEnd

pytestmark = pytest.mark.root


@pytest.fixture
async def offline(make_gateway: Callable[..., Any]) -> AsyncIterator["Bed"]:
    """A gateway process in a network namespace in which nothing is, not even loopback."""
    async with make_gateway(prefix=["unshare", "--net"]) as found:
        yield found


async def test_local_decisions_need_no_network(offline: "Bed") -> None:
    """G-343: denials, names, budgets, prices, tokens and records."""
    box = await offline.attach(1, policy=EgressPolicy((HostRule("allowed.test"),)))
    async with offline.http.get(box.url, headers={"Host": "evil.test"}) as answer:
        assert (answer.status, "host-not-allowed" in await answer.text()) == (403, True)
    assert ask(box, "evil.test") == dns.rcode.NXDOMAIN
    assert ask(box, "allowed.test") == dns.rcode.NOERROR
    path = "/s/anthropic/v1/messages"
    assert (await post(offline, box, path, token="sk-crl-wrong"))[0] == 401
    offline.ledger.refusal = Refusal(Scope.SANDBOX, Window.TOTAL, cap=5, spent=5, reserved=0, needed=1)
    status, value, _ = await post(offline, box, path)
    assert (status, value["type"]) == (402, "error")
    offline.ledger.refusal = None
    status, value, _ = await post(offline, box, path, {**REQUEST, "model": "no-such-model-of-anybody"})
    assert status in (400, 403, 502)
    assert (await post(offline, box, path))[0] == 502
    while offline.ledger.open:
        await offline.client.ping()
    assert offline.ledger.released
    assert (await offline.audit("http", "denied")).host == "evil.test"
    assert (await offline.audit("dns", "denied")).host == "evil.test"


def ask(box: "BoxEnd", name: str) -> dns.rcode.Rcode:
    query = dns.message.make_query(name, "A")
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.settimeout(30)
        sock.connect(("127.0.0.1", box.ports[ListenerKind.DNS_UDP]))
        sock.send(query.to_wire())
        return dns.message.from_wire(sock.recv(4096)).rcode()
