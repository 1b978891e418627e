"""The DNS question parser and the answers, held against dnspython."""

from ipaddress import IPv4Address, IPv6Address

import dns.edns
import dns.message
import dns.opcode
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput, TooLarge
from corral.wire.dns import MAX_MESSAGE, Deframer, Rcode, Type, error_reply, frame, parse_query, reply


def question(name: str = "ExAmple.com", kind: str = "A", *, edns: bool = False) -> bytes:
    return dns.message.make_query(name, kind, use_edns=0 if edns else None).to_wire()


def test_a_question_is_read() -> None:
    """G-287."""
    query = parse_query(question())
    assert (query.name, query.qtype, query.edns) == ("ExAmple.com", Type.A, False)
    assert parse_query(question(edns=True)).edns
    assert parse_query(question(".", "NS")).name == ""


@pytest.mark.parametrize("edns", [False, True])
def test_an_answer_keeps_case_and_id(edns: bool) -> None:
    """G-287, G-291."""
    data = question(edns=edns)
    answer = dns.message.from_wire(reply(parse_query(data), addresses=(IPv4Address("198.18.0.7"),)))
    assert answer.id == int.from_bytes(data[:2], "big")
    assert answer.question[0].name.to_text() == "ExAmple.com."
    assert [record.address for record in answer.answer[0]] == ["198.18.0.7"]
    assert answer.answer[0].ttl == 60
    assert (answer.edns >= 0) == edns


def test_ipv6_answers() -> None:
    answer = dns.message.from_wire(reply(parse_query(question(kind="AAAA")), addresses=(IPv6Address("::1"),)))
    assert [record.address for record in answer.answer[0]] == ["::1"]


def test_a_denial_explains_itself() -> None:
    """G-295."""
    query = parse_query(question("a" * 63 + "." + "b" * 63 + "." + "c" * 63 + ".example", edns=True))
    data = reply(query, Rcode.NXDOMAIN, explain="not allowed " * 20)
    answer = dns.message.from_wire(data)
    assert answer.rcode() == dns.rcode.NXDOMAIN
    (option,) = answer.options
    assert isinstance(option, dns.edns.EDEOption)
    assert option.code == dns.edns.EDECode.BLOCKED
    assert (option.text or "").startswith("not allowed")
    assert len(data) <= 512


def variants() -> list[bytes]:
    good = dns.message.make_query("ExAmple.com", "A", use_edns=None, id=1).to_wire()
    two = dns.message.from_wire(good)
    two.question.append(dns.message.from_wire(question("b.com")).question[0])
    update = dns.message.make_query("a.com", "A", id=2)
    update.set_opcode(dns.opcode.UPDATE)
    chaos = dns.message.make_query("a.com", "TXT", "CH", id=3)
    response = dns.message.make_response(dns.message.from_wire(good))
    return [
        b"", good[:11], good[:-1], good + b"x", two.to_wire(), update.to_wire(), chaos.to_wire(), response.to_wire(),
        good[:12] + b"\xc0\x0c" + good[-4:], good[:12] + b"\x03a.b\x00" + good[-4:], good[:12] + b"\x01\x00\x00" + good[-4:],
        good[:12] + (b"\x3f" + b"a" * 63) * 4 + b"\x00" + good[-4:], good[:12] + b"\x40" + b"a" * 64 + b"\x00" + good[-4:],
        good + bytes(MAX_MESSAGE), good[:10] + b"\x00\x01" + good[12:],
    ]  # fmt: skip


@pytest.mark.parametrize("data", variants())
def test_what_no_resolver_sends_is_refused(data: bytes) -> None:
    """G-287."""
    with pytest.raises(InvalidInput):
        parse_query(data)
    answer = error_reply(data, Rcode.FORMERR)
    if answer is not None:
        assert dns.message.from_wire(answer).rcode() == dns.rcode.FORMERR


def test_responses_are_never_answered() -> None:
    """Two servers that answer each other's errors would not stop."""
    assert error_reply(bytes(12)[:2] + b"\x80" + bytes(9), Rcode.FORMERR) is None


@given(st.binary(max_size=600))
def test_noise_is_refused(data: bytes) -> None:
    try:
        query = parse_query(data)
    except InvalidInput:
        error_reply(data, Rcode.FORMERR)
        return
    dns.message.from_wire(reply(query, Rcode.REFUSED))


@given(st.lists(st.binary(max_size=100), max_size=8), st.integers(1, 7))
def test_tcp_framing(messages: list[bytes], step: int) -> None:
    stream = b"".join(frame(message) for message in messages)
    deframer = Deframer()
    found = [m for i in range(0, len(stream), step) for m in deframer.feed(stream[i : i + step])]
    assert found == messages


def test_tcp_messages_are_bounded() -> None:
    with pytest.raises(TooLarge):
        Deframer().feed(b"\xff\xff")
