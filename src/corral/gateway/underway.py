"""What a sandbox has open to other hosts, with what it takes to judge it again once the policy or its secrets change."""

from collections.abc import Callable
from dataclasses import dataclass

from corral.policy.egress import Allowed


def always() -> bool:
    """Of a connection whose requests are decided on one by one."""
    return True


@dataclass(frozen=True, slots=True)
class Way:
    """Where a connection leads. `holds` tells whether it may still be passed on as it is, its host being allowed."""

    host: str
    port: int
    holds: Callable[[], bool] = always


@dataclass(frozen=True, slots=True, eq=False)
class Ongoing:
    """A request that is being made, until its answer is over: `secrets` names those that may have gone into it, `cut` ends
    it at once.
    """

    allowed: Allowed
    method: str
    path: str
    tls: bool
    secrets: frozenset[str]
    cut: Callable[[], object]
