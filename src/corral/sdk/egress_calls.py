"""Operations on what sandboxes may reach."""

from collections.abc import Iterable

from corral.protocol import egress
from corral.sdk.calls import get, post, url
from corral.sdk.operations import Call, build, parse, reply


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


def _rules(body: bytes) -> list[egress.EgressRule]:
    return parse(egress.EgressRules, body).rules
