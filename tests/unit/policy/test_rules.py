"""Rules as they are written, and what they match: methods, paths, presets, denials, bound secrets."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.model.binding import Binding, Mode
from corral.model.egress import EgressPolicy, HostRule
from corral.policy.bindings import checked_binding
from corral.policy.egress import Allowed, Denied, Reason, RuleBook
from corral.policy.paths import MAX_SEGMENTS, matches, unsafe
from corral.policy.presets import PRESETS
from corral.policy.rules import expand, parse_rule, rule_text, with_bindings


def book(*allow: str, deny: tuple[str, ...] = ()) -> RuleBook:
    return RuleBook(EgressPolicy(expand(allow) + expand(deny, deny=True)))


def asked(rules: RuleBook, host: str, method: str, path: str, port: int = 443) -> str:
    """What a request gets: `yes`, or the reason why not."""
    connection = rules.decide(host, port)
    if isinstance(connection, Denied):
        return connection.reason.value
    decision = rules.decide_request(connection, method, path)
    return "yes" if isinstance(decision, Allowed) else decision.reason.value


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("GET api.test", HostRule("api.test", methods=("GET",))),
        ("get,HEAD api.test:8443/v1/**", HostRule("api.test", (8443,), ("GET", "HEAD"), ("/v1/**",))),
        ("private:db.internal:5432", HostRule("db.internal", (5432,), private=True)),
        ("private:host.corral:11434", HostRule("host.corral", (11434,), private=True)),
        ("9.9.9.0/24", HostRule("9.9.9.0/24")),
        ("9.9.9.9/32:8443", HostRule("9.9.9.9/32", (8443,))),
        ("[2620:fe::/48]:8443", HostRule("2620:fe::/48", (8443,))),
        ("9.9.9.9/v1", HostRule("9.9.9.9", paths=("/v1",))),
        ("tcp:db.test:5432,5433", HostRule("db.test", (5432, 5433), tcp=True)),
        ("private:tcp:10.0.0.7:22", HostRule("10.0.0.7", (22,), private=True, tcp=True)),
    ],
)
def test_rules_are_read_and_written(text: str, rule: HostRule) -> None:
    assert parse_rule(text) == rule
    assert parse_rule(rule_text(rule)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "G{T api.test", "CONNECT api.test", "api.test/../x", "api.test/a?b", "api.test/%zz", "api.test/%2e%2e/",
        "private:*.internal:80", "private:10.0.0.0/8:80", "host.corral:80", "9.9.9.9/24", "9.9.9.0/33", "GET 9.9.9.0/24", " ", "@", "https://api.test",
        "tcp:db.test", "tcp:*.test:22", "tcp:*:22", "GET tcp:db.test:22", "tcp:db.test:22/x", "tcp:db.test:80",
        "tcp:9.9.9.0/24:22",
    ],
)  # fmt: skip
def test_rules_that_mean_nothing_are_refused(text: str) -> None:
    """G-310."""
    with pytest.raises(InvalidInput):
        expand((text,))


@pytest.mark.parametrize(
    ("path", "pattern", "wanted"),
    [
        ("/v1/x", "/v1/x", True), ("/v1/x", "/v1/*", True), ("/v1/x/y", "/v1/*", False), ("/v1/x/y", "/v1/**", True),
        ("/v1", "/v1/**", True), ("/v2/x", "/v1/**", False), ("//v1/x", "/v1/**", False), ("/v1/a%2Fb", "/v1/*", True),
        ("/v1/a%2Fb/c", "/v1/*", False), ("/%76%31/x", "/v1/x", True), ("/v1/x", "/%76%31/x", True),
        ("/%2576/x", "/v/x", False), ("/a/b/c/git-upload-pack", "/**/git-upload-pack", True),
        ("/repo.git", "/*.git", True), ("/repo.gi", "/*.git", False), ("/ab", "/a*b", True), ("/a", "/a*a", False),
        ("/", "/**", True), ("/x/", "/x", False), ("/x/", "/x/**", True), ("/v1/X", "/v1/x", False),
    ],
)  # fmt: skip
def test_paths_are_matched_segment_by_segment(path: str, pattern: str, *, wanted: bool) -> None:
    """G-78, G-80."""
    assert matches(path, pattern) is wanted


@pytest.mark.parametrize(
    "path",
    [
        "/a/../b",
        "/a/./b",
        "/a/%2e%2E/b",
        "/a/..;x/b",
        "/a/%2e;/b",
        "/a\\b",
        "/a%5cb",
        "/a%00",
        "/%zz",
        "/a/..",
        "/a%2f..%2fb",
    ],
)
def test_paths_that_two_servers_read_differently_are_unsafe(path: str) -> None:
    """G-77."""
    assert unsafe(path) is not None


@given(st.text(alphabet="/*ab.%2f5c;", max_size=80), st.text(alphabet="/*ab.", max_size=30))
def test_matching_never_fails(path: str, pattern: str) -> None:
    assert matches("/" + path, "/" + pattern) in (True, False)
    unsafe("/" + path)


def test_matching_stays_cheap_on_hostile_paths() -> None:
    path = "/a" * MAX_SEGMENTS
    assert unsafe(path) is None
    assert unsafe(path + "/a") is not None
    assert not matches(path, "/**/a/**/a/**/a/**/b")
    assert not matches("/" + "a" * 16_000, "/" + "a*" * 20 + "b")


def test_methods_and_paths_narrow_a_host() -> None:
    """G-59, G-61."""
    rules = book("GET,HEAD api.test/read/**", "POST api.test/write")
    assert rules.looks_inside("api.test", 443)
    assert asked(rules, "api.test", "GET", "/read/x") == "yes"
    assert asked(rules, "api.test", "POST", "/write") == "yes"
    for method, path in (("POST", "/read/x"), ("GET", "/write"), ("DELETE", "/read/x"), ("get", "/read/x")):
        assert asked(rules, "api.test", method, path) == Reason.REQUEST_NOT_ALLOWED


def test_a_host_without_such_rules_is_not_looked_into() -> None:
    assert not book("api.test", "GET other.test").looks_inside("api.test", 443)


def test_deny_beats_allow_however_specific() -> None:
    """G-305."""
    rules = book("a.example.com", "*.example.com", deny=("*.example.com",))
    assert asked(rules, "a.example.com", "GET", "/") == Reason.DENIED
    assert not rules.name_allowed("a.example.com")
    rules = book("*.example.com", deny=("POST *.example.com", "secret.example.com:443"))
    assert asked(rules, "x.example.com", "GET", "/") == "yes"
    assert asked(rules, "x.example.com", "POST", "/") == Reason.DENIED
    assert rules.looks_inside("x.example.com", 443)
    assert asked(rules, "secret.example.com", "GET", "/") == Reason.DENIED
    assert asked(rules, "secret.example.com", "GET", "/", 80) == "yes"
    assert rules.name_allowed("secret.example.com")


def test_presets_are_valid_and_known() -> None:
    """G-319."""
    for name, preset in PRESETS.items():
        rules = expand((f"@{name}",))
        assert rules
        assert all(rule.origin == f"@{name}" for rule in rules)
        assert all(entry.purpose for entry in preset.entries)


def test_github_is_for_reading() -> None:
    """G-61."""
    rules = book("@github")
    assert asked(rules, "github.com", "GET", "/o/r/info/refs") == "yes"
    assert asked(rules, "github.com", "POST", "/o/r.git/git-upload-pack") == "yes"
    assert asked(rules, "github.com", "POST", "/o/r.git/git-receive-pack") == Reason.REQUEST_NOT_ALLOWED
    assert asked(rules, "api.github.com", "POST", "/graphql") == Reason.REQUEST_NOT_ALLOWED
    assert asked(rules, "api.github.com", "DELETE", "/repos/o/r") == Reason.REQUEST_NOT_ALLOWED


def test_a_secret_brings_its_hosts_and_no_way_around_a_rule() -> None:
    policy = EgressPolicy(expand(("GET api.test",)))
    both = with_bindings(policy, [("key", Binding(("api.test", "other.test")))])
    rules = RuleBook(both)
    assert asked(rules, "other.test", "POST", "/") == "yes"
    assert asked(rules, "other.test", "POST", "/", 80) == Reason.PORT_NOT_ALLOWED
    assert asked(rules, "api.test", "POST", "/") == Reason.REQUEST_NOT_ALLOWED


@pytest.mark.parametrize(
    "binding",
    [
        Binding(()), Binding(("*",)), Binding(("*.com",)), Binding(("a b",)), Binding(("a.test",), form="none"),
        Binding(("a.test",), mode=Mode.SET), Binding(("a.test",), methods=("G T",)), Binding(("a.test",), (0,)),
    ],
)  # fmt: skip
def test_bindings_that_cannot_hold_are_refused(binding: Binding) -> None:
    """G-52, G-310."""
    with pytest.raises(InvalidInput):
        checked_binding(binding)


def test_a_range_allows_addresses_and_no_name() -> None:
    rules = book("9.9.0.0/16:8443", "9.9.9.0/24", "::9:0/112")
    for host, port, answer in (
        ("9.9.9.9", 443, "yes"),
        ("9.9.9.9", 8443, "port-not-allowed"),
        ("9.9.1.1", 8443, "yes"),
        ("9.8.1.1", 443, "address-literal"),
        ("::9:1", 443, "yes"),
        ("example.org", 443, "host-not-allowed"),
    ):
        assert asked(rules, host, "GET", "/", port) == answer, host
    assert not rules.judges_addresses


def test_a_denied_range_beats_what_allows_and_holds_for_what_a_name_leads_to() -> None:
    """G-305; G-66: an address may be written in another."""
    rules = book("*", "9.9.9.9", "9.9.0.0/16", deny=("9.9.9.0/24", "64:ff9b:1::/48"))
    assert asked(rules, "9.9.9.9", "GET", "/") == "denied-by-rule"
    assert asked(rules, "9.9.8.8", "GET", "/") == "yes"
    assert asked(rules, "example.org", "GET", "/") == "yes"
    assert rules.judges_addresses
    for address, denied in (("9.9.9.1", True), ("9.9.8.1", False), ("64:ff9b::909:909", True), ("::ffff:9.9.9.9", True),
                            ("64:ff9b:1::1", True), ("2001:db8::1", False)):  # fmt: skip
        assert bool(rules.refusing_address(ipaddress.ip_address(address), 443)) is denied, address
    assert rules.refusing_address(ipaddress.ip_address("9.9.9.1"), 8443) == []


@pytest.mark.parametrize(
    ("allow", "deny", "wanted"),
    [
        (("tcp:db.test:22",), (), True),
        (("tcp:db.test:22", "db.test:443"), (), True),
        (("tcp:db.test:443",), (), False),
        (("tcp:db.test:22", "db.test:22"), (), False),
        (("tcp:db.test:22", "GET db.test:22"), (), False),
        (("tcp:db.test:22",), ("POST db.test:22",), False),
        (("*.test:22", "tcp:other.test:22"), (), False),
    ],
)
def test_a_connection_is_unread_where_no_rule_reads_it(
    allow: tuple[str, ...], deny: tuple[str, ...], *, wanted: bool
) -> None:
    """G-299: a rule about requests at the same destination goes first."""
    assert book(*allow, deny=deny).unread("db.test", 22) is wanted
