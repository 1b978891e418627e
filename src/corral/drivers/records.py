"""What the daemon writes down about processes in sandboxes, as JSON. Pure."""

import json
from dataclasses import asdict
from datetime import datetime

from corral.errors import InternalError
from corral.model.ids import ProcessId
from corral.model.process import Exit, ProcessInfo, ProcessSpec, TerminalSize


def encode_process(info: ProcessInfo) -> bytes:
    """A process's record. Strings that are not UTF-8 survive, as surrogate escapes."""
    return json.dumps(
        {
            "id": info.id,
            "spec": asdict(info.spec),
            "started_at": info.started_at.isoformat(),
            "exit": asdict(info.exit) if info.exit else None,
        }
    ).encode()


def decode_process(raw: bytes) -> ProcessInfo:
    """The process of a record. Raises InternalError for what `encode_process` did not make."""
    try:
        data = json.loads(raw)
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
