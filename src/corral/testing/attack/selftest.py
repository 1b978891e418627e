"""All attacks, one after another, on one's own installation."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from time import monotonic

from corral.errors import CorralError, InvalidInput
from corral.sdk.client import Client
from corral.testing.attack import bound, control, files, framing, kernel, keys, network, resolver
from corral.testing.attack.arena import Attack, EscapedError, NotDoneError, SkippedError, open_arena

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
    """What became of the attack `name`. `said` is what stopped it, or what it reached, or why it was not tried."""

    name: str
    rules: str
    tried: str
    isolation: str
    verdict: Verdict
    said: str
    seconds: float


def chosen(names: Collection[str] = (), words: str = "") -> list[Attack]:
    """The attacks of these names, all if there is none, whose name, rules or words hold `words`. Raises InvalidInput for a
    name that no attack has, and where none is left.
    """
    known = {attack.name for attack in ATTACKS}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3)
            raise InvalidInput(
                f"there is no attack {name[:80]!r}",
                f"did you mean {', '.join(near)}?" if near else "see their names: `corral self-test --list`",
            )
    found = [
        attack
        for attack in ATTACKS
        if (not names or attack.name in names)
        and words.lower() in f"{attack.name} {attack.rules} {attack.tried}".lower()
    ]
    if not found:
        raise InvalidInput("no attack was chosen", "see their names: `corral self-test --list`")
    return found


def run_attacks(client: Client, isolation: str, attacks: Iterable[Attack] = ATTACKS) -> Iterator[Finding]:
    """Findings as they come. Raises Unsupported where the host does not give the isolation."""
    with open_arena(client, isolation) as arena:
        for attack in attacks:
            began = monotonic()
            try:
                verdict, said = Verdict.STOPPED, attack.run(arena)
            except EscapedError as error:
                verdict, said = Verdict.ESCAPED, str(error)
            except SkippedError as error:
                verdict, said = Verdict.SKIPPED, str(error)
            except NotDoneError as error:
                verdict, said = Verdict.FAILED, str(error)
            except (CorralError, OSError, LookupError, ValueError) as error:
                verdict, said = Verdict.FAILED, f"{type(error).__name__}: {error}"
            yield Finding(
                attack.name, attack.rules, attack.tried, isolation, verdict, said, monotonic() - began
            )
