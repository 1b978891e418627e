"""The egress decision: hosts, ports, addresses."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.model.egress import EgressPolicy, HostRule
from corral.policy.addresses import parse_networks, refused_class
from corral.policy.egress import (
    Allowed,
    Denied,
    Reason,
    canonical_host,
    decide,
    name_allowed,
    split_authority,
)
from corral.policy.rules import checked_policy, parse_rule

POLICY = EgressPolicy(
    rules=(
        HostRule("example.com"),
        HostRule("*.example.com", (8443,)),
        HostRule("*.deep.example.com", (443,)),
        HostRule("93.184.216.34", (443,)),
        HostRule("api.openai.com", (443,)),
    )
)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("10.0.0.1", "10.0.0.1"),
        ("[2001:DB8::1]", "2001:db8::1"),
    ],
)
def test_hosts_have_one_spelling(text: str, host: str) -> None:
    """G-51."""
    assert canonical_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "a b",
        "a\x00b",
        "a%41.com",
        "u@h",
        "a\\b",
        "a/b",
        "fe80::1%eth0",
        "a" * 64 + ".com",
        ".".join(["abcdefg"] * 40),
        "0177.0.0.1",
        "0x7f.0.0.1",
        "2130706433",
        "127.1",
        "1.2.3.4.5",
        "256.1.1.1",
        "example.com..",
        "-",
        "a.com:80",
        "example.0x7f",
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    """G-51."""
    with pytest.raises(InvalidInput):
        canonical_host(text)


@given(st.text(max_size=300))
def test_canonical_form_is_stable_or_refused(text: str) -> None:
    """G-51."""
    try:
        host = canonical_host(text)
    except InvalidInput:
        return
    assert canonical_host(host) == host
    assert host.isascii()
    assert host == host.lower()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("a.com", "a.com", 80), ("a.com:8080", "a.com", 8080), ("[::1]:1", "::1", 1), ("[::1]", "::1", 80)],
)
def test_authority(text: str, host: str, port: int) -> None:
    assert split_authority(text, 80) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "[a.com]",
        "[1.2.3.4]:80",
        "[]",
        "a.com:",
        "a.com:0",
        "a.com:65536",
        "a.com:+1",
        "a.com: 1",
        "[::1",
        "[::1]x",
        "[::1]:",
        "a:b:c",
    ],
)
def test_bad_authority(text: str) -> None:
    with pytest.raises(InvalidInput):
        split_authority(text, 80)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("example.com", 443),
        ("example.com", 80),
        ("a.example.com", 8443),
        ("a.b.example.com", 8443),
        ("x.deep.example.com", 443),
        ("93.184.216.34", 443),
    ],
)
def test_allowed(host: str, port: int) -> None:
    """G-52, G-54, G-55."""
    assert isinstance(decide(POLICY, host, port), Allowed)


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("example.com", 22, Reason.PORT_NOT_ALLOWED),
        ("evilexample.com", 443, Reason.NOT_ALLOWED),
        ("a.example.com", 443, Reason.PORT_NOT_ALLOWED),
        ("x.deep.example.com", 8443, Reason.PORT_NOT_ALLOWED),
        ("93.184.216.35", 443, Reason.LITERAL),
        ("com", 443, Reason.NOT_ALLOWED),
        ("api.openai.com", 443, Reason.MODEL_API),
        ("metadata.google.internal", 80, Reason.METADATA),
    ],
)
def test_denied(host: str, port: int, reason: Reason) -> None:
    """G-52 to G-55, G-64, G-185."""
    decision = decide(POLICY, host, port)
    assert isinstance(decision, Denied)
    assert decision.reason is reason
    assert decision.how_to_allow


def test_star_matches_names_and_no_literal() -> None:
    """G-52, G-54."""
    policy = EgressPolicy((HostRule("*"),))
    assert isinstance(decide(policy, "anything.example", 443), Allowed)
    assert isinstance(decide(policy, "93.184.216.34", 443), Denied)


def test_nothing_is_allowed_by_default() -> None:
    """G-298."""
    assert isinstance(decide(EgressPolicy(), "example.com", 443), Denied)
    assert not name_allowed(EgressPolicy(), "example.com")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("example.com", HostRule("example.com")),
        ("*.Example.com:443", HostRule("*.example.com", (443,))),
        ("example.com:8443,443", HostRule("example.com", (443, 8443))),
        ("*", HostRule("*")),
        ("[2606:4700::1]:443", HostRule("2606:4700::1", (443,))),
        ("2606:4700::1", HostRule("2606:4700::1")),
    ],
)
def test_rules_are_read(text: str, rule: HostRule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    "text", ["", "*.", "a.*.com", "*example.com", "*.10.0.0.1", "a.com:x", "a.com:1,", "http://a.com"]
)
def test_bad_rules_are_refused(text: str) -> None:
    """G-310."""
    with pytest.raises(InvalidInput):
        parse_rule(text)


def test_a_policy_is_checked_whole() -> None:
    """G-306."""
    with pytest.raises(InvalidInput):
        checked_policy(EgressPolicy((HostRule("a.com", ()),)))
    with pytest.raises(InvalidInput):
        checked_policy(EgressPolicy((), ("10.0.0.1/8",)))
    assert checked_policy(EgressPolicy((HostRule("A.com."),))).rules == (HostRule("a.com"),)


REFUSED = """
127.0.0.1 127.9.9.9 0.0.0.0 0.1.2.3 169.254.1.1 169.254.169.254 169.254.170.2 100.100.100.200
168.63.129.16 192.0.0.192 224.0.0.1 255.255.255.255 10.1.2.3 172.16.0.1 172.31.255.255 192.168.1.1
100.64.0.1 192.0.2.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.9 240.0.0.1 :: ::1 fe80::1
ff02::1 fd00:ec2::254 fd20:ce::254 fc00::1 fec0::1 2001:db8::1 100::1 ::ffff:127.0.0.1
::ffff:10.0.0.1 ::10.0.0.1 64:ff9b::10.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::10.0.0.1
64:ff9b:1:a00:0:100:: 2002:7f00:1:: 2002:a00:1::1 2001:0:a00:1:: 2001:0:808:808:0:0:f5ff:fffe
2606:4700::5efe:10.0.0.1 2606:4700::200:5efe:127.0.0.1
""".split()  # noqa: SIM905


@pytest.mark.parametrize("text", REFUSED)
def test_addresses_refused(text: str) -> None:
    """G-63 to G-66."""
    found = refused_class(ipaddress.ip_address(text), (), frozenset())
    assert found
    assert text not in found


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "172.32.0.1",
        "100.128.0.1",
        "2606:4700::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ],
)
def test_public_addresses_pass(text: str) -> None:
    """G-62."""
    assert refused_class(ipaddress.ip_address(text), (), frozenset()) is None


def test_networks_open_private_ranges_only() -> None:
    """G-63, G-65, G-66."""
    opened = parse_networks(("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "198.18.0.0/15", "::ffff:0:0/96"))
    check = ipaddress.ip_address
    assert refused_class(check("10.1.1.1"), opened, frozenset()) is None
    for text in (
        "127.0.0.1",
        "169.254.169.254",
        "198.18.0.1",
        "192.168.0.1",
        "::ffff:10.1.1.1",
        "64:ff9b::10.1.1.1",
    ):
        assert refused_class(check(text), opened, frozenset()) is not None


def test_addresses_of_this_host_are_refused() -> None:
    """G-63."""
    own = frozenset({ipaddress.ip_address("8.8.4.4")})
    assert refused_class(ipaddress.ip_address("8.8.4.4"), (), own) == "an address of this host"
    assert refused_class(ipaddress.ip_address("::ffff:8.8.4.4"), (), own) == "an address of this host"
