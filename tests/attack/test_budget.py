"""A hostile program against its budget: with the sandbox's own token, and as many calls at once as it can make."""

import json
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.traces import wait_for

from corral import Sandbox
from corral.protocol.catalog import BudgetAccount

if TYPE_CHECKING:
    from tests.attack.conftest import Canary, Range

pytestmark = pytest.mark.root

REQUEST = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": "hello"}],
}
WORST = (4096 + len(json.dumps(REQUEST))) * 3 + 1000 * 15
CURL = """
echo "$BODY" | tr -d '\\n' > /tmp/body
seq {calls} | xargs -P {at_once} -I @@@ curl -s -o /dev/null -w '%{{http_code}}\\n' {options} \
  -H "x-api-key: $TOKEN" -H 'Content-Type: application/json' --data-binary @/tmp/body \
  http://gateway.corral/s/canary/v1/messages
true
"""


def flood(box: Sandbox, calls: int, at_once: int, options: str = "", **changes: Any) -> Counter[str]:
    """Calls from inside by their status; `000` is one that was given up."""
    token = box.exec("printenv ANTHROPIC_API_KEY", check=True).stdout.strip()
    env = {"TOKEN": token, "BODY": json.dumps({**REQUEST, **changes})}
    script = CURL.format(calls=calls, at_once=at_once, options=options)
    return Counter(box.exec(script, env=env, check=True, timeout=100).stdout.split())


def account(arena: "Range", box: Sandbox) -> BudgetAccount:
    """The sandbox's own budget in all."""
    return arena.client.budget(box.id).accounts[0]


def settled(arena: "Range", box: Sandbox) -> BudgetAccount:
    """The same, once no call is under way."""
    while (found := account(arena, box)).reserved:
        arena.client.health()
    return found


def faults(canary: "Canary", **values: float) -> None:
    """What the model server shall do."""
    request = urllib.request.Request(f"{canary.url}/__faults", json.dumps(values).encode(), method="PUT")
    urllib.request.urlopen(request, timeout=10).close()


def upstream_calls(canary: "Canary") -> int:
    """How many calls have reached the model server."""
    with urllib.request.urlopen(f"{canary.url}/__stats", timeout=10) as reply:
        return int(json.load(reply)["good"])


def test_parallel_calls_do_not_pass_a_budget(arena: "Range", isolation: str, canary: "Canary") -> None:
    """G-211, G-346: 100 calls at once while each takes its time, on a budget that covers five."""
    box = arena.box(isolation, secrets=(canary.name,), budget=5 * WORST)
    faults(canary, wait=1.0)
    statuses = flood(box, 100, 50)
    assert set(statuses) == {"200", "402"}
    assert upstream_calls(canary) == statuses["200"]
    found = settled(arena, box)
    assert 0 < found.spent <= 5 * WORST
    assert sum(model.cost for model in arena.client.usage(box.id).models) == found.spent
    # A stream, or one answer of many, is bounded all the same.
    arena.client.set_budget(box.id, found.spent + WORST - 1)
    assert set(flood(box, 4, 4)) == {"402"}
    assert set(flood(box, 4, 4, stream=True)) == {"402"}
    assert upstream_calls(canary) == statuses["200"]


def test_calls_that_are_given_up_are_not_cheap(arena: "Range", isolation: str, canary: "Canary") -> None:
    """G-201, G-214: whoever hangs up before the usage arrives pays all the same, and is stopped by the budget."""
    box = arena.box(isolation, secrets=(canary.name,), budget=5 * WORST)
    faults(canary, wait=5.0)
    statuses = flood(box, 24, 2, "--max-time 1")
    assert statuses["402"] > 0
    found = settled(arena, box)
    assert statuses["000"] * 4096 * 3 <= found.spent <= 5 * WORST


def test_a_budget_is_not_raised_from_inside(arena: "Range", canary: "Canary") -> None:
    """G-321: neither by the gateway's own name nor by a field of a request."""
    box = arena.box(secrets=(canary.name,), budget=0)
    for path in ("/v1/budget", "/budget", f"/v1/sandboxes/{box.id}/budget", "/s/canary/v1/budget"):
        field = "Content-Type: application/json\r\n"
        [answer] = arena.net(box, ("http", "10.200.0.1", 80, "gateway.corral", path, field, "PUT"))
        assert answer["status"] in (401, 403, 404, 405)
    headers = "-H 'x-corral-budget: 100' -H 'x-stainless-retry-count: 9'"
    assert set(flood(box, 2, 1, headers, budget=10**9, max_tokens=1)) == {"402"}
    assert account(arena, box).cap == 0
    assert upstream_calls(canary) == 0


def test_the_reason_can_be_read_inside(arena: "Range", canary: "Canary") -> None:
    """G-216, G-315."""
    box = arena.box(secrets=(canary.name,), budget=0)
    assert flood(box, 1, 1) == {"402": 1}
    wait_for(
        lambda: any(item["reason"] == "budget" for item in arena.client.denials(box.id)),
        lambda: arena.client.denials(box.id),
    )


def test_no_sandbox_loosens_its_templates_rules_for_models(arena: "Range", canary: "Canary") -> None:
    """G-180: neither by its own rules, nor by a grant that is changed, a checkpoint, a fork, or a template on top of it."""
    client, cheap = arena.client, "claude-haiku-4-5"
    client.build_template_from(
        "frugal", dockerfile="FROM base\nRUN true\n", models=["claude-haiku-*"], aliases={"opus": cheap}
    )
    client.build_template_from("above", dockerfile="FROM frugal\nRUN true\n", models=["*"])

    def box_of(template: str) -> Sandbox:
        return arena.box(template=template, secrets=(canary.name,), models=("*",), budget=1_000_000)

    try:
        box = box_of("frugal")
        arena.daemon.cli("grant", "set", box.id, "--models", "*", "--no-alias")
        client.checkpoint(box.id, "later")
        for one in (box, box.fork()[0], box_of("later"), box_of("above")):
            assert flood(one, 1, 1) == {"403": 1}
            assert flood(one, 1, 1, model=cheap) == {"200": 1}
            assert flood(one, 1, 1, model="claude-opus-4-5") == {"200": 1}
            assert {item.model for item in client.usage(one.id).models} == {cheap}
    finally:
        for info in client.list_sandboxes():
            client.remove_sandbox(info.id)
        for name in ("later", "above", "frugal"):
            client.remove_template(name)
