"""Operations on what sandboxes may reach."""

from collections.abc import Iterable

from corral.protocol import egress, learning
from corral.sdk.operations import Call, build, parse, reply
from corral.sdk.requests import get, post, url


def get_egress(ref: str) -> Call[list[egress.EgressRule]]:
    """All rules of a sandbox, each with its origin."""
    return Call(get(url("sandboxes", ref, "egress")), _rules)


def change_egress(
    ref: str, *, allow: Iterable[str] = (), deny: Iterable[str] = (), remove: Iterable[str] = ()
) -> Call[list[egress.EgressRule]]:
    """Add rules to a sandbox, and take its own ones back; all rules afterwards. It holds at once."""
    body = build(egress.ChangeEgress, allow=list(allow), deny=list(deny), remove=list(remove))
    return Call(post(url("sandboxes", ref, "egress"), body), _rules)


def check_egress(ref: str, target: str, method: str = "GET") -> Call[egress.EgressVerdict]:
    """Whether a request to the URL `target` would be allowed, which is not made."""
    body = build(egress.AskEgress, url=target, method=method)
    return Call(post(url("sandboxes", ref, "egress", "test"), body), reply(egress.EgressVerdict))


def list_presets() -> Call[list[egress.Preset]]:
    """Lists of hosts that rules can name, each host with its purpose."""
    return Call(get(url("egress", "presets")), lambda body: parse(egress.PresetList, body).presets)


def learn_egress(ref: str) -> Call[learning.LearnedPolicy]:
    """Let a sandbox reach any public name at ports 443 and 80, and record which, until it is locked."""
    return Call(post(url("sandboxes", ref, "egress", "learn")), reply(learning.LearnedPolicy))


def lock_egress(ref: str, *, dry_run: bool = False) -> Call[learning.LearnedPolicy]:
    """End learning: from now on it reaches what it has reached meanwhile, and what it could before. With `dry_run`, say
    so and change nothing. Raises Conflict for one that does not learn.
    """
    body = build(learning.Lock, dry_run=dry_run)
    return Call(
        post(url("sandboxes", ref, "egress", "lock"), body, quick=False), reply(learning.LearnedPolicy)
    )


def _rules(body: bytes) -> list[egress.EgressRule]:
    return parse(egress.EgressRules, body).rules
