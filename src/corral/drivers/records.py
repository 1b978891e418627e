"""What the daemon writes down about processes in sandboxes, as JSON. Pure.

A process has one file, to which a record is appended whenever something changes: the last whole one holds. A file that
replaces another would have to reach the disk before it can be removed, and most processes end in milliseconds.
"""

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from corral.errors import InternalError
from corral.model.ids import ProcessId
from corral.model.process import Exit, ProcessInfo, ProcessSpec, TerminalSize


def encode_process(info: ProcessInfo) -> bytes:
    """A record to append. Strings that are not UTF-8 survive, as surrogate escapes.

    It begins with the end of a line, so that one that was cut off does not spoil the next.
    """
    return (
        b"\n"
        + json.dumps(
            {
                "id": info.id,
                "spec": asdict(info.spec),
                "started_at": info.started_at.isoformat(),
                "exit": asdict(info.exit) if info.exit else None,
            }
        ).encode()
    )


def decode_process(raw: bytes) -> ProcessInfo | None:
    """The process of a file of records; None if none was written to its end. Raises InternalError for what
    `encode_process` did not make."""
    for line in reversed(raw.split(b"\n")):
        try:
            data = json.loads(line)
        except ValueError:  # cut off
            continue
        return _process(data)
    return None


def _process(data: Any) -> ProcessInfo:
    try:
        spec = data["spec"]
        spec["argv"] = tuple(spec["argv"])
        spec["terminal"] = TerminalSize(**spec["terminal"]) if spec["terminal"] else None
        return ProcessInfo(
            id=ProcessId(data["id"]),
            spec=ProcessSpec(**spec),
            started_at=datetime.fromisoformat(data["started_at"]),
            exit=Exit(**data["exit"]) if data["exit"] else None,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(f"the record of a process cannot be read: {error}") from error
