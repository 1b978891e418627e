"""Lists in pages, and the filters of the list of sandboxes."""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from starlette.datastructures import QueryParams

from corral.api.e2b.calls import digits
from corral.api.e2b.failures import Refusal
from corral.api.e2b.shapes import started_at, state_of, template_of
from corral.model.sandbox import Sandbox

MAX_PAGE = 100
_BROKEN_CODE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ASCENDING = "asc"
T = TypeVar("T")
Key = tuple[datetime, str]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, and the cursor of the next one."""

    items: list[T]
    next: str | None


def metadata_filter(text: str | None) -> dict[str, str]:
    """Pairs out of a query's value, which clients encode up to twice more than a query needs. Raises Refusal."""
    found: dict[str, str] = {}
    for part in _decoded(text).split("&") if text else []:
        key, equals, value = part.partition("=")
        if not equals:
            raise Refusal(400, "validation error: metadata is not a row of key=value")
        found[_decoded(key)] = _decoded(value)
    return found


def _decoded(text: str) -> str:
    if _BROKEN_CODE.search(text):
        raise Refusal(400, "validation error: metadata has a % that begins no code of a byte")
    return unquote(text)


def chosen_states(query: QueryParams) -> set[str]:
    """States of the query, separated by commas or repeated; all where none is given."""
    states = {state for item in query.getlist("state") for state in item.split(",") if state}
    if unknown := states - {"running", "paused"}:
        raise Refusal(400, f"validation error: state {min(unknown)[:40]!r} is neither running nor paused")
    return states or {"running", "paused"}


def key_of(sandbox: Sandbox) -> Key:
    """What sandboxes are ordered by."""
    return started_at(sandbox).astimezone(UTC), sandbox.id


def matching(sandboxes: Sequence[Sandbox], query: QueryParams, templates: set[str] | None) -> list[Sandbox]:
    """Sandboxes that pass the query's filters. `templates`: what they may be made from, as clients are told it; None for
    any."""
    wanted = metadata_filter(query.get("metadata")).items()
    states = chosen_states(query)
    since = _time(query["startedAfter"]) if "startedAfter" in query else None
    return [
        item
        for item in sandboxes
        if state_of(item) in states
        and wanted <= item.spec.labels.items()
        and (templates is None or template_of(item) in templates)
        and (since is None or started_at(item) >= since)
    ]


def page_of(items: Sequence[T], keys: Sequence[Key], query: QueryParams) -> Page[T]:
    """The page that `limit`, `order` and `nextToken` of a query name; the newest come first. Raises Refusal."""
    limit = page_size(query)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Refusal(400, f"validation error: order {order[:40]!r} is neither asc nor desc")
    ascending = order == _ASCENDING
    token = query.get("nextToken")
    last = _rank(_parse_cursor(token, ascending=ascending)) if token else None
    ranked = [(_rank(key), (key, item)) for key, item in zip(keys, items, strict=True)]
    shown, more = _behind(last, ranked, limit, backwards=ascending)
    following = _cursor(shown[-1][1][0], ascending=ascending) if more else None
    return Page([item for _, (_, item) in shown], following)


def _behind(
    last: tuple[Any, ...] | None, rows: list[tuple[tuple[Any, ...], T]], limit: int, *, backwards: bool
) -> tuple[list[tuple[tuple[Any, ...], T]], bool]:
    """Up to `limit` rows behind the place of the last one that was shown, in the order of their places; whether more follow."""
    ordered = sorted(rows, key=lambda row: row[0], reverse=backwards)
    if last is not None:
        ordered = [row for row in ordered if (row[0] < last if backwards else row[0] > last)]
    return ordered[:limit], len(ordered) > limit


def _rank(key: Key) -> tuple[float, str]:
    """Ascending ranks are newest first, ids in order."""
    moment, name = key
    return -round(moment.timestamp() * 1_000_000), name


def page_size(query: QueryParams, name: str = "limit") -> int:
    """How many items a page has, by that part of a query. Raises Refusal."""
    if name not in query:
        return MAX_PAGE
    found = digits(query[name], 9)
    if found is None or not 1 <= found <= MAX_PAGE:
        raise Refusal(400, f"validation error: {name} must be 1 to {MAX_PAGE}")
    return found


def page_by(keys: Mapping[str, tuple[str, ...]], sort: str, limit: int, cursor: str | None) -> Page[str]:
    """The page of names behind a cursor, in the order of their keys: backwards where `sort` ends in `desc`. A cursor holds for
    its `sort` alone. Raises Refusal."""
    last = _parse_place(cursor, sort) if cursor else None
    rows = [(key, name) for name, key in keys.items()]
    shown, more = _behind(last, rows, limit, backwards=sort.endswith("desc"))
    return Page([name for _, name in shown], _place(sort, shown[-1][0]) if more else None)


def _place(sort: str, key: tuple[str, ...]) -> str:
    return base64.urlsafe_b64encode(json.dumps([sort, *key]).encode()).decode()


def _parse_place(cursor: str, sort: str) -> tuple[str, ...]:
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or found[:1] != [sort] or not all(isinstance(part, str) for part in found):
        raise Refusal(400, "Invalid next token")
    return tuple(found[1:])


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise Refusal(400, "validation error: startedAfter is not a time") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _cursor(key: Key, *, ascending: bool) -> str:
    text = f"{key[0].isoformat()}__{key[1]}" + (f"__{_ASCENDING}" if ascending else "")
    return base64.urlsafe_b64encode(text.encode()).decode()


def _parse_cursor(token: str, *, ascending: bool) -> Key:
    try:
        parts = base64.urlsafe_b64decode(token.encode()).decode().split("__")
        key = datetime.fromisoformat(parts[0]), parts[1]
        if parts[2:] != ([_ASCENDING] if ascending else []) or key[0].tzinfo is None:
            raise ValueError
    except (ValueError, IndexError, binascii.Error):
        raise Refusal(400, "Invalid next token") from None
    return key
