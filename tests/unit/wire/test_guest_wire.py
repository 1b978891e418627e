"""The guest's protocol: frames out, events in, however they are cut, and whatever a hostile guest sends."""

import errno
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import Conflict, Forbidden, InvalidInput, NoCapacity, TooLarge, UpstreamFailed
from corral.model.ids import ProcessId
from corral.model.process import Exit, TerminalSize
from corral.wire import guest
from corral.wire.guest import (
    GuestDecoder,
    GuestEvent,
    GuestFlag,
    GuestState,
    Ready,
    Report,
    StartStage,
    Welcome,
)

ONE = ProcessId(1)


def header(frame: bytes) -> tuple[int, int, int, int]:
    kind, flags, length, ident = struct.unpack_from("<BBHI", frame)
    assert length == len(frame) - 8
    return kind, flags, length, ident


def report_frame(ident: int = 1, **changes: Any) -> bytes:
    values = {
        "state": 1, "flags": 0, "signal": 0, "stage": 0, "errno": 0, "code": 0, "pid": 7, "reserved": 0,
        "out": 0, "err": 0, "received": 0, "consumed": 0,
    }  # fmt: skip
    return struct.pack("<BBHIBBBBHHiIQQQQ", 67, 0, 48, ident, *{**values, **changes}.values())


def welcome_frame(nonce: int = 5, version: int = 1, count: int = 2) -> bytes:
    return struct.pack("<BBHIHHI", 65, 0, 8, nonce, version, 0, count)


def ready_frame(nonce: int = 5) -> bytes:
    return struct.pack("<BBHI", 66, 0, 0, nonce)


# -- out
# ---------------------------------------------------------------------------------------------------------------


def test_frames_are_what_init_reads() -> None:
    assert guest.hello(9) == struct.pack("<BBHIHHI", 1, 0, 8, 9, 1, 0, 0)
    assert guest.stdin(ONE, b"abc") == struct.pack("<BBHI", 4, 0, 3, 1) + b"abc"
    assert guest.stdin_close(ONE) == struct.pack("<BBHI", 5, 0, 0, 1)
    assert guest.resize(ONE, TerminalSize(24, 80)) == struct.pack("<BBHIHH", 6, 0, 4, 1, 24, 80)
    assert guest.signal(ONE, 15) == struct.pack("<BBHIBB", 7, 0, 2, 1, 15, 0)
    assert guest.signal(ONE, 2, tree=True) == struct.pack("<BBHIBB", 7, 0, 2, 1, 2, 1)
    assert guest.kill(ONE) == struct.pack("<BBHI", 8, 0, 0, 1)
    assert guest.forget(ONE) == struct.pack("<BBHI", 9, 0, 0, 1)
    assert guest.announce("/run/a", b"b\0c") == struct.pack("<BBHI", 12, 0, 10, 0) + b"/run/a\0b\0c"
    assert len(guest.announce("/run/a", bytes(guest.MAX_PAYLOAD - 7))) == guest.MAX_FRAME
    with pytest.raises(TooLarge):
        guest.announce("/run/a", bytes(guest.MAX_PAYLOAD - 6))
    assert guest.shutdown(1.5) == struct.pack("<BBHI", 10, 0, 0, 1500)
    assert guest.shutdown(-1) == struct.pack("<BBHI", 10, 0, 0, 0)
    assert guest.shutdown(1e12) == struct.pack("<BBHI", 10, 0, 0, 0x7FFFFFFF)


strings = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3000)


@given(
    argv=st.lists(strings, max_size=6),
    env=st.dictionaries(strings, strings, max_size=4),
    cwd=strings,
    user=strings,
)
def test_a_command_survives_its_frames(argv: list[str], env: dict[str, str], cwd: str, user: str) -> None:
    frames = guest.exec_frames(ONE, argv=["program", *argv], env=env, cwd=cwd, user=user)
    assert all(len(frame) <= guest.MAX_FRAME for frame in frames)
    assert [header(frame)[0] for frame in frames] == [2] + [3] * (len(frames) - 1)
    size, argc, envc, rows, cols, flags = struct.unpack_from("<IHHHHI", frames[0], 8)
    blob = b"".join(frame[8:] for frame in frames[1:])
    assert (size, argc, envc, rows, cols, flags) == (len(blob), len(argv) + 1, len(env), 0, 0, 0)
    wanted = [user, cwd, "program", *argv, *(f"{key}={value}" for key, value in env.items())]
    assert blob.split(b"\0") == [*(text.encode() for text in wanted), b""]


def test_flags_of_a_command() -> None:
    def flags(**options: Any) -> tuple[int, ...]:
        frame = guest.exec_frames(ONE, argv=["x"], env={}, cwd="/", user="root", **options)[0]
        return struct.unpack_from("<HHI", frame, 16)

    assert flags(stdin=True) == (0, 0, 1)
    assert flags(terminal=TerminalSize(30, 90)) == (30, 90, 2)
    assert flags(stdin=True, terminal=TerminalSize(30, 90)) == (30, 90, 3)


def test_names_that_are_not_utf8_pass() -> None:
    frames = guest.exec_frames(ONE, argv=["x", "\udcff"], env={}, cwd="/", user="root")
    assert b"\xff\0" in frames[1]


def test_bad_commands_are_refused() -> None:
    def frames(argv: Sequence[str], env: dict[str, str] | None = None) -> None:
        guest.exec_frames(ONE, argv=argv, env=env or {}, cwd="/", user="root")

    for argv in ([], [""], ["x", "a\0b"]):
        with pytest.raises(InvalidInput):
            frames(argv)
    with pytest.raises(TooLarge):
        frames(["x", "y" * 200_000])
    with pytest.raises(InvalidInput):
        guest.signal(ONE, 65)
    with pytest.raises(TooLarge):
        guest.stdin(ONE, b"x" * (guest.MAX_PAYLOAD + 1))


# -- in
# ----------------------------------------------------------------------------------------------------------------


def test_events() -> None:
    data = (
        welcome_frame()
        + report_frame(1, out=10, err=3, received=8, consumed=5)
        + report_frame(2, state=2, signal=9, code=137, flags=1)
        + report_frame(3, state=3, stage=4, errno=2)
        + ready_frame()
    )
    assert GuestDecoder().feed(data) == [
        Welcome(nonce=5, version=1, processes=2),
        Report(ONE, GuestState.RUNNING, GuestFlag(0), None, 7, 10, 3, 8, 5),
        Report(ProcessId(2), GuestState.EXITED, GuestFlag.STDOUT_TRUNCATED, Exit(137, 9), 7, 0, 0, 0, 0),
        Report(ProcessId(3), GuestState.FAILED, GuestFlag(0), None, 7, 0, 0, 0, 0, StartStage.USER, 2),
        Ready(nonce=5),
    ]


def test_fields_of_a_later_version_are_passed_over() -> None:
    longer = bytearray(report_frame(out=4) + b"more")
    longer[2:4] = struct.pack("<H", 52)
    (event,) = GuestDecoder().feed(bytes(longer))
    assert isinstance(event, Report)
    assert event.stdout == 4


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<BBHI", 64, 0, 0, 1),
        struct.pack("<BBHI", 1, 0, 0, 1),
        struct.pack("<BBHI", 67, 0, 47, 1),
        struct.pack("<BBHI", 67, 0, 4089, 1),
        struct.pack("<BBHI", 65, 0, 2, 1),
        report_frame(0),
        report_frame(0x80000000),
        report_frame(state=0),
        report_frame(state=4),
        report_frame(stage=7),
        report_frame(signal=65),
        report_frame(code=256),
        report_frame(flags=16),
        report_frame(out=1 << 63),
        report_frame(received=1, consumed=2),
    ],
)
def test_what_no_init_sends_is_refused(data: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        GuestDecoder().feed(data)


frames = st.one_of(
    st.builds(welcome_frame, st.integers(0, 2**32 - 1)),
    st.builds(ready_frame, st.integers(0, 2**32 - 1)),
    st.builds(
        report_frame,
        st.integers(1, 2**31 - 1),
        state=st.integers(1, 3),
        out=st.integers(0, 2**63 - 1),
        code=st.integers(0, 255),
    ),
)


@given(st.lists(frames, max_size=20), st.data())
def test_cutting_changes_nothing(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    decoder, events = GuestDecoder(), list[GuestEvent]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += decoder.feed(stream[start:end])
    assert events == GuestDecoder().feed(stream)
    assert len(events) == len(sent)


@given(st.lists(st.binary(max_size=300), max_size=30))
def test_any_bytes_are_events_or_a_declared_error(chunks: list[bytes]) -> None:
    decoder = GuestDecoder()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
            assert decoder.buffered < guest.MAX_FRAME
    except UpstreamFailed:
        pass


# -- failures
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "number", "kind"),
    [
        (StartStage.USER, errno.ENOENT, InvalidInput),
        (StartStage.WORKDIR, errno.ENOENT, InvalidInput),
        (StartStage.WORKDIR, errno.EACCES, Forbidden),
        (StartStage.FORK, errno.EAGAIN, NoCapacity),
        (StartStage.FORK, errno.EMFILE, NoCapacity),
        (StartStage.TERMINAL, errno.ENOSPC, NoCapacity),
        (StartStage.CREDENTIALS, errno.EINVAL, Conflict),
        (StartStage.COMMAND, 9999, Conflict),
    ],
)
def test_failed_starts_say_what_to_do(stage: StartStage, number: int, kind: type[Exception]) -> None:
    (report,) = GuestDecoder().feed(report_frame(state=3, stage=stage, errno=number))
    assert isinstance(report, Report)
    failure = guest.start_failure(report, user="nobody", cwd="/nowhere")
    assert type(failure) is kind
    assert failure.hint
