"""Logins are made on the host: whatever rules allow, a sandbox makes and uses none of its own (G-165, G-170, G-172)."""

import pytest

from corral.model.egress import EgressPolicy
from corral.policy.egress import Allowed, Denied, Reason, RuleBook
from corral.policy.rules import expand

LOGINS = [
    ("auth.openai.com", "/oauth/token"), ("auth.openai.com", "/oauth/authorize"), ("auth.openai.com", "/oauth"),
    ("auth.openai.com", "/api/accounts/deviceauth/token"), ("platform.claude.com", "/v1/oauth/token"),
    ("console.anthropic.com", "/v1/oauth/token"), ("platform.claude.com", "//v1//oauth/token"),
    ("platform.claude.com", "/v1%2foauth%2ftoken"), ("platform.claude.com", "/V1/OAuth/Token"),
    ("platform.claude.com", "/v1/%6fauth/token"),
]  # fmt: skip
USES = [
    ("chatgpt.com", "/backend-api/codex/responses"), ("chatgpt.com", "/backend-api/wham/tasks"),
    ("chatgpt.com", "/Backend-API/codex/responses"),
]  # fmt: skip
OPEN = (
    "*",
    "auth.openai.com",
    "*.claude.com",
    "console.anthropic.com:443",
    "chatgpt.com",
    "POST chatgpt.com/**",
)


def asked(book: RuleBook, host: str, path: str) -> Reason | None:
    """Why a request is refused."""
    decision = book.decide(host, 443)
    if isinstance(decision, Allowed):
        decision = book.decide_request(decision, "POST", path)
    return decision.reason if isinstance(decision, Denied) else None


@pytest.mark.parametrize(("host", "path"), LOGINS)
def test_no_rule_lets_a_sandbox_log_in(host: str, path: str) -> None:
    """G-165, G-170."""
    book = RuleBook(EgressPolicy(expand(OPEN)))
    assert asked(book, host, path) is Reason.LOGIN
    assert book.looks_inside(host, 443)
    assert not book.needs_no_look(host, 443)


@pytest.mark.parametrize(("host", "path"), USES)
def test_no_rule_lets_a_sandbox_use_a_login_of_its_own(host: str, path: str) -> None:
    """G-170, G-185."""
    book = RuleBook(EgressPolicy(expand(OPEN)))
    assert asked(book, host, path) is Reason.MODEL_API
    assert book.looks_inside(host, 443)


@pytest.mark.parametrize("rule", ["tcp:auth.openai.com:443", "tcp:chatgpt.com:443"])
def test_no_connection_passes_there_unread(rule: str) -> None:
    """G-165."""
    book = RuleBook(EgressPolicy(expand((rule,))))
    host = rule.split(":")[1]
    assert not book.unread(host, 443)


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("platform.claude.com", "/docs/en/api"), ("chatgpt.com", "/"), ("auth.openai.com", "/.well-known/jwks.json"),
        ("claude.com", "/oauth/token"), ("example.com", "/oauth/token"),
    ],
)  # fmt: skip
def test_what_else_is_there_is_as_the_rules_say(host: str, path: str) -> None:
    assert asked(RuleBook(EgressPolicy(expand(("*",)))), host, path) is None
    assert asked(RuleBook(EgressPolicy()), host, path) is Reason.NOT_ALLOWED


@pytest.mark.parametrize("host", ["auth.openai.com", "platform.claude.com", "console.anthropic.com"])
def test_where_no_rule_is_it_is_told_where_logins_are(host: str) -> None:
    """G-172: the name has an address, so that TLS begins and a refusal can be told inside."""
    book = RuleBook(EgressPolicy())
    assert book.name_allowed(host)
    decision = book.decide(host, 443)
    assert isinstance(decision, Denied)
    assert "logins are made and kept on the host" in decision.message
    assert "corral secret add" in decision.how_to_allow
