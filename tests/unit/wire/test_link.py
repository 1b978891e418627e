"""The protocol between engine and gateway."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput, TooLarge
from corral.model.approval import Answer, Field, Kind, Question, Scope, refused
from corral.model.budget import Refusal, Window
from corral.model.budget import Scope as BudgetScope
from corral.model.egress import EgressPolicy, HostRule
from corral.model.git import Access, Operation, PushPolicy, PushRule, RepoGrant, Verdict
from corral.model.grants import Alias, ModelLayer, ModelRules
from corral.model.ids import SandboxId, TenantId
from corral.model.route import EgressProxy, HeaderField, HeaderRule, Route
from corral.model.secrets import Provider, Secret
from corral.model.usage import Tokens, Usage
from corral.wire import frames, link

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RULES = ModelRules(("claude-*",), under=(ModelLayer(("claude-h*",)),))
SANDBOX, TENANT = SandboxId("0" * 16), TenantId("default")
USAGE = Usage(
    TENANT, SANDBOX, "s", "openai", "m", Tokens(1, 2, 3, 4), 5, True, 200, 6, NOW, "r", "/v1/responses"
)
GRANT = link.GrantSpec("ab", ("anthropic",), ModelRules())
MESSAGES: list[link.Message] = [
    link.Attach(
        1, SANDBOX, TENANT, "brave-otter", GRANT, EgressPolicy((HostRule("a.com", (443,)),), ("10.0.0.0/8",)),
        Secret("seed"),
        (RepoGrant("github.com", "o/r", Access.WRITE, "github", True), RepoGrant("git.test:8443", "a/b/c")),
        PushPolicy((PushRule(Verdict.ASK, "main", (Operation.FORCE,)),), ("ci.skip",)),
        Route(
            (HeaderRule("a.com", (HeaderField("X-Key", Secret("k-12345678")),)),),
            EgressProxy("b.com", 1080, "me", Secret("word"), tls=True), ("9.9.9.9",),
        ),
        (link.ListenerSpec("http", 80), link.ListenerSpec("tls", 443)),
    ),
    link.Detach(2, SANDBOX),
    link.SetSecrets(3, (link.SecretSpec(TENANT, "a", Provider.ANTHROPIC, "https://x", Secret("sk-12345678")),)),
    link.SetPrices(4, (link.PriceSpec("a", "*", 1, 2, 3, 4),)),
    link.SetConfig(5, ("10.0.0.0/8",), ("*.pinned.example",), 64, 32_000, ("*",), RULES),
    link.Regrant(16, SANDBOX, link.GrantSpec("cd", (), ModelRules(aliases=(Alias("a", "b"),)), NOW, "ab", NOW, revoked=True)),
    link.Ping(6),
    link.UsageAck(7),
    link.Ready(1),
    link.Done(8),
    link.Failed(9, "conflict", "m", "h"),
    link.UsageRecord(10, USAGE),
    link.AuditRecord(NOW, TENANT, SANDBOX, "dns", "denied", host="b.com"),
    link.Reserve(11, SANDBOX, 12, "s", "openai", "m", "responses"),
    link.Reserved(12),
    link.Refused(13, Refusal(BudgetScope.SANDBOX, Window.TOTAL, 1, 2, 3, 4)),
    link.Refused(13, Refusal(BudgetScope.TENANT, Window.DAY, 1, 2, 3, 4, NOW)),
    link.Unreserved(14, "m"),
    link.Release(15),
    link.SetPolicy(16, SANDBOX, EgressPolicy(), Route(), (link.ListenerSpec("tls", 8443),)),
    link.Reserve(16, SANDBOX, 12, "s", "openai", "m", "responses", 3, drawn=True),
    link.Leased(3, 100),
    link.Return(3),
    link.Recall(20, None),
    link.Recall(21, SANDBOX),
    link.SetJournal(22),
    link.Ask(17, SANDBOX, Question(Kind.HOST, "connect to b.com", (Field("host", "b.com"),), 60)),
    link.Asked(17, "1a2b3c4d", 60, 1),
    link.Answered(17, Answer(allowed=True, scope=Scope.ONCE, reason="", by="x")),
    link.Answered(18, refused("no")),
    link.Withdraw(19),
    link.Flush(23),
    link.Flushed(23),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_come_back_as_they_were(message: link.Message) -> None:
    assert frames.decode(frames.encode(message)[4:]) == message


@given(st.lists(st.integers(1, 100), max_size=60))
def test_frames_cut_anywhere(cuts: list[int]) -> None:
    stream = b"".join(frames.encode(message) for message in MESSAGES)
    deframer, found = frames.Deframer(link.MAX_FRAME), []
    for cut in cuts:
        found += deframer.feed(stream[:cut])
        stream = stream[cut:]
    found += deframer.feed(stream)
    assert [frames.decode(body) for body in found] == MESSAGES


def test_frames_are_bounded() -> None:
    with pytest.raises(TooLarge):
        frames.Deframer(10).feed(b"\0\0\0\x0b")


GOOD = json.loads(frames.encode(MESSAGES[11])[4:])


@pytest.mark.parametrize(
    "change",
    [
        {"type": "Nonsense"}, {"type": ["x"]}, {"number": "1"}, {"number": True}, {"extra": 1}, {"usage": None},
        {"usage": {**GOOD["usage"], "cost": 1.5}}, {"usage": {**GOOD["usage"], "at": "2026-01-01T00:00:00"}},
        {"usage": {**GOOD["usage"], "tokens": {"input": 1}}},
    ],
)  # fmt: skip
def test_a_message_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        frames.decode(json.dumps({**GOOD, **change}).encode())


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        frames.decode(data)


def test_an_audit_record_shows_what_it_has() -> None:
    record = link.AuditRecord(NOW, TENANT, SANDBOX, "tls", "denied", host="b.com", port=443, reason="no")
    assert record.detail() == {"decision": "denied", "host": "b.com", "port": "443", "reason": "no"}
