"""The accounts that a batch of calls touches: read once, changed in memory, written once."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection, bindparam, insert, select, update

from corral.model.budget import Balance, Rate, RateRefusal, Rates, Scope, Window
from corral.policy.budget import end_of
from corral.policy.rates import ROLLING, Recent, refuse
from corral.store import recent, schema
from corral.store.prepared import Prepared

EVER = -1
"""The day of the account of all calls ever."""
WHOLE_TENANT = ""
"""The subject of a tenant's own account."""

Key = tuple[str, str, int]
"""Tenant, subject, day."""
_CapKey = tuple[str, str, str]
_T = TypeVar("_T", str, int)

_budgets, _balances = schema.budgets, schema.balances
_CAPS = Prepared(
    select(_budgets).where(
        _budgets.c.tenant.in_(bindparam("tenants", expanding=True)),
        _budgets.c.subject.in_(bindparam("subjects", expanding=True)),
    )
)
_ACCOUNTS = Prepared(
    select(_balances).where(
        _balances.c.tenant.in_(bindparam("tenants", expanding=True)),
        _balances.c.subject.in_(bindparam("subjects", expanding=True)),
        _balances.c.day.in_(bindparam("days", expanding=True)),
    )
)
_ADD_ACCOUNT = Prepared(insert(_balances), ("tenant", "subject", "day", "spent", "reserved"))
_SET_ACCOUNT = Prepared(
    update(_balances)
    .where(
        _balances.c.tenant == bindparam("of_tenant"),
        _balances.c.subject == bindparam("of_subject"),
        _balances.c.day == bindparam("of_day"),
    )
    .values(spent=bindparam("spent"), reserved=bindparam("reserved"))
)


def padded(items: Collection[_T]) -> list[_T]:
    """Them in order, the last one repeated up to a power of two: so there are few forms of a statement with lists."""
    found = sorted(items)
    return found + found[-1:] * ((1 << (len(found) - 1).bit_length()) - len(found))


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


def scope_of(subject: str) -> Scope:
    """Whose accounts a subject's are."""
    return Scope.SANDBOX if subject else Scope.TENANT


def window_of(day: int) -> Window:
    """What an account's day says it counts."""
    return Window.TOTAL if day == EVER else Window.DAY


class Books:
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
            "tenants": padded({tenant for tenant, _ in known}),
            "subjects": padded({WHOLE_TENANT, *(subject for _, subject in known)}),
        }
        self._db = db
        self._default = default
        self._now = now
        self._rates = rates or Rates()
        self._rolling: dict[tuple[str, str, Window], _Rolling] = {}
        self._recent: dict[tuple[str, str], Recent] = {}
        self._caps: dict[_CapKey, int | None] = {
            (row["tenant"], row["subject"], row["kind"]): row["cap"] for row in _CAPS.all(db, which)
        }
        self._accounts: dict[Key, _Account] = {
            (row["tenant"], row["subject"], row["day"]): _Account(row["spent"], row["reserved"], stored=True)
            for row in _ACCOUNTS.all(db, {**which, "days": padded({EVER, *days})})
        }

    def account(self, key: Key) -> _Account:
        return self._accounts.setdefault(key, _Account())

    def cap(self, tenant: str, subject: str, window: Window) -> tuple[int | None, bool]:
        """The cap, and whether it is the default."""
        key = (tenant, subject, window)
        if key in self._caps:
            return self._caps[key], False
        inherits = subject != WHOLE_TENANT and window is Window.TOTAL
        return (self._default, True) if inherits else (None, False)

    def balance(self, key: Key) -> Balance:
        tenant, subject, day = key
        window = window_of(day)
        cap, default = self.cap(tenant, subject, window)
        account = self.account(key)
        return Balance(
            scope_of(subject),
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
            if self._caps.get((tenant, subject, window)) is not None
        ]

    def _rolling_balance(self, tenant: str, subject: str, window: Window) -> Balance:
        key = (tenant, subject, window)
        if key not in self._rolling:
            since = self._now - ROLLING[window]
            self._rolling[key] = _Rolling(*recent.spent_since(self._db, tenant, subject, since))
        found = self._rolling[key]
        cap, _ = self.cap(tenant, subject, window)
        reserved = self.account((tenant, subject, EVER)).reserved
        # Not a new start, but when the oldest of it counts no more.
        resets = None if found.first is None else found.first + ROLLING[window]
        return Balance(scope_of(subject), window, cap, found.spent, reserved, resets_at=resets)

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
        own = {rate: self._caps[key] for rate in Rate if (key := (tenant, subject, rate)) in self._caps}
        return {rate: limit for rate, limit in {**default, **own}.items() if limit is not None}

    def too_fast(self, tenant: str, subject: str) -> RateRefusal | None:
        """The limit at a time that one more call would pass."""
        limits = self.limits(tenant, subject)
        if not limits:
            return None
        return refuse(scope_of(subject), limits, self._recent_of(tenant, subject), self._now)

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
        """Write what has changed."""
        new, old = [], []
        for (tenant, subject, day), account in self._accounts.items():
            values = {"spent": account.spent, "reserved": account.reserved}
            if account.changed and account.stored:
                old.append({"of_tenant": tenant, "of_subject": subject, "of_day": day, **values})
            elif account.changed:
                new.append({"tenant": tenant, "subject": subject, "day": day, **values})
        _ADD_ACCOUNT.each(db, new)
        _SET_ACCOUNT.each(db, old)
