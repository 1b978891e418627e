"""Stand-in addresses."""

from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.names import SYNTHETIC, NameTable
from corral.model.egress import EgressPolicy, HostRule

POLICY = EgressPolicy((HostRule("a.com"), HostRule("b.com"), HostRule("*.w.com")))


@given(st.lists(st.from_regex(r"[a-z]{1,8}\.w\.com", fullmatch=True), max_size=50))
def test_names_and_addresses_are_one_to_one_and_stay(names: list[str]) -> None:
    """G-284."""
    table, later = NameTable(POLICY), NameTable(POLICY)
    given_out = {name: table.address(name) for name in names}
    assert len(set(given_out.values())) == len(given_out)
    for name, address in given_out.items():
        assert address in SYNTHETIC
        assert table.stands_for(str(address), name)
        assert not table.stands_for(str(address), "a.com")
    # Another process, after a restart, knows them although nobody asked it yet.
    assert all(later.stands_for(str(address), name) for name, address in given_out.items())


def test_which_connection_may_be_to_which_name() -> None:
    """G-47."""
    table = NameTable(POLICY)
    first, second = str(table.address("a.com")), str(table.address("b.com"))
    assert table.stands_for(first, "a.com")
    assert not table.stands_for(second, "a.com")
    assert table.stands_for("93.184.216.34", "a.com")
    assert not table.stands_for("10.200.0.1", "a.com")
    assert table.stands_for("10.200.0.1", "gateway.corral")
    assert not table.stands_for(first, "gateway.corral")
