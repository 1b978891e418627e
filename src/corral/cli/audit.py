"""Commands of the audit log and of receipts."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, dollars, fields, json_line, note, say, show_json, table
from corral.cli.values import Duration, json_option
from corral.errors import InvalidInput

if TYPE_CHECKING:
    from corral.protocol.audit import AuditEntry, Receipt

_MOST_FILES = 30
_MOST_COMMITS = 30
_MOST_DENIALS = 15


class Since(click.ParamType[datetime]):
    """A time as people say it: how long ago (`2h`), or ISO 8601, in UTC where it names no zone."""

    name = "time"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """The time, aware."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            ago = Duration().convert(value, param, ctx)
            return datetime.now(UTC) - timedelta(seconds=ago)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@click.command(
    epilog="""\b
Examples:
  corral audit                       every decision, oldest first
  corral audit box --since 2h        of one sandbox, which may be gone
  corral audit --json > audit.jsonl  one JSON object a line
  corral audit --verify              check that nothing was altered or removed"""
)
@click.argument("name", required=False)
@click.option("--since", type=Since(), help="Only from then on: `2h` ago, or 2026-01-31T12:00.")
@click.option("--verify", is_flag=True, help="Check the chain of all records; exit code 1 if it is broken.")
@json_option
@pass_app
def audit(app: App, name: str | None, since: datetime | None, verify: bool, as_json: bool) -> int:
    """Show every decision that was taken about sandboxes, or about NAME. With --json, one object a line."""
    if verify:
        if name is not None or since is not None:
            raise InvalidInput("the log is checked as a whole", "corral audit --verify")
        return _verify(app, as_json)
    for entry in _entries(app, name, since):
        if as_json:
            json_line(entry)
        else:
            rest = " ".join(f"{key}={value}" for key, value in entry.detail.items())
            at = entry.at.isoformat(timespec="milliseconds")
            say(clean(f"{entry.sequence}  {at}  {entry.sandbox or '-'}  {entry.kind}  {rest}"))
    return 0


def _entries(app: App, name: str | None, since: datetime | None) -> "Iterator[AuditEntry]":
    after = 0
    while found := app.client.read_audit(name, since=since, after=after):
        yield from found
        after = found[-1].sequence


def _verify(app: App, as_json: bool) -> int:
    found = app.client.check_audit()
    if as_json:
        show_json(found)
    elif found.fault:
        say(f"broken: {found.fault}; the {found.records} records before it are sound")
        note("keep the data directory as evidence, and compare it with a backup")
    else:
        say(f"sound: {found.records} records, none altered or missing")
    if found.absent:
        note(f"{found.absent} records were moved into files that are not in the data directory any more")
    return 1 if found.fault else 0


@click.command(epilog="\b\nExamples:\n  corral receipt box\n  corral receipt box --json")
@click.argument("name")
@json_option
@pass_app
def receipt(app: App, name: str, as_json: bool) -> None:
    """Show what a sandbox did: changes, commits, pushes, model calls and their cost, approvals, refusals.

    It stays when the sandbox is removed; a name then means the last one that had it.
    """
    found = app.client.receipt(name)
    if as_json:
        show_json(found)
        return
    fields(_head(found))
    _work(found)
    _pushes(found)
    _money(found)
    _approvals(found)
    _denials(found)


def _head(found: "Receipt") -> list[tuple[str, object]]:
    def at(moment: datetime | None) -> str | None:
        return moment.isoformat(timespec="seconds") if moment else None

    let = ", ".join(f"{count} {kind}" for kind, count in sorted(found.requests.items()))
    return [
        ("sandbox", f"{found.name} ({found.sandbox})"),
        ("isolation", f"{found.isolation} ({found.runtime})"),
        ("agent", found.agent),
        ("repo", found.repo),
        ("branch", found.branch),
        ("secrets", ", ".join(found.secrets)),
        ("created", at(found.created_at)),
        ("removed", at(found.ended_at)),
        ("let through", let),
    ]


def _work(found: "Receipt") -> None:
    work = found.work
    if work is None:
        return
    added = sum(item.added or 0 for item in work.files)
    deleted = sum(item.deleted or 0 for item in work.files)
    say(
        f"\nchanges: {work.file_count} files, +{added} -{deleted} (as of {work.taken_at:%Y-%m-%d %H:%M:%S} UTC)"
    )
    for item in work.files[:_MOST_FILES]:
        lines = "binary" if item.added is None else f"+{item.added} -{item.deleted}"
        say(clean(f"  {item.path}  {lines}"))
    _more(work.file_count - _MOST_FILES, "files")
    say(f"commits: {work.commit_count}")
    for commit in work.commits[:_MOST_COMMITS]:
        say(clean(f"  {commit.id[:12]}  {commit.author}: {commit.subject}"))
    _more(work.commit_count - _MOST_COMMITS, "commits")


def _pushes(found: "Receipt") -> None:
    if found.pushes:
        say("\npushes:")
    for item in found.pushes:
        rest = " ".join(f"{key}={value}" for key, value in item.detail.items())
        say(clean(f"  {item.at:%Y-%m-%d %H:%M:%S}  {item.decision}  {rest}"))


def _money(found: "Receipt") -> None:
    calls = sum(item.calls for item in found.usage)
    tokens = sum(item.input + item.output + item.cache_read + item.cache_write for item in found.usage)
    say(f"\nmodel calls: {calls}, {tokens:,} tokens, {dollars(found.cost)}")
    for item in found.usage:
        cost = ("~" if item.assumed else "") + dollars(item.cost)
        say(clean(f"  {item.model}  {item.calls} calls  {item.input} in, {item.output} out  {cost}"))


def _approvals(found: "Receipt") -> None:
    say(f"approvals: {len(found.approvals)}")
    rows = [
        (item.id, item.kind, item.summary, item.status, item.scope or "-", item.by or "-", item.reason)
        for item in found.approvals
    ]
    if rows:
        table(["ID", "KIND", "ASKED FOR", "ANSWER", "FOR", "BY", "REASON"], rows)


def _denials(found: "Receipt") -> None:
    say(f"refused: {found.denied}")
    for item in found.denials[:_MOST_DENIALS]:
        say(clean(f"  {item.count} x  {item.kind}  {item.host or '-'}  {item.reason}"))
    _more(len(found.denials) - _MOST_DENIALS, "kinds of refusals")


def _more(count: int, what: str) -> None:
    if count > 0:
        say(f"  … {count} more {what}, in --json")
