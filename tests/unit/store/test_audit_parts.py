"""The audit log in parts: what is moved into files stays sound, and whatever happens to a file is found."""

import gzip
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.unit.store import where

from corral.errors import HostError
from corral.model.audit import AuditCheck, AuditItem
from corral.model.ids import DEFAULT_TENANT, SandboxId, TenantId
from corral.store import audit, auditlog
from corral.store.store import SqlStore

DAY = timedelta(days=1)
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
MIDNIGHT = NOON.replace(hour=0)


class Log:
    """A store whose clock a test moves: four records a day for five days."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.archive = directory, directory / "audit"
        self.now = NOON - 4 * DAY

    async def open(self, archive: Path | None = None) -> SqlStore:
        url, key = where.url_of(self.directory), self.directory / "key"
        return await SqlStore.open(url, key, now=lambda: self.now, archive=archive or self.archive)

    async def fill(self, store: SqlStore) -> None:
        for _ in range(5):
            details = [{"n": str(number), "b": "ü\udc80\n"} for number in range(4)]
            tenant, sandbox = TenantId("other"), SandboxId("0" * 16)
            await store.audit_all([AuditItem(tenant, sandbox, "exec", one) for one in details])
            self.now += DAY

    def files(self) -> list[Path]:
        return sorted(self.archive.iterdir())


@pytest.fixture
async def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Log, SqlStore]]:
    monkeypatch.setattr(auditlog, "PART", 5)
    found = Log(tmp_path)
    store = await found.open()
    await found.fill(store)
    yield found, store
    await store.close()


async def test_what_is_old_is_moved_and_the_chain_goes_on(log: tuple[Log, SqlStore]) -> None:
    """G-324."""
    kept, store = log
    assert await store.archive_audit(MIDNIGHT - 2 * DAY) == 8
    assert await store.archive_audit(MIDNIGHT - 2 * DAY) == 0
    assert [path.name for path in kept.files()] == [
        "audit-000000000001-000000000005.jsonl.gz",
        "audit-000000000006-000000000008.jsonl.gz",
    ]
    assert {path.stat().st_mode & 0o777 for path in kept.files()} == {0o600}
    assert await store.verify_audit() == AuditCheck(20)
    entries = await store.audit_entries(TenantId("other"))
    assert [one.sequence for one in entries] == list(range(9, 21))
    await store.audit(DEFAULT_TENANT, None, "more", {})
    # All but the last one, which the seal on the end of the log is about.
    assert await store.archive_audit(kept.now + DAY) == 12
    assert await store.verify_audit() == AuditCheck(21)
    lines = gzip.decompress(kept.files()[0].read_bytes()).splitlines()
    told = json.loads(lines[1])
    assert (len(lines), told["sequence"], told["detail"]["b"]) == (7, 1, "ü\udc80\n")


async def test_files_that_were_taken_elsewhere_are_told_and_can_be_brought_back(
    log: tuple[Log, SqlStore], tmp_path: Path
) -> None:
    kept, store = log
    await store.archive_audit(MIDNIGHT)
    first = kept.files()[0]
    first.rename(tmp_path / first.name)
    assert await store.verify_audit() == AuditCheck(15, absent=5)
    (tmp_path / first.name).rename(first)
    assert await store.verify_audit() == AuditCheck(20)


def _line(number: int, change: Callable[[dict[str, object]], object]) -> Callable[[list[bytes]], list[bytes]]:
    def altered(lines: list[bytes]) -> list[bytes]:
        value = json.loads(lines[number])
        change(value)
        return [*lines[:number], json.dumps(value).encode(), *lines[number + 1 :][: len(lines)]]

    return altered


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_line(2, lambda value: value.update(detail={})), "record 2 was altered"),
        (_line(2, lambda value: value.update(at="2026-03-01T00:00:00.000000+00:00")), "record 2 was altered"),
        (lambda lines: [*lines[:2], *lines[3:]], "record 2 is missing"),
        (lambda lines: lines[:-1], "was altered or cut"),
        (
            lambda lines: [*lines[:4], json.dumps({**json.loads(lines[-1]), "last": 3}).encode()],
            "as it was sealed",
        ),
        (lambda lines: [*lines, b"{}"], "as it was sealed"),
        (_line(-1, lambda value: value.update(seal="0" * 64)), "as it was sealed"),
        (lambda lines: [b"[]"], "was altered or cut"),
        (lambda lines: [], "was altered or cut"),
    ],
)
async def test_an_altered_file_is_named(
    log: tuple[Log, SqlStore], change: Callable[[list[bytes]], list[bytes]], fault: str
) -> None:
    kept, store = log
    await store.archive_audit(MIDNIGHT)
    path = kept.files()[0]
    lines = change(gzip.decompress(path.read_bytes()).splitlines())
    path.write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines)))
    check = await store.verify_audit()
    assert path.name in check.fault
    assert fault in check.fault


async def test_a_file_made_up_with_a_chain_of_its_own_is_not_taken(
    log: tuple[Log, SqlStore], tmp_path: Path
) -> None:
    """Whoever can write files, and knows how hashes are made, has no seal."""
    kept, store = log
    await store.archive_audit(MIDNIGHT)
    other = Log(tmp_path / "other")
    other.directory.mkdir()
    forged = await other.open()
    await other.fill(forged)
    await forged.archive_audit(MIDNIGHT)
    await forged.close()
    kept.files()[0].write_bytes(other.files()[0].read_bytes())
    assert "as it was sealed" in (await store.verify_audit()).fault


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE audit SET detail = '{}' WHERE sequence = 10", "record 10 was altered"),
        ("DELETE FROM audit WHERE sequence = 9", "record 9 is missing"),
        ("DELETE FROM installation WHERE key = 'audit_start'", "record 1 is missing"),
        ("UPDATE installation SET value = '10:' || value WHERE key = 'audit_start'", "begins was altered"),
        ("UPDATE installation SET value = 'x' WHERE key = 'audit_start'", "begins was altered"),
    ],
)
async def test_an_altered_log_is_found_and_nothing_of_it_is_moved(
    log: tuple[Log, SqlStore], statement: str, fault: str
) -> None:
    kept, store = log
    await store.archive_audit(MIDNIGHT - 2 * DAY)
    files = kept.files()
    where.change(kept.directory, statement)
    assert fault in (await store.verify_audit()).fault
    with pytest.raises(HostError, match="altered"):
        await store.archive_audit(MIDNIGHT)
    assert kept.files() == files


async def test_a_crash_between_file_and_database_loses_and_doubles_nothing(
    log: tuple[Log, SqlStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, store = log
    with monkeypatch.context() as cut:
        cut.setattr(audit, "drop", _cut)
        with pytest.raises(RuntimeError):
            await store.archive_audit(MIDNIGHT - 3 * DAY)
    (kept.archive / ".unfinished").write_bytes(b"half")
    assert await store.verify_audit() == AuditCheck(20)
    assert await store.archive_audit(MIDNIGHT) == 16
    assert await store.verify_audit() == AuditCheck(20)
    assert kept.files()[0].name == "audit-000000000001-000000000005.jsonl.gz"
    assert len(kept.files()) == 4


def _cut(*_: object) -> None:
    raise RuntimeError("cut")
