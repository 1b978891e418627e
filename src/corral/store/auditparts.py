"""Parts of the audit log that were moved out of the database: one compressed file of JSON lines each.

The first line says after which record the part begins and that one's hash, the last line what the last record and its hash
are, with a seal of the installation's key over all four; between them stand the records as `corral audit --json` prints
them. So each part can be checked by itself wherever it was kept, its chain also without the key, and a part that was made
up or cut is found.
"""

import contextlib
import gzip
import hmac
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Row

from corral.host.statefile import flush
from corral.store.audit import MAX_DETAIL, Place, canonical, chain
from corral.store.keys import Keys

_NAME = re.compile(r"audit-\d{12}-\d{12}\.jsonl\.gz")
_UNFINISHED = ".unfinished"
_MAX_LINE = 2 * MAX_DETAIL


class PartWriter:
    """Writes one part; nothing of it has its name before `finish`, and then all of it is on the disk. Blocking."""

    def __init__(self, directory: Path, after: Place) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._first = Place(after.sequence, after.hash)
        self._path = directory / _UNFINISHED
        self._path.unlink(missing_ok=True)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._raw: IO[bytes] = os.fdopen(fd, "wb")
        self._file = gzip.GzipFile("", "wb", fileobj=self._raw, mtime=0)
        self._line({"after": after.sequence, "hash": after.hash})

    def add(self, rows: Sequence[Row[Any]]) -> None:
        """Append records."""
        for row in rows:
            self._line(
                {
                    "sequence": row.sequence,
                    "at": row.at.isoformat(timespec="microseconds"),
                    "tenant": row.tenant,
                    "sandbox": row.sandbox,
                    "kind": row.kind,
                    "detail": json.loads(row.detail),
                    "hash": row.hash,
                }
            )

    def finish(self, keys: Keys, last: Place) -> None:
        """End it, and give it its name in the place of any other that begins where it does: one that a crash left."""
        first = self._first
        seal = keys.audit_part(first.sequence, first.hash, last.sequence, last.hash)
        self._line({"last": last.sequence, "hash": last.hash, "seal": seal})
        self._file.close()
        self._raw.close()
        flush(self._path)
        begins = f"audit-{first.sequence + 1:012}-"
        name = f"{begins}{last.sequence:012}.jsonl.gz"
        self._path.rename(self._directory / name)
        for other in self._directory.glob(f"{begins}*"):
            if other.name != name:
                other.unlink()
        flush(self._directory)

    def abandon(self) -> None:
        """Leave nothing. Idempotent, also after `finish`."""
        self._file.close()
        self._raw.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _line(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class PartCheck:
    """What a part holds: records `first` to `last`; or what is wrong with it."""

    first: int = 0
    last: int = 0
    fault: str = ""


def check_parts(directory: Path, keys: Keys) -> Iterator[PartCheck]:
    """Each part in a directory, in order. Blocking."""
    names = sorted(path for path in directory.glob("audit-*") if _NAME.fullmatch(path.name))
    for path in names:
        try:
            yield _check(path, keys)
        except (
            OSError,
            EOFError,
            zlib.error,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ):
            yield PartCheck(fault=f"{path.name} cannot be read: it was altered or cut")


def _check(path: Path, keys: Keys) -> PartCheck:
    with gzip.open(path, "rb") as file:
        head = json.loads(file.readline(_MAX_LINE))
        first = Place(int(head["after"]), str(head["hash"]))
        at = Place(first.sequence, first.hash)
        while "last" not in (value := json.loads(file.readline(_MAX_LINE))):
            if value["sequence"] != at.sequence + 1:
                return PartCheck(fault=f"{path.name}: record {at.sequence + 1} is missing")
            if _hash(at.hash, value) != value["hash"]:
                return PartCheck(fault=f"{path.name}: record {at.sequence + 1} was altered")
            at.sequence, at.hash = value["sequence"], value["hash"]
        whole = (value["last"], value["hash"]) == (at.sequence, at.hash) and not file.read(1)
    seal = keys.audit_part(first.sequence, first.hash, at.sequence, at.hash)
    if not whole or not hmac.compare_digest(seal, str(value["seal"])):
        return PartCheck(fault=f"{path.name}: it is not as it was sealed")
    return PartCheck(first.sequence + 1, at.sequence)


def _hash(previous: str, value: dict[str, Any]) -> str:
    detail = json.dumps(value["detail"], sort_keys=True, separators=(",", ":"))
    at = datetime.fromisoformat(value["at"])
    record = canonical(value["sequence"], at, value["tenant"], value["sandbox"], value["kind"], detail)
    return chain(previous, record)
