"""Messages of E2B's services: what JSON says and what the binary form says is the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from corral.errors import CorralError
from corral.protocol.e2b import filesystem, process, proto
from corral.protocol.e2b.base import Wire
from corral.protocol.e2b.codecs import JSON, PROTO, Codec

ENTRY = filesystem.EntryInfo(
    name="a",
    type="FILE_TYPE_FILE",
    path="/a",
    size="12",
    mode=0o644,
    permissions="-rw-r--r--",
    owner="user",
    group="user",
    modified_time="2026-01-01T00:00:00Z",
    metadata={"k": "v"},
    is_symlink=True,
)
START = process.StartRequest(
    process=process.ProcessConfig(cmd="ls", args=["-l", ""], envs={"A": "b"}, cwd="/"),
    pty=process.Pty(size=process.Size(cols=80, rows=24)),
    stdin=False,
)


def _event(**of_one: Any) -> process.EventReply:
    return process.EventReply(event=process.ProcessEvent(**of_one))


@pytest.mark.parametrize(
    ("message", "raw"),
    [
        # As the binary form of E2B's own SDK has them, so that a field that moves is seen.
        (START, b'\n\x15\n\x02ls\x12\x02-l\x12\x00\x1a\x06\n\x01A\x12\x01b"\x01/\x12\x06\n\x04\x08P\x10\x18 \x00'),
        (_event(start=process.StartEvent(pid=300)), b"\n\x05\n\x03\x08\xac\x02"),
        (_event(data=process.DataEvent.model_construct(stderr=b"\xff\0")), b"\n\x06\x12\x04\x12\x02\xff\0"),
        (
            _event(end=process.EndEvent(exit_code=-1, exited=False, status="s", error="s")),
            b"\n\x0a\x1a\x08\x08\x01\x1a\x01s\x22\x01s",
        ),
        (_event(keepalive=process.Nothing()), b"\n\x02\x22\x00"),
        (
            process.StreamInputRequest(data=process.InputData(input=process.ProcessInput.model_construct(pty=b"x"))),
            b"\x12\x05\x12\x03\x12\x01x",
        ),
        (process.SendSignalRequest(process=process.Selector(tag="t"), signal="SIGNAL_SIGTERM"), b"\n\x03\x12\x01t\x10\x0f"),
        (
            filesystem.EntryReply(entry=ENTRY),
            b"\n8\n\x01a\x10\x01\x1a\x02/a \x0c(\xa4\x032\n-rw-r--r--:\x04userB\x04user"
            b"J\x06\x08\x80\xf2\xd6\xca\x06Z\x06\n\x01k\x12\x01v`\x01",
        ),
        (
            filesystem.WatchRequest(path="p", recursive=True, include_entry=True, allow_network_mounts=True),
            b"\n\x01p\x10\x01\x18\x01 \x01",
        ),
    ],
)  # fmt: skip
def test_messages_have_the_numbers_of_the_protocol(message: Wire, raw: bytes) -> None:
    assert PROTO.encode(message) == raw
    assert PROTO.decode(type(message), raw) == message
    assert JSON.decode(type(message), JSON.encode(message)) == message


@pytest.mark.parametrize("model", list(proto.models()))
def test_every_message_has_a_binary_form(model: type[Wire]) -> None:
    try:
        empty = PROTO.decode(model, b"")
    except ValidationError:
        return  # a reply, whose fields are always there: it is not read
    assert PROTO.decode(model, PROTO.encode(empty)) == empty


@pytest.mark.parametrize("codec", [JSON, PROTO])
@given(raw=st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(codec: Codec, raw: bytes) -> None:
    for model in (process.StartRequest, process.StreamInputRequest, process.SendSignalRequest):
        try:
            found = codec.decode(model, raw)
        except (ValidationError, CorralError):
            continue
        assert codec.decode(model, codec.encode(found)) == found


@given(
    st.builds(
        process.ProcessConfig,
        cmd=st.text(),
        args=st.lists(st.text()),
        envs=st.dictionaries(st.text(), st.text()),
        cwd=st.none() | st.text(),
    )
)
def test_both_forms_hold_the_same(message: process.ProcessConfig) -> None:
    for codec in (JSON, PROTO):
        assert codec.decode(process.ProcessConfig, codec.encode(message)) == message
