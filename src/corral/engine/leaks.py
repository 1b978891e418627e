"""No checkpoint holds a secret: what was captured is searched for the tenant's before anything can be made from it."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from corral.engine.ports import Driver, Store
from corral.engine.suspension import Captured
from corral.errors import Forbidden
from corral.model.ids import TenantId
from corral.model.leak import Leak
from corral.model.sandbox import SandboxSpec
from corral.model.secrets import Secret
from corral.model.template import TemplateConfig
from corral.policy.forms import forms

_NAMED = 5
_REMEMBERED = 100


class LeakCheck:
    """Searches captures. Costs as much as to read them, and nothing for a tenant without secrets."""

    def __init__(
        self, store: Store, driver: Driver, secrets: Callable[[TenantId], Awaitable[dict[str, Secret]]]
    ) -> None:
        self._store = store
        self._driver = driver
        self._secrets = secrets

    async def clean(
        self, spec: SandboxSpec, captured: Captured, config: TemplateConfig, *, redact: bool
    ) -> tuple[TemplateConfig, tuple[str, ...]]:
        """The configuration, and what was taken out of the capture and of it. Raises Forbidden for what may not be in a
        checkpoint: anything without `redact`, and what cannot be overwritten.
        """
        needles = {
            form: f"secret {name}"
            for name, value in (await self._secrets(spec.tenant)).items()
            for form in forms(value.reveal())
        }
        tokens = await self._tokens(spec)
        leaks = await self._driver.scan(captured.layer, captured.image, needles, tokens, redact=redact)
        cleaned, in_env = _without(config, {**tokens, **needles}, redact=redact)
        leaks += in_env
        if left := [leak for leak in leaks if not leak.overwritten]:
            raise _refusal(left, redact=redact)
        return cleaned, tuple(f"{leak.path}: {leak.what}" for leak in leaks[:_REMEMBERED])

    async def _tokens(self, spec: SandboxSpec) -> dict[bytes, str]:
        """Those that its processes may have written down."""
        if not spec.secrets and not spec.repos:
            return {}
        token = await self._store.derive_token((await self._store.grant_of(spec.id)).id)
        return dict.fromkeys(forms(token.reveal()), "the sandbox's token")


def _without(
    config: TemplateConfig, needles: dict[bytes, str], *, redact: bool
) -> tuple[TemplateConfig, list[Leak]]:
    env, leaks = dict(config.env), []
    for key, value in config.env.items():
        held = value.encode("utf-8", "surrogateescape")
        for needle, what in needles.items():
            if needle in held:
                leaks.append(Leak(f"environment variable {key}", what, redact))
                held = held.replace(needle, b"*" * len(needle))
        env[key] = held.decode("utf-8", "surrogateescape")
    return (replace(config, env=env) if redact else config), leaks


def _refusal(leaks: list[Leak], *, redact: bool) -> Forbidden:
    named = "; ".join(f"{leak.what} in {leak.path[:200]}" for leak in leaks[:_NAMED])
    more = f"; and {len(leaks) - _NAMED} more" if len(leaks) > _NAMED else ""
    hint = "remove that in the sandbox, then make the checkpoint"
    if not redact:
        hint += ", or overwrite it in the checkpoint alone: `corral checkpoint --redact`"
    return Forbidden(f"the checkpoint would hold {named}{more}", hint)
