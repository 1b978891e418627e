"""All attacks, one after another, on one's own installation."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic

from corral.errors import CorralError
from corral.sdk.client import Client
from corral.testing.attack import bound, control, files, framing, kernel, keys, network, resolver
from corral.testing.attack.arena import Attack, EscapedError, SkippedError, open_arena

ATTACKS: tuple[Attack, ...] = (
    *network.ATTACKS,
    *framing.ATTACKS,
    *resolver.ATTACKS,
    *bound.ATTACKS,
    *keys.ATTACKS,
    *control.ATTACKS,
    *files.ATTACKS,
    *kernel.ATTACKS,
)


class Verdict(StrEnum):
    """How an attack ended. `failed`: it could not be carried out, which says nothing."""

    STOPPED = "stopped"
    ESCAPED = "escaped"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of an attack. `said` is what stopped it, or what it reached, or why it was not tried."""

    rules: str
    tried: str
    isolation: str
    verdict: Verdict
    said: str
    seconds: float


def run_attacks(client: Client, isolation: str, only: str = "") -> Iterator[Finding]:
    """Findings as they come. `only` keeps attacks whose rules or words hold it. Raises Unsupported where the host does
    not give the isolation."""
    chosen = [attack for attack in ATTACKS if only.lower() in f"{attack.rules} {attack.tried}".lower()]
    with open_arena(client, isolation) as arena:
        for attack in chosen:
            began = monotonic()
            try:
                verdict, said = Verdict.STOPPED, attack.run(arena)
            except EscapedError as error:
                verdict, said = Verdict.ESCAPED, str(error)
            except SkippedError as error:
                verdict, said = Verdict.SKIPPED, str(error)
            except (CorralError, OSError, LookupError, ValueError) as error:
                verdict, said = Verdict.FAILED, f"{type(error).__name__}: {error}"
            yield Finding(attack.rules, attack.tried, isolation, verdict, said, monotonic() - began)
