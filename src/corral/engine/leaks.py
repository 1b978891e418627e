"""No checkpoint, no step of a build or a setup and no image holds a secret: what was captured or brought in is searched for the
tenant's before anything can be made from it.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from corral.engine.ports import Driver, Store
from corral.engine.suspension import Captured
from corral.errors import Forbidden
from corral.model.ids import LayerDigest, TenantId
from corral.model.leak import Leak
from corral.model.sandbox import SandboxSpec
from corral.model.secrets import Secret
from corral.model.service import services_of
from corral.model.template import TemplateConfig
from corral.policy.forms import distinct, forms

_NAMED = 5
_REMEMBERED = 100
_SEARCHED = 10_000
_IMAGE = "the image holds"
_IMAGE_HINT = (
    "make it anew without that, and rotate the secret: `corral secret rotate`; who has the image has it, too"
)

Tokens = Mapping[bytes, str]
"""Forms of the tokens that the processes of a sandbox have, and what they are."""


class LeakCheck:
    """Searches captures. Costs as much as to read them, and nothing for a tenant without secrets."""

    def __init__(
        self, store: Store, driver: Driver, secrets: Callable[[TenantId], Awaitable[dict[str, Secret]]]
    ) -> None:
        """`secrets` gives all keys of a tenant by name."""
        self._store = store
        self._driver = driver
        self._secrets = secrets
        self._clean: dict[LayerDigest, bytes] = {}
        """Layers of steps, and for what they were searched last, as a digest."""

    async def clean(
        self, spec: SandboxSpec, captured: Captured, config: TemplateConfig, *, redact: bool
    ) -> tuple[TemplateConfig, tuple[str, ...]]:
        """The configuration, and what was taken out of the capture and of it. Raises Forbidden for what may not be in a
        checkpoint: anything without `redact`, and what cannot be overwritten.
        """
        needles, tokens = await self._needles(spec.tenant), await self.tokens(spec)
        leaks = await self._driver.scan(captured.layer, captured.image, needles, tokens, redact=redact)
        cleaned, in_settings = _without(config, {**tokens, **needles}, redact=redact)
        leaks += in_settings
        if left := [leak for leak in leaks if not leak.overwritten]:
            hint = "remove that in the sandbox, then make the checkpoint"
            if not redact:
                hint += ", or overwrite it in the checkpoint alone: `corral checkpoint --redact`"
            raise _refusal("the checkpoint would hold", left, hint)
        return cleaned, tuple(f"{leak.path}: {leak.what}" for leak in leaks[:_REMEMBERED])

    async def check_steps(
        self, tenant: TenantId, layers: Sequence[LayerDigest], tokens: Tokens, hint: str
    ) -> None:
        """Raise Forbidden, with `hint`, for what steps left that may not be kept. A layer that was searched already is only
        searched again once the tenant has other secrets.
        """
        await self._search(layers, await self._needles(tenant), tokens, "the step would keep", hint)

    async def check_image(
        self, tenant: TenantId, layers: Sequence[LayerDigest], config: TemplateConfig
    ) -> None:
        """Raise Forbidden for an image from outside that holds a secret of the tenant's. Not looked for are keys that could be
        words: whole images are full of those."""
        needles = {form: what for form, what in (await self._needles(tenant)).items() if distinct(form)}
        _, leaks = _without(config, needles, redact=False)
        if leaks:
            raise _refusal(_IMAGE, leaks, _IMAGE_HINT)
        await self._search(layers, needles, {}, _IMAGE, _IMAGE_HINT)

    async def _search(
        self,
        layers: Sequence[LayerDigest],
        needles: Mapping[bytes, str],
        tokens: Tokens,
        would: str,
        hint: str,
    ) -> None:
        wanted = hashlib.sha256(b"\0".join(sorted(needles))).digest()
        for layer in layers:
            if not tokens and self._clean.get(layer) == wanted:
                continue
            if leaks := await self._driver.scan(layer, None, needles, tokens, redact=False):
                raise _refusal(would, leaks, hint)
            if len(self._clean) >= _SEARCHED:
                self._clean.clear()
            self._clean[layer] = wanted

    async def check_settings(self, tenant: TenantId, config: TemplateConfig, hint: str) -> None:
        """Raise Forbidden, with `hint`, for a template that would tell a secret by how its sandboxes are run."""
        _, leaks = _without(config, await self._needles(tenant), redact=False)
        if leaks:
            raise _refusal("the template would hold", leaks, hint)

    async def tokens(self, spec: SandboxSpec) -> dict[bytes, str]:
        """Those that a sandbox's processes may have written down."""
        if not spec.secrets and not spec.repos:
            return {}
        token = await self._store.derive_token((await self._store.grant_of(spec.id)).id)
        return dict.fromkeys(forms(token.reveal()), "the sandbox's token")

    async def _needles(self, tenant: TenantId) -> dict[bytes, str]:
        return {
            form: f"secret {name}"
            for name, value in (await self._secrets(tenant)).items()
            for form in forms(value.reveal())
        }


def _without(
    config: TemplateConfig, needles: Mapping[bytes, str], *, redact: bool
) -> tuple[TemplateConfig, list[Leak]]:
    """The configuration, without what its environment held where that is to be overwritten; and what it holds."""
    env, leaks = dict(config.env), []
    for key, value in config.env.items():
        held = value.encode("utf-8", "surrogateescape")
        for needle, what in needles.items():
            if needle in held:
                leaks.append(Leak(f"environment variable {key}", what, redact))
                held = held.replace(needle, b"*" * len(needle))
        env[key] = held.decode("utf-8", "surrogateescape")
    for service in (*services_of(config.start_command, config.ready_command), *config.services):
        words = "\0".join((*service.command, *service.ready, *service.env.values()))
        held = words.encode("utf-8", "surrogateescape")
        leaks += [
            Leak(f"service {service.name}", what, overwritten=False)
            for needle, what in needles.items()
            if needle in held
        ]
    return (replace(config, env=env) if redact else config), leaks


def _refusal(would: str, leaks: list[Leak], hint: str) -> Forbidden:
    named = "; ".join(f"{leak.what} in {leak.path[:200]}" for leak in leaks[:_NAMED])
    more = f"; and {len(leaks) - _NAMED} more" if len(leaks) > _NAMED else ""
    return Forbidden(f"{would} {named}{more}", hint)
