"""What may be pushed, decided on values alone: rules by ref, then what the pack brings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from corral.errors import InvalidInput
from corral.model.git import Operation, PushPolicy, PushRule, Verdict
from corral.model.push import Flag, FlagKind, PushReport

MAX_RULES = 256
_OPERATIONS = ", ".join(Operation)
MAX_TEXTS = 100
_RULE_TEXT = f"write allow:PATTERN, ask:PATTERN or deny:PATTERN; operations behind it, joined by +, are {_OPERATIONS}, or any"
_ALL = tuple(Operation)
_PLAIN = (Operation.CREATE, Operation.UPDATE)

ASKED = frozenset({FlagKind.SECRET, FlagKind.CI, FlagKind.SUBMODULE, FlagKind.NOT_INSPECTED})
"""Findings that need a person even where a rule allows the ref."""
REFUSED = frozenset({FlagKind.LEAK, FlagKind.AUTHOR, FlagKind.UNSIGNED})
"""Findings that break a rule of the repository, or would send a secret of the host's away (G-44)."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What holds for one ref. `rule` is its pattern."""

    ref: str
    operation: Operation
    verdict: Verdict
    rule: str
    reason: str


def parse_push_rule(text: str) -> PushRule:
    """A rule from `VERDICT:PATTERN[:OPERATION+…]`. A pattern without `refs/` is a branch's. Raises InvalidInput."""
    verdict, _, rest = text.strip().partition(":")
    pattern, _, operations = rest.partition(":")
    if verdict not in tuple(Verdict) or not pattern or len(pattern) > 200 or not pattern.isprintable():
        raise InvalidInput(f"{text[:80]!r} is not a push rule", _RULE_TEXT)
    full = pattern if pattern.startswith("refs/") or pattern == "*" else f"refs/heads/{pattern}"
    return PushRule(Verdict(verdict), full, _operations(operations, Verdict(verdict), text))


def rule_text(rule: PushRule) -> str:
    """A rule as `parse_push_rule` reads it."""
    operations = "any" if set(rule.operations) == set(_ALL) else "+".join(rule.operations)
    return f"{rule.verdict}:{rule.pattern}:{operations}"


def _operations(names: str, verdict: Verdict, text: str) -> tuple[Operation, ...]:
    if names == "any" or (not names and verdict is Verdict.DENY):
        return _ALL
    if not names:
        return _PLAIN
    found = names.split("+")
    if not all(name in tuple(Operation) for name in found):
        raise InvalidInput(f"{text[:80]!r} names an operation that is none", _RULE_TEXT)
    return tuple(Operation(name) for name in dict.fromkeys(found))


def joined(own: PushPolicy, host: PushPolicy) -> PushPolicy:
    """A sandbox's rules, and the host's after them; what the host restricts beside rules, no sandbox widens."""
    return PushPolicy(
        rules=(*own.rules, *host.rules),
        options=host.options,
        authors=host.authors,
        max_pack=min(own.max_pack, host.max_pack),
        signed=own.signed or host.signed,
        wait=min(own.wait, host.wait),
    )


@lru_cache(maxsize=1024)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def matches(rule: PushRule, ref: str, operation: Operation) -> bool:
    """Whether a rule is about this. What restricts, restricts refs that differ in case only too (G-250)."""
    if operation not in rule.operations:
        return False
    if rule.verdict is Verdict.ALLOW:
        return _expression(rule.pattern).fullmatch(ref) is not None
    return _expression(rule.pattern.casefold()).fullmatch(ref.casefold()) is not None


def defaults(sandbox: str) -> tuple[PushRule, ...]:
    """The rules after all others (G-252): a sandbox's own branches are free, other branches are asked for."""
    return (
        PushRule(Verdict.ALLOW, f"refs/heads/corral/{sandbox}", _PLAIN),
        PushRule(Verdict.ALLOW, f"refs/heads/corral/{sandbox}/*", _PLAIN),
        PushRule(
            Verdict.ALLOW, f"refs/heads/corral/{sandbox}.*", _PLAIN
        ),  # beside the first; no name has a dot
        PushRule(Verdict.ASK, "refs/heads/*", _PLAIN),
        PushRule(Verdict.DENY, "*", _ALL),
    )


def judge(policy: PushPolicy, sandbox: str, ref: str, operation: Operation) -> Judgement:
    """What the first rule that matches says. Rules that deny go before all others."""
    denying = [rule for rule in policy.rules if rule.verdict is Verdict.DENY]
    for rule in (*denying, *policy.rules, *defaults(sandbox)):
        if matches(rule, ref, operation):
            return Judgement(ref, operation, rule.verdict, rule.pattern, _reason(rule, ref, operation))
    return Judgement(ref, operation, Verdict.DENY, "", _reason(None, ref, operation))


_DOING = {
    Operation.CREATE: "creating",
    Operation.UPDATE: "pushing to",
    Operation.FORCE: "overwriting the history of",
    Operation.DELETE: "deleting",
}


def _reason(rule: PushRule | None, ref: str, operation: Operation) -> str:
    what = f"{_DOING[operation]} {ref.removeprefix('refs/heads/')}"
    if rule is None or rule.verdict is Verdict.DENY:
        return f"{what} is not allowed"
    return f"{what} is asked for" if rule.verdict is Verdict.ASK else ""


def refused_options(policy: PushPolicy, options: Sequence[str]) -> list[str]:
    """Push options that are not listed (G-256)."""
    return [one for one in options if one not in policy.options]


def flagged(policy: PushPolicy, report: PushReport) -> tuple[Verdict, str]:
    """What the pack's content asks for, whatever the rules of its refs say."""
    broken = [flag for flag in report.flags if flag.kind in REFUSED]
    if broken:
        return Verdict.DENY, describe(broken[0])
    asked = [flag for flag in report.flags if flag.kind in ASKED]
    return (Verdict.ASK, describe(asked[0])) if asked else (Verdict.ALLOW, "")


_MEANING = {
    FlagKind.LEAK: "a secret of this host, which no sandbox is given",
    FlagKind.SECRET: "what looks like a secret",
    FlagKind.CI: "a file that runs in CI",
    FlagKind.HOOK: "a file that git or an editor runs",
    FlagKind.SUBMODULE: "a submodule is added or moved",
    FlagKind.SYMLINK: "a symbolic link",
    FlagKind.EXECUTABLE: "a file becomes executable",
    FlagKind.LARGE: "a large file",
    FlagKind.BINARY: "a binary file",
    FlagKind.AUTHOR: "an author whom the rules do not list",
    FlagKind.UNSIGNED: "a commit without a signature",
    FlagKind.NOT_INSPECTED: "not everything could be looked at",
}


def describe(flag: Flag) -> str:
    """A finding as a person reads it."""
    return f"{_MEANING[flag.kind]}: {flag.subject}" + (f" ({flag.detail})" if flag.detail else "")


def verdict(judgements: Sequence[Judgement], content: Verdict = Verdict.ALLOW) -> Verdict:
    """Of a push as a whole: the strictest (G-254)."""
    order = (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)
    return max((content, *(one.verdict for one in judgements)), key=order.index)


def reasons(judgements: Sequence[Judgement], other: str = "") -> Mapping[str, str]:
    """For each ref of a push that is refused, why: its own reason, or that another one's is."""
    denied = {one.ref: one.reason for one in judgements if one.verdict is Verdict.DENY}
    first = other or next((f"refused with the rest: {reason}" for reason in denied.values()), "refused")
    return {one.ref: denied.get(one.ref, first) for one in judgements}
