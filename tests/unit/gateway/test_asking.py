"""What a sandbox may put as a question, whatever it writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.gateway.asking import AskService, _SettledError
from corral.gateway.box import Box
from corral.model.approval import bounded
from corral.model.egress import EgressPolicy, HostRule
from corral.model.git import PushPolicy
from corral.model.grants import ModelRules
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route
from corral.model.secrets import Secret
from corral.policy.egress import MODEL_HOSTS
from corral.policy.money import parse_dollars
from corral.policy.rules import parse_rule
from corral.wire.link import Attach, GrantSpec

POLICY = EgressPolicy((HostRule("open.test"), HostRule("shut.test", deny=True)))
LIKELY = st.sampled_from(
    [
        "open.test",
        "a.test:8443",
        "*.b.test",
        "GET c.test/x/**",
        "private:d.test:1",
        "@npm",
        "[::1]:80",
        "10.0.0.1",
        "*",
    ]
)


@pytest.fixture(scope="module")
def service() -> AskService:
    grant = GrantSpec("00", (), ModelRules())
    attach = Attach(
        0,
        SandboxId("0" * 16),
        TenantId("t"),
        "b",
        grant,
        POLICY,
        Secret("seed"),
        (),
        PushPolicy(),
        Route(),
        (),
    )
    box = Box(attach, lambda _: None, lambda _: MODEL_HOSTS, frozenset)
    return AskService(box, desk=None)  # type: ignore[arg-type]  # nothing is asked


@given(LIKELY | st.text(max_size=80), st.text(max_size=80))
def test_any_host_is_refused_settled_or_asked_for_as_a_rule(service: AskService, what: str, why: str) -> None:
    try:
        wanted = service._host(what, why)
    except (InvalidInput, _SettledError):
        return
    rule = parse_rule(wanted.detail["host"])
    assert not rule.private
    assert rule.host not in ("*", "open.test", "shut.test")
    assert bounded(wanted.kind, wanted.summary, wanted.detail, 60).field("host") == wanted.detail["host"]


@given(st.sampled_from(["5", "0.50", "$3", "1_000", "-1", "nan", "1e400", "0"]) | st.text(max_size=40))
def test_any_amount_is_refused_or_positive_and_said_the_same(service: AskService, what: str) -> None:
    try:
        wanted = service._budget(what, "why")
    except InvalidInput:
        return
    assert parse_dollars(wanted.detail["usd"]) == parse_dollars(what) > 0
