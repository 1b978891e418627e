"""What a decision of the egress policy costs, with many rules: the last step before each connection and each request."""

from collections.abc import Iterator
from time import perf_counter

from bench.figures import Figure, Row
from bench.stand import Stand
from corral.model.egress import EgressPolicy, HostRule
from corral.policy.egress import Allowed, RuleBook

_RULES, _FEW, _BUDGET = 1000, 10, 50.0
_PATHS = ("/v1/*/items/**", "/v2/**", "/health")


def rows(stand: Stand) -> Iterator[Row]:
    """A connection and a request in it, both allowed by the last of the rules."""
    rounds = stand.n(2000, 500)
    few = Figure.of(f"with {_FEW} rules", "µs", _costs(_FEW, rounds))
    yield Row(
        f"policy decision with {_RULES:,} rules",
        Figure.of("Corral", "µs", _costs(_RULES, rounds)),
        (few,),
        budget=_BUDGET,
        bounds={few.who: 2.0},
        remark="The decision on a connection and on a request in it, by method and path, together.",
    )


def _costs(count: int, rounds: int) -> list[float]:
    rules = [HostRule(f"host-{n}.example.com", methods=("GET",), paths=_PATHS) for n in range(count // 2)]
    rules += [HostRule(f"*.zone-{n}.example.com", deny=n % 2 == 0) for n in range(count - len(rules))]
    book = RuleBook(EgressPolicy(tuple(rules)))
    host = f"host-{count // 2 - 1}.example.com"
    found = []
    for _ in range(rounds):
        begun = perf_counter()
        decision = book.decide(host, 443)
        if not isinstance(decision, Allowed) or not isinstance(
            book.decide_request(decision, "GET", "/v1/some/items/1/2/3"), Allowed
        ):
            raise RuntimeError("the policy does not allow what it should")
        found.append((perf_counter() - begun) * 1e6)
    return found
