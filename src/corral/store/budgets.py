"""Queries on budgets: reserving, settling, caps.

A batch of reservations and settlements is one transaction: the accounts that it touches are read once, changed in
memory in the order of the batch, and written once. What a call cost is recorded in the same transaction that gives its
reservation back, so neither can be there without the other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from corral.model.budget import (
    Balance,
    Outcome,
    Rate,
    RateRefusal,
    Rates,
    Reservation,
    Scope,
    Settlement,
    Warned,
    Window,
)
from corral.model.ids import SandboxId, TenantId
from corral.model.usage import Tokens, Usage
from corral.policy.budget import crossed, day_of, decide, end_of
from corral.policy.rates import ROLLING, Recent, refuse
from corral.store import ledger, recent, schema
from corral.store.instances import own

EVER = -1
"""The day of the account of all calls ever."""
_WHOLE_TENANT = ""

Entry = Reservation | Settlement
_Key = tuple[str, str, int]
_CapKey = tuple[str, str, str]

_budgets, _balances, _reservations = schema.budgets, schema.balances, schema.reservations
_CAPS = select(_budgets).where(
    _budgets.c.tenant.in_(bindparam("tenants", expanding=True)),
    _budgets.c.subject.in_(bindparam("subjects", expanding=True)),
)
_ACCOUNTS = select(_balances).where(
    _balances.c.tenant.in_(bindparam("tenants", expanding=True)),
    _balances.c.subject.in_(bindparam("subjects", expanding=True)),
    _balances.c.day.in_(bindparam("days", expanding=True)),
)
_OPEN = select(_reservations).where(_reservations.c.id.in_(bindparam("ids", expanding=True)))
_ALL_OPEN = (
    select(_reservations).where(_reservations.c.instance == bindparam("own")).order_by(_reservations.c.at)
)
_OPEN_OF = _ALL_OPEN.where(_reservations.c.holder == bindparam("of_holder"))
_ADD_ACCOUNT = insert(_balances)
_SET_ACCOUNT = (
    update(_balances)
    .where(
        _balances.c.tenant == bindparam("of_tenant"),
        _balances.c.subject == bindparam("of_subject"),
        _balances.c.day == bindparam("of_day"),
    )
    .values(spent=bindparam("spent"), reserved=bindparam("reserved"))
)
_RESERVE = insert(_reservations)
_RELEASE = delete(_reservations).where(_reservations.c.id == bindparam("of_id"))
_DROP_CAPS = delete(_budgets).where(_budgets.c.subject == bindparam("sandbox_id"))


@dataclass(slots=True)
class _Account:
    """An account as it will be written. `stored`: it has a row."""

    spent: int = 0
    reserved: int = 0
    stored: bool = False
    changed: bool = False


@dataclass(slots=True)
class _Rolling:
    """What a rolling window counts, and when the oldest call in it began."""

    spent: int
    first: datetime | None


class _Books:
    """What is read of a batch's subjects, and what is to be written."""

    def __init__(
        self,
        db: Connection,
        subjects: Iterable[tuple[str, str]],
        days: Iterable[int],
        default: int | None,
        now: datetime,
        rates: Rates | None = None,
    ) -> None:
        known = list(subjects)
        which = {
            "tenants": sorted({tenant for tenant, _ in known}),
            "subjects": sorted({_WHOLE_TENANT, *(subject for _, subject in known)}),
        }
        self._db = db
        self._default = default
        self._now = now
        self._rates = rates or Rates()
        self._rolling: dict[tuple[str, str, Window], _Rolling] = {}
        self._recent: dict[tuple[str, str], Recent] = {}
        self._caps: dict[_CapKey, int | None] = {
            (row.tenant, row.subject, row.kind): row.cap for row in db.execute(_CAPS, which)
        }
        self._accounts: dict[_Key, _Account] = {
            (row.tenant, row.subject, row.day): _Account(row.spent, row.reserved, stored=True)
            for row in db.execute(_ACCOUNTS, {**which, "days": sorted({EVER, *days})})
        }

    def account(self, key: _Key) -> _Account:
        return self._accounts.setdefault(key, _Account())

    def cap(self, tenant: str, subject: str, window: Window) -> tuple[int | None, bool]:
        """The cap, and whether it is the default."""
        key = (tenant, subject, window.value)
        if key in self._caps:
            return self._caps[key], False
        inherits = subject != _WHOLE_TENANT and window is Window.TOTAL
        return (self._default, True) if inherits else (None, False)

    def balance(self, key: _Key) -> Balance:
        tenant, subject, day = key
        window = Window.TOTAL if day == EVER else Window.DAY
        cap, default = self.cap(tenant, subject, window)
        account = self.account(key)
        return Balance(
            Scope.SANDBOX if subject else Scope.TENANT,
            window,
            cap,
            account.spent,
            account.reserved,
            default,
            None if day == EVER else end_of(day),
        )

    def rolling(self, tenant: str, subject: str) -> list[Balance]:
        """The accounts of windows that begin anew with every moment: those that have a cap."""
        return [
            self._rolling_balance(tenant, subject, window)
            for window in ROLLING
            if self.cap(tenant, subject, window)[0] is not None
        ]

    def _rolling_balance(self, tenant: str, subject: str, window: Window) -> Balance:
        key = (tenant, subject, window)
        if key not in self._rolling:
            since = self._now - ROLLING[window]
            self._rolling[key] = _Rolling(*recent.spent_since(self._db, tenant, subject, since))
        found = self._rolling[key]
        scope = Scope.SANDBOX if subject else Scope.TENANT
        cap, _ = self.cap(tenant, subject, window)
        reserved = self.account((tenant, subject, EVER)).reserved
        # Not a new start, but when the oldest of it counts no more.
        resets = None if found.first is None else found.first + ROLLING[window]
        return Balance(scope, window, cap, found.spent, reserved, resets_at=resets)

    def add_spent(self, tenant: str, subject: str, at: datetime, cost: int) -> None:
        """Count what a call cost in the rolling windows that were read."""
        for window, length in ROLLING.items():
            found = self._rolling.get((tenant, subject, window))
            if found is not None and at > self._now - length:
                found.spent += cost
                found.first = at if found.first is None else min(at, found.first)

    def limits(self, tenant: str, subject: str) -> dict[Rate, int]:
        """The limits at a time of a sandbox, or of its tenant."""
        default = self._rates.given() if subject else {}
        own = {rate: self._caps[key] for rate in Rate if (key := (tenant, subject, rate.value)) in self._caps}
        return {rate: limit for rate, limit in {**default, **own}.items() if limit is not None}

    def too_fast(self, tenant: str, subject: str) -> RateRefusal | None:
        """The limit at a time that one more call would pass."""
        limits = self.limits(tenant, subject)
        if not limits:
            return None
        scope = Scope.SANDBOX if subject else Scope.TENANT
        return refuse(scope, limits, self._recent_of(tenant, subject), self._now)

    def _recent_of(self, tenant: str, subject: str) -> Recent:
        key = (tenant, subject)
        if key not in self._recent:
            self._recent[key] = recent.recent(self._db, tenant, subject, self._now)
        return self._recent[key]

    def begun(self, tenant: str, subject: str) -> None:
        """Count a call that begins now, where that is counted."""
        if (found := self._recent.get((tenant, subject))) is not None:
            found.requests += 1
            found.open += 1
            found.first_request = found.first_request or self._now

    def ended(self, tenant: str, subject: str, tokens: int) -> None:
        """Count a call that ended, where that is counted."""
        if (found := self._recent.get((tenant, subject))) is not None:
            found.open -= 1
            found.tokens += tokens
            found.first_tokens = found.first_tokens or self._now

    def save(self, db: Connection) -> None:
        new, old = [], []
        for (tenant, subject, day), account in self._accounts.items():
            values = {"spent": account.spent, "reserved": account.reserved}
            if account.changed and account.stored:
                old.append({"of_tenant": tenant, "of_subject": subject, "of_day": day, **values})
            elif account.changed:
                new.append({"tenant": tenant, "subject": subject, "day": day, **values})
        if new:
            db.execute(_ADD_ACCOUNT, new)
        if old:
            db.execute(_SET_ACCOUNT, old)


class _Batch:
    """The entries of one transaction, applied in order."""

    def __init__(self, books: _Books, open_ones: dict[str, Reservation]) -> None:
        self._books = books
        self._open = open_ones
        self.reserved: list[dict[str, Any]] = []
        self.released: list[dict[str, str]] = []
        self.usage: list[Usage] = []

    def reserve(self, entry: Reservation) -> Outcome:
        keys = _keys(entry)
        subjects = (entry.sandbox, _WHOLE_TENANT)
        for subject in subjects:
            if (too_fast := self._books.too_fast(entry.tenant, subject)) is not None:
                return Outcome(too_fast)
        accounts = [self._books.balance(key) for key in keys]
        rolling = [item for subject in subjects for item in self._books.rolling(entry.tenant, subject)]
        refusal = decide([*accounts, *rolling], entry.amount)
        if refusal is not None:
            return Outcome(refusal)
        for subject in subjects:
            self._books.begun(entry.tenant, subject)
        for key in keys:
            account = self._books.account(key)
            account.reserved += entry.amount
            account.changed = True
        self.reserved.append(_row(entry))
        self._open[_id(entry)] = entry
        return Outcome()

    def settle(self, entry: Settlement) -> Outcome:
        """Once only: what is no longer open was settled before (G-213, G-227)."""
        found = self._open.pop(_id(entry), None)
        if found is None:
            return Outcome()
        self.released.append({"of_id": _id(entry)})
        cost = 0
        if entry.usage is not None:
            # Whose money it is, and of which day, was written down when it was reserved.
            own = replace(entry.usage, tenant=found.tenant, sandbox=found.sandbox, at=found.at)
            self.usage.append(own)
            cost = entry.usage.cost
        warnings = [self._charge(key, found, cost) for key in _keys(found)]
        for subject in (found.sandbox, _WHOLE_TENANT):
            warnings += self._charge_rolling(subject, found, cost)
            self._books.ended(found.tenant, subject, 0 if entry.usage is None else _tokens(entry.usage))
        return Outcome(None, tuple(warned for warned in warnings if warned is not None))

    def _charge_rolling(self, subject: str, found: Reservation, cost: int) -> list[Warned | None]:
        before = self._books.rolling(found.tenant, subject)
        self._books.add_spent(found.tenant, subject, found.at, cost)
        return [
            _warning(old, new, found)
            for old, new in zip(before, self._books.rolling(found.tenant, subject), strict=True)
        ]

    def _charge(self, key: _Key, reservation: Reservation, cost: int) -> Warned | None:
        account = self._books.account(key)
        before = account.spent
        account.reserved -= reservation.amount
        account.spent += cost
        account.changed = True
        balance = self._books.balance(key)
        return _warning(replace(balance, spent=before), balance, reservation)


def _warning(before: Balance, after: Balance, reservation: Reservation) -> Warned | None:
    percent = crossed(after.cap, before.spent, after.spent)
    if percent is None or after.cap is None:
        return None
    return Warned(
        after.scope, after.window, percent, after.cap, after.spent, reservation.tenant, reservation.sandbox
    )


def _tokens(usage: Usage) -> int:
    used = usage.tokens
    return used.input + used.output + used.cache_read + used.cache_write


def apply(
    db: Connection, entries: Sequence[Entry], default: int | None, now: datetime, rates: Rates | None = None
) -> list[Outcome]:
    """Reserve and settle, in order; an outcome for each entry. `default` is the cap of a sandbox without one of its
    own, `rates` its limits at a time.
    """
    ids = [_id(entry) for entry in entries if isinstance(entry, Settlement)]
    open_ones = {row.id: _reservation(row) for row in db.execute(_OPEN, {"ids": ids})} if ids else {}
    touched = [*open_ones.values(), *(entry for entry in entries if isinstance(entry, Reservation))]
    if not touched:
        return [Outcome() for _ in entries]
    subjects = {(item.tenant, item.sandbox) for item in touched}
    books = _Books(db, subjects, {day_of(item.at) for item in touched}, default, now, rates)
    batch = _Batch(books, open_ones)
    outcomes = [
        batch.reserve(entry) if isinstance(entry, Reservation) else batch.settle(entry) for entry in entries
    ]
    books.save(db)
    if batch.reserved:
        db.execute(_RESERVE, [{**row, "instance": own(db)} for row in batch.reserved])
    if batch.released:
        db.execute(_RELEASE, batch.released)
    if batch.usage:
        ledger.add_usage(db, batch.usage)
    return outcomes


def abandon(db: Connection, holder: str | None, default: int | None, now: datetime) -> list[Settlement]:
    """Settle at its worst case whatever a gateway that is gone (None: any) had under way (G-215)."""
    mine = {"own": own(db)}
    rows = (
        db.execute(_ALL_OPEN, mine) if holder is None else db.execute(_OPEN_OF, {**mine, "of_holder": holder})
    )
    settlements = [_at_worst(_reservation(row)) for row in rows]
    apply(db, settlements, default, now)
    return settlements


def _at_worst(reservation: Reservation) -> Settlement:
    usage = Usage(
        tenant=reservation.tenant,
        sandbox=reservation.sandbox,
        secret=reservation.secret,
        provider=reservation.provider,
        model=reservation.model,
        tokens=Tokens(),
        cost=reservation.amount,
        assumed=True,
        status=0,
        duration_ms=0,
        at=reservation.at,
        path=reservation.path,
    )
    return Settlement(reservation.holder, reservation.number, usage)


def balances(
    db: Connection, tenant: TenantId, sandbox: SandboxId | None, now: datetime, default: int | None
) -> list[Balance]:
    """The accounts that count a sandbox's calls, or those of the tenant alone: ever, and today."""
    today = day_of(now)
    subjects = [_WHOLE_TENANT] if sandbox is None else [sandbox, _WHOLE_TENANT]
    books = _Books(db, [(tenant, subject) for subject in subjects], [today], default, now)
    return [
        found
        for subject in subjects
        for found in (
            *(books.balance((tenant, subject, day)) for day in (EVER, today)),
            *books.rolling(tenant, subject),
        )
    ]


def rates(
    db: Connection, tenant: TenantId, sandbox: SandboxId | None, default: Rates, now: datetime
) -> Rates:
    """The limits at a time of a sandbox, or of a tenant."""
    subject = sandbox or _WHOLE_TENANT
    found = _Books(db, [(tenant, subject)], [], None, now, default).limits(tenant, subject)
    return Rates(found.get(Rate.REQUESTS), found.get(Rate.TOKENS), found.get(Rate.CALLS))


def set_cap(
    db: Connection, tenant: TenantId, sandbox: SandboxId | None, window: Window | Rate, cap: int | None
) -> None:
    """Set or replace a cap, or a limit at a time; None lifts it."""
    clear_cap(db, tenant, sandbox, window)
    subject = sandbox or _WHOLE_TENANT
    db.execute(insert(_budgets).values(tenant=tenant, subject=subject, kind=window.value, cap=cap))


def clear_cap(db: Connection, tenant: TenantId, sandbox: SandboxId | None, window: Window | Rate) -> None:
    """Go back to the host's default."""
    db.execute(
        delete(_budgets).where(
            _budgets.c.tenant == tenant,
            _budgets.c.subject == (sandbox or _WHOLE_TENANT),
            _budgets.c.kind == window.value,
        )
    )


def drop_caps(db: Connection, sandbox: SandboxId) -> None:
    """Forget the caps of a sandbox that is removed. Its accounts stay, as its usage does."""
    db.execute(_DROP_CAPS, {"sandbox_id": sandbox})


def _id(entry: Entry) -> str:
    return f"{entry.holder}:{entry.number}"


def _keys(reservation: Reservation) -> list[_Key]:
    """The accounts that count a call: its sandbox's and its tenant's, ever and on the day on which it was begun."""
    days = (EVER, day_of(reservation.at))
    subjects = (reservation.sandbox, _WHOLE_TENANT)
    return [(reservation.tenant, subject, day) for subject in subjects for day in days]


def _row(entry: Reservation) -> dict[str, Any]:
    return {
        "id": _id(entry),
        "holder": entry.holder,
        "tenant": entry.tenant,
        "sandbox": entry.sandbox,
        "amount": entry.amount,
        "at": entry.at,
        "secret": entry.secret,
        "provider": entry.provider,
        "model": ledger.storable(entry.model),
        "path": ledger.storable(entry.path),
    }


def _reservation(row: Row[Any]) -> Reservation:
    holder, _, number = row.id.rpartition(":")
    return Reservation(
        holder,
        int(number),
        TenantId(row.tenant),
        SandboxId(row.sandbox),
        row.amount,
        row.at,
        row.secret,
        row.provider,
        row.model,
        row.path,
    )
