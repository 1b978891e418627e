"""E2B's API: what is translated, and what is refused, without a daemon."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.datastructures import QueryParams

from corral.api.e2b.calls import sandbox_id
from corral.api.e2b.failures import Refusal, response_of
from corral.api.e2b.listing import metadata_filter, page_of
from corral.api.e2b.names import parse_reference
from corral.api.e2b.network import Egress, check_ingress, egress_of, route_of
from corral.api.e2b.process import end_event
from corral.engine.plan import egress_policy
from corral.errors import InvalidInput, NoCapacity
from corral.model.ids import DEFAULT_TENANT
from corral.model.process import Exit
from corral.model.route import EgressProxy, Route
from corral.model.secrets import Secret
from corral.protocol.e2b.sandboxes import Network, NewSandbox, SandboxReply

START = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=4))
def test_metadata_survives_three_encodings(metadata: dict[str, str]) -> None:
    inner = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in metadata.items())
    query = QueryParams("metadata=" + quote(quote(inner, safe=""), safe=""))
    assert metadata_filter(query["metadata"]) == metadata


@pytest.mark.parametrize("text", ["a=%", "a=%2", "a=100%zz", "%a=b", "a=%25zz"])
def test_metadata_that_cannot_be_decoded_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        metadata_filter(text)
    assert caught.value.status == 400


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_hold_everything_once_in_order(order: str) -> None:
    keys = [(START + timedelta(seconds=n // 2), f"id{n}") for n in range(25)]
    seen: list[str] = []
    token: str | None = ""
    while token is not None:
        query = QueryParams({"limit": "4", "order": order, **({"nextToken": token} if token else {})})
        page = page_of([name for _, name in keys], keys, query)
        seen += page.items
        token = page.next
    newest_first = [name for _, name in sorted(keys, key=lambda key: (-key[0].timestamp(), key[1]))]
    assert seen == (newest_first if order == "desc" else newest_first[::-1])


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "-1"}, {"order": "up"}, {"nextToken": "??"}]
)
def test_bad_pages_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(Refusal) as caught:
        page_of(["a"], [(START, "a")], QueryParams(query))
    assert caught.value.status == 400


@pytest.mark.parametrize(("of_tenant", "status"), [(True, 429), (False, 503)])
def test_a_bound_of_the_tenant_is_no_lack_of_room(of_tenant: bool, status: int) -> None:
    answer = response_of(NoCapacity("as many as it may: 2", of_tenant=of_tenant))
    assert answer.status_code == status
    assert b"as many as it may: 2" in answer.body
    assert answer.headers["should-retry"] == "false"


def test_a_cursor_of_the_other_direction_is_refused() -> None:
    keys = [(START, "a"), (START, "b")]
    token = page_of(["a", "b"], keys, QueryParams({"limit": "1"})).next
    with pytest.raises(Refusal, match="Invalid next token"):
        page_of(["a", "b"], keys, QueryParams({"nextToken": token or "", "order": "asc"}))


@pytest.mark.parametrize(
    ("text", "name"),
    [("abc123", "abc123"), ("abc123-client", "abc123"), ("0123456789abcdef", "0123456789abcdef")],
)
def test_ids_lose_what_old_clients_append(text: str, name: str) -> None:
    assert sandbox_id(text) == name


@pytest.mark.parametrize("text", ["", "ABC", "a-b-c", "a_b", "../x", "a-", "a" * 65])
def test_malformed_ids_are_refused(text: str) -> None:
    with pytest.raises(Refusal, match="Invalid sandbox ID"):
        sandbox_id(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("base", "base"),
        (" Base ", "base"),
        ("base:default", "base"),
        ("default/base", "base"),
        ("x_1:v2", "x_1:v2"),
    ],
)
def test_template_references(text: str, name: str) -> None:
    assert parse_reference(DEFAULT_TENANT, text).name == name


@pytest.mark.parametrize(
    ("text", "status"),
    [("", 400), ("a b", 400), ("x/", 400), ("base:", 400), ("other/base", 404)],
)
def test_other_template_references_are_refused(text: str, status: int) -> None:
    with pytest.raises(Refusal) as caught:
        parse_reference(DEFAULT_TENANT, text)
    assert caught.value.status == status


def test_what_is_to_be_made_has_no_name_of_another_tenant() -> None:
    with pytest.raises(Refusal, match="your namespace is 'default'") as caught:
        parse_reference(DEFAULT_TENANT, "other/base", new=True)
    assert caught.value.status == 400
    assert parse_reference(DEFAULT_TENANT, "default/x:v1", new=True).name == "x:v1"


def test_network_options_that_can_be_kept() -> None:
    assert egress_of(None, None) == Egress(("*", "0.0.0.0/0"))
    assert egress_of(False, None) == Egress(())
    only = Network(deny_out=["0.0.0.0/0"], allow_out=["example.org", "*.example.com"])
    assert egress_of(None, only) == Egress(("example.org", "*.example.com"))


@pytest.mark.parametrize(
    ("options", "egress"),
    [
        (Network(deny_out=["8.8.8.8"]), Egress(("*", "0.0.0.0/0"), ("8.8.8.8/32",))),
        (Network(deny_out=["2001:db8::/32"]), Egress(("*", "0.0.0.0/0"), ("2001:db8::/32",))),
        (Network(deny_out=["0.0.0.0/0"], allow_out=["1.1.1.1", "9.9.9.0/24"]), Egress(("1.1.1.1/32", "9.9.9.0/24"))),
        (Network(deny_out=["0.0.0.0/0"], allow_out=["0.0.0.0/0"]), Egress(("*", "0.0.0.0/0"))),
        # What is allowed goes first.
        (
            Network(deny_out=["8.8.8.0/30"], allow_out=["8.8.8.1"]),
            Egress(("*", "0.0.0.0/0", "8.8.8.1/32"), ("8.8.8.0/32", "8.8.8.2/31")),
        ),
        (
            Network(deny_out=["8.8.8.8"], allow_out=["8.8.0.0/16", "::1:0/112"]),
            Egress(("*", "0.0.0.0/0", "8.8.0.0/16", "::1:0/112")),
        ),
    ],
)  # fmt: skip
def test_ranges_of_addresses(options: Network, egress: Egress) -> None:
    found = egress_of(None, options)
    assert (found.allow, sorted(found.deny)) == (egress.allow, sorted(egress.deny))
    assert len(egress_policy(found.allow, found.deny).rules) == len(found.allow) + len(found.deny)


@pytest.mark.parametrize(
    "item",
    ["private:host.corral:22", "private:db.internal:5432", "GET example.org", "@npm", "a/b", "a:1", "", " "],
)
def test_what_only_rules_of_corral_say_is_no_domain(item: str) -> None:
    with pytest.raises(Refusal) as caught:
        egress_of(False, Network(allow_out=[item]))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (Network(allow_out=["example.org"]), 400),
        (Network(deny_out=["example.org"]), 400),
        (Network(deny_out=["0.0.0.0/0"], allow_out=["0.0.0.0"]), 400),
    ],
)
def test_network_options_that_cannot_be_kept_are_refused(options: Network, status: int) -> None:
    with pytest.raises(Refusal) as caught:
        egress_of(None, options)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("mask", "good"),
    [
        ("localhost:${PORT}", True),
        ("${PORT}-box.example.org", True),
        ("${PORT}.example.org:${PORT}", True),
        ("example.org:8080", True),
        ("example.org:x${PORT}", False),
        ("example.org/${PORT}", False),
        ("exämple.org", False),
        ("a b", False),
        ("${HOST}", False),
    ],
)
def test_hosts_that_servers_inside_are_told(mask: str, good: bool) -> None:
    options = network(maskRequestHost=mask)
    if good:
        check_ingress(options, secured=False)
    else:
        with pytest.raises(Refusal) as caught:
            check_ingress(options, secured=False)
        assert caught.value.status == 400


def network(**options: Any) -> Network:
    return Network.model_validate(options)


def test_rules_become_header_fields_that_are_shown_to_nobody() -> None:
    options = network(
        rules={"API.example.org": [{"transform": {"headers": {"X-Key": "canary-0123"}}}], "b.org": []}
    )
    found = route_of(options)
    assert [(rule.host, [field.name for field in rule.fields]) for rule in found.headers] == [
        ("api.example.org", ["X-Key"]),
        ("b.org", []),
    ]
    assert found.headers[0].fields[0].value == Secret("canary-0123")
    assert b"canary" not in options.to_json()
    assert "canary" not in f"{options!r} {found!r}"
    assert options.to_dict()["rules"]["API.example.org"][0]["transform"]["headers"].keys() == {"X-Key"}
    assert route_of(None) == Route() == route_of(network())


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ({"a.org": [{"transform": {"headers": {"X": "1"}}}] * 2}, 400),
        ({"a.org": [{"transform": {"headers": {"X": "${e2b.identity.tokens.t}"}}}]}, 501),
    ],
)
def test_rules_that_cannot_be_kept_are_refused(rules: dict[str, Any], status: int) -> None:
    with pytest.raises(Refusal) as caught:
        route_of(network(rules=rules))
    assert caught.value.status == status


def test_a_proxy_is_translated_and_its_password_shown_to_nobody() -> None:
    options = network(
        egressProxy={
            "address": "proxy.test:1080",
            "username": "me",
            "password": "canary",
            "tls": {"enabled": True},
        },
        dnsServers=["9.9.9.9"],
    )
    proxy = EgressProxy("proxy.test", 1080, "me", Secret("canary"), tls=True)
    assert route_of(options) == Route(proxy=proxy, resolvers=("9.9.9.9",))
    assert b"canary" not in options.to_json()
    assert "canary" not in repr(options)
    assert options.to_dict()["egressProxy"] == {
        "address": "proxy.test:1080",
        "username": "me",
        "tls": {"enabled": True},
    }
    off = network(
        egressProxy={"address": "[2001:4860::1]:1080", "tls": {"enabled": False, "serverName": "x.test"}}
    )
    assert route_of(off).proxy == EgressProxy("2001:4860::1", 1080)


@pytest.mark.parametrize(
    "options",
    [
        {"egressProxy": {"address": "proxy.test"}},
        {"egressProxy": {"address": "proxy.test:"}},
        {"egressProxy": {"address": "proxy.test:99999"}},
        {"egressProxy": {"address": "http://proxy.test:1080"}},
        {"egressProxy": {"address": "127.0.0.1:1080"}},
        {"egressProxy": {"address": "10.0.0.1:1080"}},
        {"egressProxy": {"address": "proxy.test:1080", "password": "x"}},
        {"dnsServers": ["dns.google"]},
        {"dnsServers": ["2620:fe::9"]},
        {"dnsServers": ["999.9.9.9"]},
        {"dnsServers": ["192.168.0.1"]},
        {"dnsServers": ["169.254.169.254"]},
    ],
)
def test_ways_out_that_cannot_be_kept_are_refused(options: dict[str, Any]) -> None:
    try:
        route_of(network(**options))
    except (Refusal, InvalidInput) as error:
        assert error.status == 400  # noqa: PT017 - of either kind
    else:
        pytest.fail("it is not refused")


@pytest.mark.parametrize(
    "rule", [{"block": True}, {"transform": {"query": {}}}, {"transform": {"headers": {"X": 1}}}]
)
def test_rules_of_an_unknown_kind_are_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        network(rules={"a.org": [rule]})


@pytest.mark.parametrize(
    ("exit", "told"),
    [
        (Exit(0), (0, True, "exit status 0", None)),
        (Exit(3), (3, True, "exit status 3", "exit status 3")),
        (Exit(137, 9), (-1, False, "signal: killed", "signal: killed")),
    ],
)
def test_ends_of_processes(exit: Exit, told: tuple[int, bool, str, str | None]) -> None:
    event = end_event(exit)
    assert (event.exit_code, event.exited, event.status, event.error) == told


def test_names_on_the_wire() -> None:
    body = NewSandbox.model_validate(
        {"templateID": "base", "allow_internet_access": False, "envVars": {"A": "1"}, "unknown": 1}
    )
    assert (body.template_id, body.allow_internet_access, body.env_vars) == ("base", False, {"A": "1"})
    reply = SandboxReply(template_id="t", sandbox_id="s", envd_version="0.5.14").to_dict()
    assert reply == {"templateID": "t", "sandboxID": "s", "clientID": "corral", "envdVersion": "0.5.14"}
