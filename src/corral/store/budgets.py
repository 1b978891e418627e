"""Queries on budgets: reserving, settling, caps.

A batch of reservations and settlements is one transaction: the accounts that it touches are read once, changed in
memory in the order of the batch, and written once. What a call cost is recorded in the same transaction that gives its
reservation back, so neither can be there without the other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select

from corral.model.budget import (
    Balance,
    Drawn,
    Lease,
    LedgerEntry,
    Outcome,
    Rate,
    Rates,
    Reservation,
    Return,
    Scope,
    Settlement,
    Warned,
    Window,
)
from corral.model.ids import SandboxId, TenantId
from corral.model.usage import Tokens, Usage
from corral.policy.budget import crossed, day_of, decide, more_to_lease
from corral.store import leases, ledger, schema
from corral.store.books import EVER, WHOLE_TENANT, Books, Key, padded, scope_of, window_of
from corral.store.instances import own
from corral.store.leases import Leases
from corral.store.prepared import Prepared

_reservations, _budgets = schema.reservations, schema.budgets
_OPEN = Prepared(select(_reservations).where(_reservations.c.id.in_(bindparam("ids", expanding=True))))
_ALL_OPEN = (
    select(_reservations).where(_reservations.c.instance == bindparam("own")).order_by(_reservations.c.at)
)
_OPEN_OF = _ALL_OPEN.where(_reservations.c.holder == bindparam("of_holder"))
_RESERVE = Prepared(insert(_reservations), _reservations.c.keys())
_RELEASE = Prepared(delete(_reservations).where(_reservations.c.id == bindparam("of_id")))
_DROP_CAPS = delete(_budgets).where(_budgets.c.subject == bindparam("sandbox_id"))


class _Batch:
    """The entries of one transaction, applied in order."""

    def __init__(self, books: Books, open_ones: dict[str, Reservation], leased: Leases) -> None:
        self._books = books
        self._open = open_ones
        self._leased = leased
        self.reserved: list[dict[str, Any]] = []
        self.released: list[dict[str, str]] = []
        self.usage: list[Usage] = []

    def enter(self, entry: LedgerEntry) -> Outcome:
        match entry:
            case Reservation(drawn=True):
                return self._draw(entry)
            case Reservation():
                return self._reserve(entry)
            case Settlement():
                return self._settle(entry)
            case Return():
                return self._return(entry)

    def _reserve(self, entry: Reservation) -> Outcome:
        for subject in (entry.sandbox, WHOLE_TENANT):
            if (too_fast := self._books.too_fast(entry.tenant, subject)) is not None:
                return Outcome(too_fast)
        refusal = decide(self._balances(entry), entry.amount)
        if refusal is not None:
            return Outcome(refusal)
        self._begin(entry)
        return Outcome(leased=self._lease_more(entry))

    def _draw(self, entry: Reservation) -> Outcome:
        """What is drawn was allowed when it was leased, and may be used up by now: it is never refused."""
        lease = self._leased.get(entry.holder, entry.lease)
        if lease is None and not entry.tenant:
            return Outcome()
        if lease is not None:
            # Whose money it is was written down when it was leased.
            entry = replace(entry, tenant=lease.tenant, sandbox=lease.sandbox)
            taken = min(entry.amount, lease.amount)
            self._set_aside(lease, -taken)
            self._leased.put(replace(lease, amount=lease.amount - taken, drawn=lease.drawn + entry.amount))
        self._begin(entry)
        return Outcome(leased=self._lease_more(entry))

    def _begin(self, entry: Reservation) -> None:
        for subject in (entry.sandbox, WHOLE_TENANT):
            self._books.begun(entry.tenant, subject)
        self._set_aside(entry, entry.amount)
        self.reserved.append(_row(entry))
        self._open[_id(entry)] = entry

    def _lease_more(self, entry: Reservation) -> int:
        """How much was added to the lease that a call wants for the next ones. Limits at a time count each call when it is
        made, which leases would hide.
        """
        if not entry.lease or any(
            self._books.limits(entry.tenant, subject) for subject in (entry.sandbox, WHOLE_TENANT)
        ):
            return 0
        lease = self._leased.get(entry.holder, entry.lease) or Lease(
            entry.holder, entry.lease, entry.tenant, entry.sandbox, 0, 0, entry.at
        )
        added = more_to_lease(self._balances(entry), entry.amount, lease.amount)
        if added:
            self._set_aside(lease, -lease.amount)
            lease = replace(lease, amount=lease.amount + added, at=entry.at)
            self._set_aside(lease, lease.amount)
            self._leased.put(lease)
        return added

    def _return(self, entry: Return) -> Outcome:
        lease = self._leased.pop(entry.holder, entry.number)
        if lease is not None:
            self._set_aside(lease, -lease.amount)
        return Outcome()

    def _balances(self, entry: Reservation) -> list[Balance]:
        """All that count a call."""
        rolling = [
            item
            for subject in (entry.sandbox, WHOLE_TENANT)
            for item in self._books.rolling(entry.tenant, subject)
        ]
        return [*(self._books.balance(key) for key in _keys(entry)), *rolling]

    def _set_aside(self, what: Reservation | Lease, amount: int) -> None:
        for key in _keys(what):
            account = self._books.account(key)
            account.reserved += amount
            account.changed = True

    def _settle(self, entry: Settlement) -> Outcome:
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
        for subject in (found.sandbox, WHOLE_TENANT):
            warnings += self._charge_rolling(subject, found, cost)
            self._books.ended(found.tenant, subject, 0 if entry.usage is None else _tokens(entry.usage))
        return Outcome(None, tuple(warned for warned in warnings if warned is not None))

    def _charge_rolling(self, subject: str, found: Reservation, cost: int) -> list[Warned | None]:
        before = self._books.rolling(found.tenant, subject)
        self._books.add_spent(found.tenant, subject, found.at, cost)
        after = self._books.rolling(found.tenant, subject) if before else []
        return [
            _warning(old.scope, old.window, old.cap, old.spent, new.spent, found)
            for old, new in zip(before, after, strict=True)
        ]

    def _charge(self, key: Key, found: Reservation, cost: int) -> Warned | None:
        tenant, subject, day = key
        account = self._books.account(key)
        before = account.spent
        account.reserved -= found.amount
        account.spent += cost
        account.changed = True
        window = window_of(day)
        cap, _ = self._books.cap(tenant, subject, window)
        return _warning(scope_of(subject), window, cap, before, account.spent, found)


def _warning(
    scope: Scope, window: Window, cap: int | None, before: int, after: int, found: Reservation
) -> Warned | None:
    percent = crossed(cap, before, after)
    if percent is None or cap is None:
        return None
    return Warned(scope, window, percent, cap, after, found.tenant, found.sandbox)


def _tokens(usage: Usage) -> int:
    used = usage.tokens
    return used.input + used.output + used.cache_read + used.cache_write


def apply(
    db: Connection,
    entries: Sequence[LedgerEntry],
    default: int | None,
    now: datetime,
    rates: Rates | None = None,
) -> list[Outcome]:
    """Reserve, settle and take leases back, in order; an outcome for each entry. `default` is the cap of a sandbox without
    one of its own, `rates` its limits at a time.
    """
    ids = [_id(entry) for entry in entries if isinstance(entry, Settlement)]
    open_ones = {row["id"]: _reservation(row) for row in _OPEN.all(db, {"ids": padded(ids)})} if ids else {}
    leased = Leases(db, {id for entry in entries if (id := _lease_id(entry)) is not None})
    wanted = (entry for entry in entries if isinstance(entry, Reservation))
    touched: list[Reservation | Lease] = [*open_ones.values(), *leased.found.values(), *wanted]
    if not touched:
        return [Outcome() for _ in entries]
    subjects = {(item.tenant, item.sandbox) for item in touched}
    books = Books(db, subjects, {day_of(item.at) for item in touched}, default, now, rates)
    batch = _Batch(books, open_ones, leased)
    outcomes = [batch.enter(entry) for entry in entries]
    books.save(db)
    leased.save(db)
    if batch.reserved:
        mine = own(db)
        _RESERVE.each(db, [{**row, "instance": mine} for row in batch.reserved])
    _RELEASE.each(db, batch.released)
    if batch.usage:
        ledger.add_usage(db, batch.usage)
    return outcomes


def abandon(
    db: Connection, holder: str | None, default: int | None, now: datetime, drawn: Drawn
) -> list[Settlement]:
    """Settle at its worst case whatever a gateway that is gone (None: any) had under way (G-215), and what it drew on its
    leases without a word of it. The rest of those is free again.
    """
    mine = {"own": own(db)}
    rows = (
        db.execute(_ALL_OPEN, mine) if holder is None else db.execute(_OPEN_OF, {**mine, "of_holder": holder})
    )
    settlements = [_at_worst(_reservation(dict(row))) for row in rows.mappings()]
    ends: list[LedgerEntry] = list(settlements)
    for lease in leases.open_leases(db, holder):
        lost = _untold(lease, drawn(lease.holder))
        if lost.amount:
            settlements.append(_at_worst(lost))
            ends += [lost, settlements[-1]]
        ends.append(Return(lease.holder, lease.number))
    apply(db, ends, default, now)
    return settlements


def _untold(lease: Lease, drawn: Mapping[int, int] | None) -> Reservation:
    """The calls that took more from a lease than the ledger knows of, as one; all of it where nobody can tell."""
    told = lease.amount if drawn is None else drawn.get(lease.number, 0) - lease.drawn
    return Reservation(
        lease.holder, -lease.number, lease.tenant, lease.sandbox, min(max(told, 0), lease.amount), lease.at,
        "unknown", "unknown", "unknown", "unknown", lease.number, drawn=True,
    )  # fmt: skip


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
    """The accounts that count a sandbox's calls, or those of the tenant alone: ever, and today. What is leased is not shown
    as reserved: no call is under way for it, and it is given back where it is in the way.
    """
    today = day_of(now)
    subjects = [WHOLE_TENANT] if sandbox is None else [sandbox, WHOLE_TENANT]
    books = Books(db, [(tenant, subject) for subject in subjects], [today], default, now)
    for lease in leases.of_tenant(db, tenant):
        for key in _keys(lease):
            books.account(key).reserved -= lease.amount
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
    subject = sandbox or WHOLE_TENANT
    found = Books(db, [(tenant, subject)], [], None, now, default).limits(tenant, subject)
    return Rates(found.get(Rate.REQUESTS), found.get(Rate.TOKENS), found.get(Rate.CALLS))


def set_caps(
    db: Connection,
    tenant: TenantId,
    sandbox: SandboxId | None,
    caps: Mapping[Window | Rate, int | None],
    cleared: Collection[Window | Rate],
) -> None:
    """Set or replace caps and limits at a time, None for none; those `cleared` are the host's default again."""
    for window in cleared:
        _clear_cap(db, tenant, sandbox, window)
    for window, cap in caps.items():
        set_cap(db, tenant, sandbox, window, cap)


def set_cap(
    db: Connection, tenant: TenantId, sandbox: SandboxId | None, window: Window | Rate, cap: int | None
) -> None:
    """Set or replace a cap, or a limit at a time; None lifts it."""
    _clear_cap(db, tenant, sandbox, window)
    subject = sandbox or WHOLE_TENANT
    db.execute(insert(_budgets).values(tenant=tenant, subject=subject, kind=window.value, cap=cap))


def _clear_cap(db: Connection, tenant: TenantId, sandbox: SandboxId | None, window: Window | Rate) -> None:
    db.execute(
        delete(_budgets).where(
            _budgets.c.tenant == tenant,
            _budgets.c.subject == (sandbox or WHOLE_TENANT),
            _budgets.c.kind == window.value,
        )
    )


def drop_caps(db: Connection, sandbox: SandboxId) -> None:
    """Forget the caps of a sandbox that is removed. Its accounts stay, as its usage does."""
    db.execute(_DROP_CAPS, {"sandbox_id": sandbox})


def _id(entry: Reservation | Settlement) -> str:
    return f"{entry.holder}:{entry.number}"


def _lease_id(entry: LedgerEntry) -> str | None:
    """The key of the lease that an entry touches."""
    match entry:
        case Return():
            return leases.id_of(entry.holder, entry.number)
        case Reservation() if entry.lease:
            return leases.id_of(entry.holder, entry.lease)
        case _:
            return None


def _keys(reservation: Reservation | Lease) -> list[Key]:
    """The accounts that count a call: its sandbox's and its tenant's, ever and on the day on which it was begun."""
    days = (EVER, day_of(reservation.at))
    subjects = (reservation.sandbox, WHOLE_TENANT)
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


def _reservation(row: Mapping[str, Any]) -> Reservation:
    holder, _, number = row["id"].rpartition(":")
    return Reservation(
        holder,
        int(number),
        TenantId(row["tenant"]),
        SandboxId(row["sandbox"]),
        row["amount"],
        row["at"],
        row["secret"],
        row["provider"],
        row["model"],
        row["path"],
    )
