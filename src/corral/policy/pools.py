"""What a warm pool needs now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from corral.model.ids import SandboxId, TemplateId
from corral.model.pool import Pool
from corral.model.sandbox import Sandbox

FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Refill:
    """How many spares to make, which to remove, and when to look again at the latest (None: when something changes)."""

    make: int
    drop: tuple[SandboxId, ...]
    next_look: datetime | None


def refill(
    pool: Pool,
    template: TemplateId | None,
    spares: Sequence[Sandbox],
    *,
    now: datetime,
    last_wanted: datetime,
    retry_at: datetime | None,
) -> Refill:
    """`spares`: all of the pool's tenant, oldest first, ready ones only. `template`: the current one of the pool's name,
    None where there is none. A spare of an older version is dropped; so are those that nobody has wanted for long, and
    those that are too many. After a failure nothing is made until `retry_at`; if that is further away than any pause, the
    clock was set back.
    """
    fitting = [s.id for s in spares if template is not None and pool.serves(s.spec, template)]
    asleep = is_asleep(pool, now, last_wanted)
    wanted = 0 if template is None or asleep else pool.size
    missing = max(wanted - len(fitting), 0)
    waiting = retry_at is not None and now < retry_at <= now + LONGEST_PAUSE
    looks = [retry_at] if missing and waiting else []
    if pool.idle is not None and not asleep:
        looks.append(last_wanted + timedelta(seconds=pool.idle))
    return Refill(
        make=0 if waiting else missing,
        drop=tuple(fitting[wanted:]),
        next_look=min((look for look in looks if look is not None), default=None),
    )


def is_asleep(pool: Pool, now: datetime, last_wanted: datetime) -> bool:
    """Whether nobody has wanted its spares for its idle time."""
    return pool.idle is not None and now >= last_wanted + timedelta(seconds=pool.idle)


def pause_after(failures: int) -> timedelta:
    """How long to wait after so many failures in a row: 1 s, 2 s, 4 s … 5 minutes."""
    return min(FIRST_PAUSE * (1 << min(failures - 1, 16)), LONGEST_PAUSE)
