"""What creators of sandboxes may say of how requests go out."""

from base64 import b64encode

import pytest

from corral.errors import InvalidInput
from corral.model.route import EgressProxy, HeaderField, HeaderRule, Route
from corral.model.secrets import Secret
from corral.policy.addresses import parse_networks
from corral.policy.routes import checked_route, credentials_in, parse_proxy, rule_at


def rule(host: str, *fields: tuple[str, str]) -> HeaderRule:
    return HeaderRule(host, tuple(HeaderField(name, Secret(value)) for name, value in fields))


def test_hosts_are_made_canonical() -> None:
    found = checked_route(Route((rule("API.Example.com.", ("X-Key", "v")), rule("*.Example.COM"))))
    assert [item.host for item in found.headers] == ["api.example.com", "*.example.com"]


@pytest.mark.parametrize(
    "rules",
    [
        (rule("*", ("X-Key", "v")),),
        (rule("*.com", ("X-Key", "v")),),
        (rule("1.2.3.4", ("X-Key", "v")),),
        (rule("a" * 60 + "." + "b" * 60 + ".example.com", ("X-Key", "v")),),
        (rule("api.anthropic.com", ("X-Api-Key", "v")),),
        (rule("bad host", ("X-Key", "v")),),
        (rule("a.test", ("X-Key", "v")), rule("A.test", ("X-Key", "v"))),
        tuple(rule(f"a{number}.test") for number in range(11)),
        (rule("a.test", *((f"X-{number}", "v") for number in range(21))),),
        (rule("a.test", ("X-Key", "v"), ("x-key", "w")),),
        (rule("a.test", ("Host", "v")),),
        (rule("a.test", ("Content-Length", "1")),),
        (rule("a.test", ("X Key", "v")),),
        (rule("a.test", ("X" * 65, "v")),),
        (rule("a.test", ("X-Key", "v" * 2049)),),
        (rule("a.test", ("X-Key", "v\r\nX-Other: w")),),
        (rule("a.test", ("X-Key", " v")),),
        (rule("a.test", ("X-Key", "ü")),),
    ],
)
def test_what_cannot_be_kept_is_refused_without_a_value(rules: tuple[HeaderRule, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_route(Route(rules))
    for item in rules:
        for field in item.fields:
            value = field.value.reveal()
            assert len(value) < 3 or value not in str(caught.value)


def test_the_most_specific_rule_holds_alone() -> None:
    route = Route((rule("*.test"), rule("*.b.test"), rule("a.b.test")))
    found = {
        host: rule_at(route, host)
        for host in ("a.b.test", "x.b.test", "x.y.b.test", "b.test", "test", "other")
    }
    hosts = {host: item.host if item else None for host, item in found.items()}
    assert hosts == {
        "a.b.test": "a.b.test",
        "x.b.test": "*.b.test",
        "x.y.b.test": "*.b.test",
        "b.test": "*.test",
        "test": None,
        "other": None,
    }


@pytest.mark.parametrize(
    ("name", "value", "credentials"),
    [
        ("X-Key", "key-0123456789", {"key-0123456789"}),
        ("Authorization", "Bearer key-0123456789", {"Bearer key-0123456789", "key-0123456789"}),
        (
            "Authorization",
            "Basic " + b64encode(b"me:pass-word-1").decode(),
            {"Basic bWU6cGFzcy13b3JkLTE=", "bWU6cGFzcy13b3JkLTE=", "pass-word-1"},
        ),
        ("Authorization", "Basic !", set()),
        ("X-Team", "red", set()),
        ("Accept", "application/json", set()),
    ],
)
def test_what_of_a_field_may_not_come_back(name: str, value: str, credentials: set[str]) -> None:
    assert set(credentials_in(HeaderField(name, Secret(value)))) == credentials


def test_a_proxy_and_servers_of_names() -> None:
    proxy = EgressProxy(
        "Proxy.Example.com", 1080, "me", Secret("canary"), tls=True, server_name="Other.example.com"
    )
    found = checked_route(Route(proxy=proxy, resolvers=("9.9.9.9", "2620:fe::0009", "9.9.9.9")))
    assert found.proxy is not None
    assert (found.proxy.host, found.proxy.server_name) == ("proxy.example.com", "other.example.com")
    assert found.resolvers == ("9.9.9.9", "2620:fe::9")
    assert "canary" not in repr(found)


@pytest.mark.parametrize(
    "proxy",
    [
        EgressProxy("127.0.0.1", 1080),
        EgressProxy("::1", 1080),
        EgressProxy("169.254.169.254", 80),
        EgressProxy("10.0.0.1", 1080),
        EgressProxy("host.corral", 1080),
        EgressProxy("metadata.google.internal", 80),
        EgressProxy("2130706433", 1080),
        EgressProxy("a b", 1080),
        EgressProxy("proxy.test", 0),
        EgressProxy("proxy.test", 65536),
        EgressProxy("proxy.test", 1080, password=Secret("canary")),
        EgressProxy("proxy.test", 1080, "u" * 256),
        EgressProxy("proxy.test", 1080, "u", Secret("canary" * 50)),
        EgressProxy("proxy.test", 1080, server_name="other.test"),
        EgressProxy("proxy.test", 1080, tls=True, authorities="no PEM"),
        EgressProxy("proxy.test", 1080, tls=True, authorities="x" * 100_000),
    ],
)
def test_a_proxy_that_cannot_be_used_is_refused(proxy: EgressProxy) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_route(Route(proxy=proxy), opened=())
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "resolvers", [("dns.test",), ("127.0.0.1",), ("192.168.1.1",), tuple(f"9.9.9.{n}" for n in range(11))]
)
def test_servers_of_names_that_cannot_be_used_are_refused(resolvers: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        checked_route(Route(resolvers=resolvers), opened=())


def test_both_may_be_in_a_network_that_the_operator_opened() -> None:
    opened = parse_networks(("10.1.0.0/16",))
    route = Route(proxy=EgressProxy("10.1.0.1", 1080), resolvers=("10.1.0.2",))
    assert checked_route(route, opened) == route


@pytest.mark.parametrize(
    ("text", "proxy"),
    [
        ("socks5://proxy.test:1080\n", EgressProxy("proxy.test", 1080)),
        ("socks5://me:p%40ss@proxy.test:1080", EgressProxy("proxy.test", 1080, "me", Secret("p@ss"))),
        ("socks5+tls://[2001:4860::1]:443/", EgressProxy("2001:4860::1", 443, tls=True)),
    ],
)
def test_proxies_as_urls(text: str, proxy: EgressProxy) -> None:
    assert parse_proxy(text) == proxy


@pytest.mark.parametrize(
    "text",
    ["", "proxy.test:1080", "socks5://canary@proxy.test", "http://canary@proxy.test:1", "socks5://canary:1/x", "socks5://[canary:1",
     "socks5://canary:99999", "socks5://a:1?canary"],
)  # fmt: skip
def test_what_is_no_proxys_url_is_refused_without_it(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_proxy(text)
    assert "canary" not in str(caught.value)
