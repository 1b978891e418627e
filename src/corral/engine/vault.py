"""Secrets and prices: kept by the store, handed to the gateway at once when they change."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, replace
from urllib.parse import urlsplit

from corral.engine.ports import Clock, Gateway, ModelPrice, OpenedSecret, SecretSource, Store
from corral.errors import CorralError, InvalidInput, NotFound
from corral.model.audit import AuditItem
from corral.model.binding import Binding, Mode
from corral.model.ids import TenantId, check_name
from corral.model.secrets import Provider, Secret, SecretForm, SecretInfo
from corral.policy.bindings import complete_binding, parts_of
from corral.wire.githubapp import App, mark

log = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
CHATGPT_URL = "https://chatgpt.com/backend-api/codex"
CLAUDE_TOKEN = "sk-ant-oat"  # noqa: S105 (how such tokens begin)
_Key = tuple[TenantId, str]

_FORMS = {SecretForm.CHATGPT: Provider.OPENAI, SecretForm.GITHUB_APP: Provider.GITHUB}
"""Whose secrets those of these forms are."""

DEFAULT_BASE_URLS = {
    Provider.ANTHROPIC: "https://api.anthropic.com",
    Provider.OPENAI: "https://api.openai.com",
    Provider.GEMINI: "https://generativelanguage.googleapis.com",
    Provider.OPENROUTER: "https://openrouter.ai/api/v1",
    Provider.GITHUB: "https://github.com",
    Provider.GITLAB: "https://gitlab.com",
    Provider.BITBUCKET: "https://bitbucket.org",
}


def check_base_url(url: str) -> str:
    """`url` without a trailing slash, or InvalidInput: http(s), a host, no user, query or fragment. A path that is the
    version alone (`/v1`) is left out: the gateway writes it again.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(
            f"base URL {url[:200]!r} is not valid", "give https://host[:port][/path]"
        ) from error
    plain = parts.scheme in ("http", "https") and parts.hostname and not parts.username and not parts.password
    if not plain or parts.query or parts.fragment or any(c <= " " or c == "\x7f" for c in url) or port == 0:
        raise InvalidInput(
            f"base URL {url[:200]!r} is not valid", "give https://host[:port][/path], nothing more"
        )
    trimmed = url.rstrip("/")
    return trimmed.removesuffix("/v1") if parts.path.strip("/") == "v1" else trimmed


def _parts(name: str, key: OpenedSecret) -> dict[str, Secret]:
    """What of a key nobody but the host may hold, by what it is called: of AWS's the key's id is no secret. What has not the
    form of its kind is that as a whole.
    """
    mode = Mode.REPLACE if key.binding is None else key.binding.mode
    try:
        parts = parts_of(key.value, mode)
    except InvalidInput:
        parts = parts_of(key.value, Mode.REPLACE)
    else:
        parts = parts[1:] if mode is Mode.AWS else parts
    return dict(zip((name, f"{name}, its session token"), map(Secret, parts), strict=False))


class Secrets:
    """The vault's secrets, by tenant and name."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        clock: Clock,
        changed: Callable[[TenantId, str], Awaitable[None]] | None = None,
        sources: Mapping[SecretForm, SecretSource] | None = None,
        bypassed: Callable[[str], bool] = lambda host: False,
    ) -> None:
        """`changed` is called after the hosts of a secret may have changed. `sources` give the keys of secrets whose form
        does not hold them. `bypassed` tells hosts that the gateway does not look into.
        """
        self._store = store
        self._gateway = gateway
        self._clock = clock
        self._changed = changed
        self._bindings: dict[tuple[TenantId, str], Binding] = {}
        self._sources = sources or {}
        self._bypassed = bypassed
        self._problems: dict[_Key, str] = {}
        self._published: dict[_Key, OpenedSecret] = {}
        self._prices: list[ModelPrice] = []
        self._publishing = asyncio.Lock()

    async def add(
        self,
        tenant: TenantId,
        name: str,
        value: Secret,
        provider: Provider | None = None,
        base_url: str | None = None,
        binding: Binding | None = None,
        form: SecretForm = SecretForm.VALUE,
    ) -> SecretInfo:
        """Add or replace a secret; running sandboxes use the new value from their next request on.

        `provider` is taken from the name where that is a provider's (`anthropic`, `github`). With `binding` it is of no
        provider, but goes to the hosts named there. What a command or a login gives is looked at first: where it gives
        no key, nothing is added. Raises InvalidInput and what the source raises.
        """
        check_name(name, "secret name")
        if binding is not None:
            return await self._add_bound(tenant, name, value, provider, base_url, binding, form)
        provider = provider or _FORMS.get(form) or _provider_named(name)
        if form is SecretForm.GITHUB_APP:
            App.parse(value.reveal())
            if provider is not Provider.GITHUB:
                raise InvalidInput("a GitHub App opens GitHub's repositories", "leave --provider out")
        if provider is Provider.HOST:
            raise InvalidInput(f"secret {name!r} is bound to no host", "name one: `--host api.example.com`")
        url = check_base_url(base_url) if base_url else _default_url(provider, form)
        if provider is Provider.ANTHROPIC and value.reveal().startswith(CLAUDE_TOKEN):
            form = SecretForm.CLAUDE
        await self._put(OpenedSecret(tenant, name, provider, url, value, form=form), "secret.put")
        return await self._info(tenant, name)

    async def rotate(self, tenant: TenantId, name: str, value: Secret | None) -> SecretInfo:
        """Give a secret another value, or have its command or login give another (None). All else of it stays, and
        sandboxes use the new one from their next request on. Raises NotFound, InvalidInput.
        """
        info = await self._info(tenant, name)
        if value is not None and info.binding is not None:
            return await self.add(tenant, name, value, binding=info.binding, form=info.form)
        if value is not None:
            if info.form is SecretForm.GITHUB_APP:
                App.parse(value.reveal())
            secret = OpenedSecret(tenant, name, info.provider, info.base_url, value, form=info.form)
            await self._put(secret, "secret.rotate")
            return await self._info(tenant, name)
        if info.form not in self._sources:
            raise InvalidInput(
                f"secret {name!r} needs its new value", "give it on stdin, from a file or a variable"
            )
        await self.publish(anew=(tenant, name))
        await self._store.audit(tenant, None, "secret.rotate", {"name": name})
        return await self._info(tenant, name)

    async def _put(self, secret: OpenedSecret, kind: str) -> None:
        if secret.form in self._sources:
            await self._sources[secret.form].present(secret, anew=True)
        detail = {
            "name": secret.name,
            "provider": secret.provider.value,
            "base_url": secret.base_url,
            "form": secret.form.value,
        }
        await self._store.put_secret(secret, self._clock.now(), AuditItem(secret.tenant, None, kind, detail))
        await self._publish_one(secret.tenant, secret.name)

    async def _info(self, tenant: TenantId, name: str) -> SecretInfo:
        (info,) = await self.named(tenant, (name,))
        return info

    async def _add_bound(
        self,
        tenant: TenantId,
        name: str,
        value: Secret,
        provider: Provider | None,
        base_url: str | None,
        binding: Binding,
        form: SecretForm,
    ) -> SecretInfo:
        if provider not in (None, Provider.HOST) or base_url is not None:
            raise InvalidInput(
                "a secret goes to a model API or to hosts, not to both", "leave --provider and --base-url out"
            )
        if form in _FORMS:
            raise InvalidInput(f"a secret of form {form} goes to its own host alone", "leave --host out")
        former = {info.name: info for info in await self._store.secrets(tenant)}.get(name)
        kept = former.binding if former is not None else None
        opened = OpenedSecret(tenant, name, Provider.HOST, "", value, binding, form)
        source = self._sources.get(form)
        key = value if source is None else (await source.present(opened, anew=True)).value
        checked = complete_binding(name, key, binding, kept)
        for host in checked.hosts:
            if self._bypassed(host):
                raise InvalidInput(
                    f"{host} is never looked into on this host, so no secret can go there (G-46)",
                    "the operator can take it off the list: `corral config get`, egress.bypass",
                )
        opened = replace(opened, base_url=f"https://{checked.hosts[0]}", binding=checked)
        detail = {"name": name, "hosts": " ".join(checked.hosts), "mode": checked.mode}
        record = AuditItem(tenant, None, "secret.put", detail)
        info = await self._store.put_secret(opened, self._clock.now(), record)
        await self._publish_one(tenant, name)
        return info

    async def remove(self, tenant: TenantId, name: str) -> None:
        """Remove a secret; calls that use it are refused from now on. Raises NotFound."""
        await self._store.remove_secret(
            tenant, name, AuditItem(tenant, None, "secret.remove", {"name": name})
        )
        await self._publish_one(tenant, name)

    async def named(self, tenant: TenantId, names: tuple[str, ...]) -> list[SecretInfo]:
        """These secrets. Raises NotFound for the first one that does not exist."""
        known = {info.name: info for info in await self.list(tenant)}
        for name in names:
            if name not in known:
                raise NotFound(
                    f"there is no secret {name[:80]!r}", f"add it: `corral secret add {name[:63]}`"
                )
        return [known[name] for name in names]

    async def _publish_one(self, tenant: TenantId, name: str) -> None:
        await self.publish()
        if self._changed is not None:
            await self._changed(tenant, name)

    async def values(self, tenant: TenantId) -> dict[str, Secret]:
        """All keys of a tenant by the name of their secret: what is kept, and what its source gives now. Raises HostError
        if one of them was altered: what cannot be read cannot be looked for.
        """
        found: dict[str, Secret] = {}
        opened = await self._store.open_secrets()
        for broken in opened.broken:
            if broken.tenant == tenant:
                raise broken.error
        for kept in opened.whole:
            if kept.tenant != tenant:
                continue
            if kept.form is SecretForm.GITHUB_APP:
                found[kept.name] = Secret(mark(kept.value.reveal()))
            elif kept.form not in self._sources:
                found |= _parts(kept.name, kept)
            else:
                found[kept.name] = kept.value
                presented = await self._presented(kept, anew=False)
                if presented is not None and presented.value.reveal() != kept.value.reveal():
                    found |= _parts(f"{kept.name}, the key that it gives", presented)
        return found

    def bound(self, tenant: TenantId, names: Iterable[str]) -> list[tuple[str, Binding]]:
        """Those of these secrets that go to hosts, as they were last published."""
        return [(name, found) for name in names if (found := self._bindings.get((tenant, name))) is not None]

    async def publish(self, anew: "_Key | None" = None) -> None:
        """Hand all secrets and prices to the gateway. One that was altered, or whose source gives no key, is held back, and
        the gateway refuses calls that want it; `anew` names one whose source is asked again.
        """
        async with self._publishing:
            opened = await self._store.open_secrets()
            for broken in opened.broken:
                await self._held_back((broken.tenant, broken.name), broken.error)
            kept = opened.whole
            self._bindings = {(one.tenant, one.name): one.binding for one in kept if one.binding is not None}
            async with asyncio.TaskGroup() as tasks:
                asked = [
                    tasks.create_task(self._presented(item, anew=(item.tenant, item.name) == anew))
                    for item in kept
                ]
            ready = [found for task in asked if (found := task.result()) is not None]
            await self._gateway.set_secrets(ready)
            self._published = _by_key(kept)
            self._prices = await self._store.prices()
            await self._gateway.set_prices(self._prices)

    async def _presented(self, secret: OpenedSecret, *, anew: bool) -> OpenedSecret | None:
        key = (secret.tenant, secret.name)
        source = self._sources.get(secret.form)
        if source is None:
            self._problems.pop(key, None)
            return secret
        try:
            found = await source.present(secret, anew=anew)
        except CorralError as error:
            await self._held_back(key, error)
            return None
        self._problems.pop(key, None)
        return found

    async def _held_back(self, key: _Key, error: CorralError) -> None:
        """Note, once, why a secret cannot be used. That this cannot be recorded harms no other secret."""
        tenant, name = key
        if key not in self._problems:
            log.error("secret %s of tenant %s cannot be used: %s", name, tenant, error)
            with contextlib.suppress(CorralError):
                await self._store.audit(tenant, None, "secret.broken", {"name": name})
        self._problems[key] = error.message

    async def keep_fresh(self, *, shared: bool) -> None:
        """Ask sources again from time to time, so that the gateway has keys that are good, and where the database is `shared`,
        give it what other daemons have changed there; runs until cancelled."""
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            try:
                if shared or any(secret.form in self._sources for secret in self._published.values()):
                    await self._refresh()
            except CorralError as error:
                log.error("secrets could not be kept fresh: %s", error)

    async def _refresh(self) -> None:
        held = _by_key((await self._store.open_secrets()).whole)
        known = self._published
        changed = [key for key in held.keys() | known.keys() if held.get(key) != known.get(key)]
        sourced = any(secret.form in self._sources for secret in held.values())
        if changed or sourced or await self._store.prices() != self._prices:
            await self.publish()
        if self._changed is not None:
            for tenant, name in changed:
                await self._changed(tenant, name)

    async def list(self, tenant: TenantId) -> list[SecretInfo]:
        """What may be shown of a tenant's secrets."""
        return [
            replace(info, problem=self._problems.get((tenant, info.name), ""))
            for info in await self._store.secrets(tenant)
        ]


class Prices:
    """Operator's prices, for models that the price library does not know."""

    def __init__(self, store: Store, gateway: Gateway) -> None:
        self._store = store
        self._gateway = gateway

    async def set(self, tenant: TenantId, price: ModelPrice) -> None:
        """Add or replace a price. Raises NotFound for an unknown secret, InvalidInput for a negative price."""
        if price.secret not in {info.name for info in await self._store.secrets(tenant)}:
            raise NotFound(f"there is no secret {price.secret[:80]!r}", "see `corral secret ls`")
        if min(price.input, price.output, price.cache_read, price.cache_write) < 0:
            raise InvalidInput("a price is negative", "give US dollars per million tokens, 0 or more")
        detail = {name: str(value) for name, value in asdict(price).items()}
        await self._store.set_price(price, AuditItem(tenant, None, "price.set", detail))
        await self._gateway.set_prices(await self._store.prices())

    async def list(self) -> list[ModelPrice]:
        """All operator's prices."""
        return await self._store.prices()


def _by_key(secrets: Iterable[OpenedSecret]) -> dict[_Key, OpenedSecret]:
    return {(one.tenant, one.name): one for one in secrets}


def _default_url(provider: Provider, form: SecretForm) -> str:
    if form is SecretForm.CHATGPT and provider is Provider.OPENAI:
        return CHATGPT_URL
    if provider not in DEFAULT_BASE_URLS:
        raise InvalidInput(
            f"a secret of provider {provider} needs the host that it is for", "add --base-url https://HOST"
        )
    return DEFAULT_BASE_URLS[provider]


def _provider_named(name: str) -> Provider:
    try:
        return Provider(name)
    except ValueError:
        known = ", ".join(Provider)
        raise InvalidInput(
            f"the provider of secret {name!r} is not known", f"add --provider, one of: {known}"
        ) from None
