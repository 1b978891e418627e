"""Records that must be read again by the next daemon."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from corral.drivers.oci_places import Record, Records
from corral.drivers.records import decode_process, encode_process
from corral.errors import InternalError, NotFound
from corral.model.ids import LayerDigest, ProcessId, SandboxId
from corral.model.process import Exit, ProcessInfo, ProcessSpec, TerminalSize

BOX = SandboxId("0123456789abcdef")


@pytest.mark.parametrize(
    "info",
    [
        ProcessInfo(ProcessId(1), ProcessSpec(("true",), "root", "/"), datetime(2026, 1, 1, tzinfo=UTC)),
        ProcessInfo(
            ProcessId(2),
            ProcessSpec(("a", "\udcff", ""), "0:0", "/x", {"A": "ü"}, True, TerminalSize(24, 80), 1.5, "tag"),
            datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC),
            Exit(137, 9, "timeout"),
        ),
    ],
)
def test_process_survives(info: ProcessInfo) -> None:
    assert decode_process(encode_process(info)) == info


def test_last_whole_process_record_holds() -> None:
    running = ProcessInfo(ProcessId(1), ProcessSpec(("true",), "root", "/"), datetime(2026, 1, 1, tzinfo=UTC))
    first, last = encode_process(running), encode_process(replace(running, exit=Exit(3)))
    ended = decode_process(first + last)
    assert ended is not None
    assert ended.exit == Exit(3)
    for size in range(len(first)):
        assert decode_process(first + last[:size]) == running
        assert decode_process(first + first[:size] + last) == ended
        assert decode_process(first[:size]) is None


@pytest.mark.parametrize("raw", [b"{}", b"[]", b'{"id": 1, "spec": {"argv": 3}}'])
def test_damaged_process_record_is_a_declared_error(raw: bytes) -> None:
    with pytest.raises(InternalError):
        decode_process(raw)


def test_sandbox_records(tmp_path: Path) -> None:
    records = Records(tmp_path / "sandboxes")
    assert records.known() == set()
    record = Record("runc", 100_000, (LayerDigest("sha256:a"), LayerDigest("sha256:b")))
    records.save(BOX, record)
    (tmp_path / "sandboxes" / "junk.json").write_text("x")
    assert records.get(BOX) == record
    assert records.known() == {BOX}
    records.remove(BOX)
    records.remove(BOX)
    assert records.find(BOX) is None
    with pytest.raises(NotFound):
        records.get(BOX)


def test_the_beginning_of_a_record_is_known_and_goes_with_it(tmp_path: Path) -> None:
    """What a crash leaves between the two steps of `save`."""
    records = Records(tmp_path)
    records.save(BOX, Record("runc", 100_000, ()))
    (tmp_path / f"{BOX}.json").rename(tmp_path / f"{BOX}.new")
    assert records.known() == {BOX}
    records.remove(BOX)
    assert list(tmp_path.iterdir()) == []


def test_damaged_sandbox_record_is_a_declared_error(tmp_path: Path) -> None:
    records = Records(tmp_path)
    (tmp_path / f"{BOX}.json").write_text('{"runtime": 1}')
    with pytest.raises(InternalError):
        records.get(BOX)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "short"])
def test_only_ids_name_records(tmp_path: Path, name: str) -> None:
    with pytest.raises(InternalError):
        Records(tmp_path).find(SandboxId(name))
