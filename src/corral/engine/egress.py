"""What a sandbox may reach: shown, asked about, changed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from corral.engine.plan import egress_policy
from corral.engine.ports import Store
from corral.engine.sandboxes import Sandboxes
from corral.engine.vault import Secrets
from corral.errors import InvalidInput, NotFound
from corral.model.egress import PLAIN_PORT, TLS_PORT, EgressPolicy, HostRule
from corral.model.ids import TenantId
from corral.policy.egress import MODEL_HOSTS, Allowed, Denied, Reason, RuleBook, canonical_host
from corral.policy.paths import METHODS, unsafe
from corral.policy.routes import rule_at
from corral.policy.rules import checked_policy, expand

_FOR_ALL = frozenset({Reason.METADATA, Reason.MODEL_API, Reason.LOGIN})
"""What is refused whatever the rules say: no command opens it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request would be allowed, without its being made. `rule` is the one that decides, `why` and `hint` stand
    for a refusal; `inspected` says whether the gateway would read the request, `secrets` which secrets go to the host.
    """

    allowed: bool
    host: str
    port: int
    rule: HostRule | None = None
    reason: str = ""
    why: str = ""
    hint: str = ""
    inspected: bool = False
    secrets: tuple[str, ...] = ()


class Egress:
    """The use cases."""

    def __init__(self, sandboxes: Callable[[], Sandboxes], secrets: Secrets, store: Store) -> None:
        self._sandboxes = sandboxes
        self._secrets = secrets
        self._store = store

    def show(self, tenant: TenantId, ref: str) -> EgressPolicy:
        """All rules of a sandbox, each with its origin; empty origin: given for the sandbox itself."""
        return self._sandboxes().egress(tenant, ref)

    async def test(self, tenant: TenantId, ref: str, method: str, url: str) -> Verdict:
        """Whether a request would be allowed (G-316). Names are not looked up: an address may still be refused.

        Raises InvalidInput for a URL that is none.
        """
        scheme, host, port, path = _parts(url)
        if method.upper() not in METHODS:
            raise InvalidInput(f"{method[:40]!r} is not a method of HTTP", "such as GET")
        sandbox = self._sandboxes().get(tenant, ref)
        book = RuleBook(self.show(tenant, ref))
        models = await self._model_hosts(tenant, sandbox.spec.egress)
        decision = book.decide(host, port, models)
        bound = tuple(
            name
            for name, binding in self._secrets.bound(tenant, sandbox.spec.secrets)
            if binding.covers(host, port, tls=scheme == "https")
        )
        written = scheme == "https" and rule_at(await self._sandboxes().route(tenant, ref), host) is not None
        inside = book.looks_inside(host, port)
        if (
            isinstance(decision, Allowed)
            and (inside or bound or written)
            and (why := unsafe(path)) is not None
        ):
            return Verdict(
                allowed=False,
                host=host,
                port=port,
                reason="bad-request",
                why=f"the path could be read in two ways: {why}",
                hint="write it plainly",
                inspected=True,
            )
        if isinstance(decision, Allowed) and inside:
            decision = book.decide_request(decision, method.upper(), path)
        inspected = inside or bool(bound) or written or scheme == "http"
        if isinstance(decision, Denied):
            return Verdict(
                allowed=False,
                host=host,
                port=port,
                reason=decision.reason.value,
                why=decision.message,
                hint=decision.how_to_allow
                if decision.reason in _FOR_ALL
                else f"`corral egress allow {sandbox.spec.name} {host}`",
                inspected=inspected,
            )
        return Verdict(
            allowed=True, host=host, port=port, rule=decision.rule, inspected=inspected, secrets=bound
        )

    async def _model_hosts(self, tenant: TenantId, policy: EgressPolicy) -> frozenset[str]:
        """Hosts that only the metered service reaches, as the gateway takes them."""
        ruled = {rule.host for rule in policy.rules}
        named = {
            urlsplit(info.base_url).hostname or ""
            for info in await self._store.secrets(tenant)
            if info.provider.is_model
        }
        return MODEL_HOSTS | frozenset(named - ruled - {""})

    async def change(
        self,
        tenant: TenantId,
        ref: str,
        allow: tuple[str, ...],
        deny: tuple[str, ...],
        remove: tuple[str, ...],
    ) -> EgressPolicy:
        """Add rules that allow or deny, and take back those of the sandbox's own that are written like one of `remove`.

        It holds at once; what may no longer be open is cut. Raises InvalidInput, NotFound for a rule that is not there.
        """
        sandboxes = self._sandboxes()
        rules = list(sandboxes.get(tenant, ref).spec.egress.rules)
        for text in remove:
            gone = {replace(rule, deny=False, origin="") for rule in expand((text,), deny=True)}
            kept = [rule for rule in rules if replace(rule, deny=False, origin="") not in gone]
            if len(kept) == len(rules):
                raise NotFound(f"no rule of this sandbox is {text[:80]!r}", f"see `corral egress show {ref}`")
            rules = kept
        added = [rule for rule in egress_policy(allow, deny).rules if rule not in rules]
        current = sandboxes.get(tenant, ref).spec.egress
        await sandboxes.set_egress(tenant, ref, checked_policy(replace(current, rules=(*rules, *added))))
        return self.show(tenant, ref)


def _parts(url: str) -> tuple[str, str, int, str]:
    """Scheme, canonical host, port and path of a URL; a host alone stands for https."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port
    except ValueError:
        raise InvalidInput(f"{url[:200]!r} is not a URL", "such as https://example.com/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise InvalidInput(f"{url[:200]!r} is not a URL", "such as https://example.com/path")
    usual = TLS_PORT if parts.scheme == "https" else PLAIN_PORT
    return parts.scheme, canonical_host(parts.hostname), port or usual, parts.path or "/"
