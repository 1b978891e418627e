"""The host's proxy variables."""

import pytest

from corral.errors import InvalidInput
from corral.gateway.proxies import Proxies


def test_each_scheme_has_its_proxy() -> None:
    """G-71."""
    proxies = Proxies(
        {"HTTPS_PROXY": "http://user:p%40ss@proxy.example:3128", "http_proxy": "proxy2.example"}
    )
    secure, plain = proxies.find("https", "a.com", 443), proxies.find("http", "a.com", 80)
    assert secure is not None
    assert plain is not None
    assert (secure.url, secure.authorization) == ("http://proxy.example:3128", "Basic dXNlcjpwQHNz")
    assert (plain.url, plain.authorization) == ("http://proxy2.example:80", "")
    assert "p@ss" not in repr(secure)
    assert Proxies({}).find("https", "a.com", 443) is None
    assert Proxies({"ALL_PROXY": "https://p"}).find("https", "a.com", 443) is not None


@pytest.mark.parametrize(
    ("host", "port", "direct"),
    [
        ("a.example", 443, True),
        ("x.a.example", 443, True),
        ("xa.example", 443, False),
        ("b.example", 8443, True),
        ("b.example", 443, False),
        ("10.1.2.3", 443, True),
        ("11.1.2.3", 443, False),
        ("localhost", 443, True),
        ("127.0.0.1", 443, True),
        ("c.example", 443, True),
    ],
)
def test_no_proxy(host: str, port: int, direct: bool) -> None:
    proxies = Proxies(
        {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.example, b.example:8443 ,10.0.0.0/8,*.c.example"}
    )
    assert (proxies.find("https", host, port) is None) is direct


def test_a_star_switches_all_off() -> None:
    assert Proxies({"HTTPS_PROXY": "http://p", "no_proxy": "*"}).find("https", "a.com", 443) is None


@pytest.mark.parametrize("url", ["socks5://p:1080", "http://", "ftp://p"])
def test_other_proxies_are_refused_rather_than_bypassed(url: str) -> None:
    """G-4."""
    with pytest.raises(InvalidInput):
        Proxies({"HTTPS_PROXY": url})
