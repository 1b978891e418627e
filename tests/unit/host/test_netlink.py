"""Netlink messages as bytes."""

import errno
import struct
from ipaddress import IPv4Address, IPv4Interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.host import netlink


def header(length: int, kind: int, flags: int, sequence: int) -> bytes:
    return struct.pack("=IHHII", length, kind, flags, sequence, 0)


def acknowledgement(sequence: int, code: int, tail: bytes = b"", flags: int = 0) -> bytes:
    body = struct.pack("=i", code) + header(32, 16, 5, sequence) + tail
    return header(16 + len(body), 2, flags, sequence) + body


def test_a_default_route_is_encoded_as_the_kernel_documents_it() -> None:
    encoded = netlink.encode([netlink.put_default_route(IPv4Address("10.200.0.1"), 2)])
    assert encoded.hex() == (
        "2c000000" "1800" "0505" "01000000" "00000000"  # length, RTM_NEWROUTE, flags, sequence, pid
        "02000000" "fe040001" "00000000"  # IPv4, /0; table main, static, universe, unicast
        "0800" "0500" "0ac80001"  # gateway
        "0800" "0400" "02000000"  # interface
    )  # fmt: skip


def test_requests_of_a_batch_are_numbered_and_aligned() -> None:
    batch = netlink.encode(
        [
            netlink.add_veth("eth0", 2, "e", 3, 9),
            netlink.put_address(2, IPv4Interface("10.200.0.2/30")),
            netlink.put_any_address(),
            netlink.set_up(1),
        ]
    )
    sequences, offset = [], 0
    while offset < len(batch):
        length, _, flags, sequence, _ = struct.unpack_from("=IHHII", batch, offset)
        assert flags & 0x5 == 0x5
        sequences.append(sequence)
        offset += length + -length % 4
    assert (sequences, offset) == ([1, 2, 3, 4], len(batch))


@pytest.mark.parametrize(("size", "padded"), [(0, 4), (1, 8), (4, 8), (5, 12)])
def test_attributes_are_padded_but_not_counted_as_such(size: int, padded: int) -> None:
    encoded = netlink.attribute(7, b"x" * size)
    assert len(encoded) == padded
    assert list(netlink.attributes(encoded)) == [(7, b"x" * size)]


def test_replies_carry_errno_and_the_kernels_reason() -> None:
    reason = netlink.attribute(1, b"Device does not exist\0")
    datagram = acknowledgement(1, 0, flags=0x100) + acknowledgement(2, -errno.ENODEV, reason, 0x300)
    assert list(netlink.decode(datagram)) == [
        netlink.Reply(1, 0, ""),
        netlink.Reply(2, errno.ENODEV, "Device does not exist"),
    ]


def test_an_uncapped_error_echoes_the_whole_request_before_its_reason() -> None:
    reason = bytes(16) + netlink.attribute(1, b"no\0")  # the echoed request is 32 bytes long
    assert list(netlink.decode(acknowledgement(5, -errno.EPERM, reason, 0x200))) == [
        netlink.Reply(5, errno.EPERM, "no")
    ]


def test_other_messages_are_passed_over() -> None:
    other = header(20, 16, 0, 1) + b"link"
    assert [reply.sequence for reply in netlink.decode(other + acknowledgement(1, 0))] == [1]


@given(st.binary(max_size=256))
def test_no_datagram_breaks_the_parser(datagram: bytes) -> None:
    replies = list(netlink.decode(datagram))
    assert len(replies) <= len(datagram) // 16
    assert sum(len(value) for _, value in netlink.attributes(datagram)) <= len(datagram)


@given(st.binary(max_size=64), st.integers(-(2**31) + 1, 0), st.integers(0, 0xFFFF))
def test_no_acknowledgement_breaks_the_parser(tail: bytes, code: int, flags: int) -> None:
    (reply,) = netlink.decode(acknowledgement(3, code, tail, flags))
    assert (reply.sequence, reply.errno) == (3, -code)
