"""What a person is shown of a push that waits for an answer (G-259). The same words wherever it is shown."""

import hashlib
import json
from collections.abc import Sequence

from corral.model.approval import EXACTLY
from corral.model.git import Operation
from corral.model.push import Command, PushReport
from corral.policy.push import Judgement, describe
from corral.wire.gitpush import PushHead

_VERBS = {
    Operation.CREATE: "create",
    Operation.UPDATE: "update",
    Operation.FORCE: "OVERWRITE",
    Operation.DELETE: "DELETE",
}
_SHOWN = 3


def ask_summary(name: str, judged: Sequence[Judgement], found: PushReport) -> str:
    """One line."""
    parts = [f"{_VERBS[one.operation]} {_short(one.ref)}" for one in judged[:_SHOWN]]
    if len(judged) > _SHOWN:
        parts.append(f"and {len(judged) - _SHOWN} more")
    text = f"push to {name}: {', '.join(parts)}"
    if found.commits_total or found.files_total:
        text += f" ({_count(found.commits_total, 'commit')}, {_count(found.files_total, 'file')}, +{found.added} -{found.removed})"
    if found.flags:
        text += f"; look at: {describe(found.flags[0])}"
    return text


def ask_detail(
    name: str, head: PushHead, judged: Sequence[Judgement], found: PushReport, digest: str
) -> dict[str, str]:
    """What exactly would be done: an answer holds for this and nothing else (G-258)."""
    operations = {one.ref: one for one in judged}
    refs = [
        f"{_VERBS[operations[one.ref].operation]} {one.ref}  {one.old} → {one.new}  "
        f"[{operations[one.ref].verdict} {operations[one.ref].rule}]"
        for one in head.commands
    ]
    commits = [f"{one.id[:12]} {one.author} <{one.email}>  {one.title}" for one in found.commits]
    files = [
        f"{one.status} {one.path}  {'binary' if one.added is None else f'+{one.added}'}"
        + (f" -{one.removed}" if one.removed else "")
        for one in found.files
    ]
    detail = {
        EXACTLY: exactly(name, head, found.content),
        "repository": name,
        "refs": "\n".join(refs),
        "findings": "\n".join(_with_rest([describe(one) for one in found.flags], found.flags_total)),
        "commits": "\n".join(_with_rest(commits, found.commits_total)),
        "files": "\n".join(_with_rest(files, found.files_total)),
        "options": "\n".join(head.options),
        "atomic": "yes" if "atomic" in head.capabilities else "",
        "pack": digest,
    }
    return {key: value for key, value in detail.items() if value}


def exactly(name: str, head: PushHead, content: str) -> str:
    """A digest of all that makes a push this one. Not of its pack: git may pack the same objects otherwise the next time."""
    refs = [[one.ref, one.old, one.new] for one in head.commands]
    told = json.dumps([name, refs, head.options, "atomic" in head.capabilities, content])
    return hashlib.sha256(told.encode()).hexdigest()


def refs_text(commands: Sequence[Command]) -> str:
    """A push's refs with their whole ids, for the audit log."""
    return " ".join(f"{one.ref}:{one.old}:{one.new}" for one in commands)


def _with_rest(lines: list[str], total: int) -> list[str]:
    return lines if total <= len(lines) else [*lines, f"… and {total - len(lines)} more"]


def _short(ref: str) -> str:
    return ref.removeprefix("refs/heads/")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
