"""What stands before a pack: git's own, and what a hostile client makes of it (G-248 to G-250)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, InvalidInput, TooLarge
from corral.model.git import Operation
from corral.model.push import Command
from corral.wire.gitpush import MAX_COMMANDS, PushHead, PushReader, report, shown, valid_ref
from corral.wire.pktline import FLUSH, encode, take

A, B, Z = "a" * 40, "b" * 40, "0" * 40
CAPABILITIES = "report-status-v2 side-band-64k object-format=sha1 agent=git/2"


def command(old: str, new: str, ref: str, capabilities: str | None = None) -> bytes:
    text = f"{old} {new} {ref}" + (f"\0{capabilities}" if capabilities is not None else "")
    return encode(text.encode())


def read(data: bytes, step: int = 4096) -> tuple[PushHead | None, bytes]:
    reader = PushReader()
    for start in range(0, len(data), step):
        head = reader.feed(data[start : start + step])
        if head is not None:
            return head, reader.rest + data[start + step :]
    return None, b""


@pytest.mark.parametrize("step", [1, 3, 100, 4096])
def test_a_push(step: int) -> None:
    section = command(A, B, "refs/heads/main", CAPABILITIES) + command(Z, A, "refs/heads/x") + FLUSH
    head, rest = read(section + b"PACK...", step)
    assert head is not None
    assert head.commands == (Command("refs/heads/main", A, B), Command("refs/heads/x", Z, A))
    assert (head.band, head.reports, head.has_pack, head.raw) == (65520, True, True, section)
    assert rest == b"PACK..."


def test_options_and_a_shallow_clone() -> None:
    section = encode(f"shallow {A}".encode()) + command(Z, B, "refs/heads/x", "push-options") + FLUSH
    section += encode(b"ci.skip") + encode(b"a=b\n") + FLUSH
    head, rest = read(section + b"PACK")
    assert head is not None
    assert (head.options, rest, head.raw) == (("ci.skip", "a=b"), b"PACK", section)


def test_the_probe_has_no_commands() -> None:
    head, _ = read(FLUSH)
    assert head is not None
    assert head.commands == ()


def test_a_deletion_has_no_pack() -> None:
    head, _ = read(command(A, Z, "refs/heads/x", CAPABILITIES) + FLUSH)
    assert head is not None
    assert not head.has_pack
    assert head.commands[0].operation(forward=False) is Operation.DELETE


@pytest.mark.parametrize(
    "section",
    [
        command(A, B, "refs/heads/main", CAPABILITIES) + command(A, B, "refs/heads/main"),
        command(A, B, "refs/heads/a", CAPABILITIES) + command(A, B, "refs/heads/b", CAPABILITIES),
        command(A, "b" * 64, "refs/heads/a", CAPABILITIES),
        command(A, B, "refs/heads/a", "") + command("a" * 64, "b" * 64, "refs/heads/b"),
        command(Z, Z, "refs/heads/a", CAPABILITIES),
        command(A.upper(), B, "refs/heads/a", CAPABILITIES),
        command(A, B, "refs/heads/../x", CAPABILITIES),
        command(A, B, "refs/heads/a b", CAPABILITIES),
        command(A, B, "refs/heads/a\nrefs/heads/b", CAPABILITIES),
        command(A, B, "main", CAPABILITIES),
        encode(f"{A} {B} refs/heads/\xff\0x".encode("latin-1")),
        encode(f"push-cert\0{CAPABILITIES}".encode()),
        b"0001",
        b"0002",
        encode(b""),
        command(A, B, "refs/heads/a", "x\0report-status"),
        command(A, B, "refs/heads/a", "push-options") + FLUSH + encode(b"a\x1b[2J"),
        command(A, B, "refs/heads/a") + encode(f"shallow {A}".encode()),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(section: bytes) -> None:
    with pytest.raises(InvalidInput):
        read(section + FLUSH)


def test_too_much_is_refused() -> None:
    many = command(Z, A, "refs/heads/x", CAPABILITIES)
    many += b"".join(command(Z, A, f"refs/heads/{n}") for n in range(MAX_COMMANDS))
    with pytest.raises(TooLarge):
        read(many)
    with pytest.raises(CorralError):
        read(b"ffef" + b"x" * 200_000, 1000)


@pytest.mark.parametrize(
    "name",
    ["refs/heads/", "refs/heads/a..b", "refs/heads/.a", "refs/heads/a.lock", "refs/heads/a.lock/b", "refs/heads/@{x",
     "refs/heads/-x", "refs/heads//a", "refs/heads/a.", "heads/a", "refs/x", "refs/heads/a\u202eb", "refs/heads/a~1",
     "refs/heads/" + "a" * 300, "HEAD", "refs/heads/a*", "refs/heads/\x7f"],
)  # fmt: skip
def test_names_that_are_none(name: str) -> None:
    assert not valid_ref(name)


@given(st.binary(max_size=600), st.integers(1, 64))
def test_any_bytes_are_a_push_or_refused(data: bytes, step: int) -> None:
    try:
        head, _ = read(data, step)
    except CorralError:
        return
    if head is not None:
        assert all(valid_ref(one.ref) for one in head.commands)


def test_a_refusal_is_a_report() -> None:
    head, _ = read(command(A, B, "refs/heads/main", CAPABILITIES) + FLUSH)
    assert head is not None
    buffer = bytearray(shown(head, "why") + report(head, {"refs/heads/main": "no"}))
    lines = []
    while (line := take(buffer)) is not None:
        lines.append(line.data)
    assert lines == [
        b"\x02why\n",
        b"\x01" + encode(b"unpack ok\n") + encode(b"ng refs/heads/main no\n") + FLUSH,
        b"",
    ]
