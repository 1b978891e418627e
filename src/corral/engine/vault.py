"""Secrets and prices: kept by the store, handed to the gateway at once when they change."""

from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlsplit

from corral.engine.ports import Clock, Gateway, ModelPrice, OpenedSecret, Store
from corral.errors import InvalidInput, NotFound
from corral.model.binding import Binding
from corral.model.ids import TenantId, check_name
from corral.model.secrets import Provider, Secret, SecretInfo
from corral.policy.bindings import complete_binding

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


class Secrets:
    """The vault's secrets, by tenant and name."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        clock: Clock,
        changed: Callable[[TenantId, str], Awaitable[None]] | None = None,
    ) -> None:
        """`changed` is called after the hosts of a secret may have changed."""
        self._store = store
        self._gateway = gateway
        self._clock = clock
        self._changed = changed
        self._bindings: dict[tuple[TenantId, str], Binding] = {}

    async def add(
        self,
        tenant: TenantId,
        name: str,
        value: Secret,
        provider: Provider | None = None,
        base_url: str | None = None,
        binding: Binding | None = None,
    ) -> SecretInfo:
        """Add or replace a secret; running sandboxes use the new value from their next request on.

        `provider` is taken from the name where that is a provider's (`anthropic`, `github`). With `binding` it is of no
        provider, but goes to the hosts named there. Raises InvalidInput.
        """
        check_name(name, "secret name")
        if binding is not None:
            return await self._add_bound(tenant, name, value, provider, base_url, binding)
        provider = provider or _provider_named(name)
        if provider is Provider.HOST:
            raise InvalidInput(f"secret {name!r} is bound to no host", "name one: `--host api.example.com`")
        url = check_base_url(base_url) if base_url else _default_url(provider)
        info = await self._store.put_secret(
            OpenedSecret(tenant, name, provider, url, value), self._clock.now()
        )
        await self.publish()
        await self._store.audit(
            tenant, None, "secret.put", {"name": name, "provider": provider.value, "base_url": url}
        )
        return info

    async def rotate(self, tenant: TenantId, name: str, value: Secret) -> SecretInfo:
        """Replace a secret's value and nothing else. Raises NotFound."""
        (info,) = await self.named(tenant, (name,))
        if info.binding is not None:
            return await self.add(tenant, name, value, binding=info.binding)
        return await self.add(tenant, name, value, info.provider, info.base_url)

    async def _add_bound(
        self,
        tenant: TenantId,
        name: str,
        value: Secret,
        provider: Provider | None,
        base_url: str | None,
        binding: Binding,
    ) -> SecretInfo:
        if provider not in (None, Provider.HOST) or base_url is not None:
            raise InvalidInput(
                "a secret goes to a model API or to hosts, not to both", "leave --provider and --base-url out"
            )
        former = {info.name: info for info in await self._store.secrets(tenant)}.get(name)
        checked = complete_binding(name, value, binding, former.binding if former is not None else None)
        url = f"https://{checked.hosts[0]}"
        opened = OpenedSecret(tenant, name, Provider.HOST, url, value, checked)
        info = await self._store.put_secret(opened, self._clock.now())
        await self._publish_one(tenant, name)
        hosts = " ".join(checked.hosts)
        await self._store.audit(
            tenant, None, "secret.put", {"name": name, "hosts": hosts, "mode": checked.mode}
        )
        return info

    async def remove(self, tenant: TenantId, name: str) -> None:
        """Remove a secret; calls that use it are refused from now on. Raises NotFound."""
        await self._store.remove_secret(tenant, name)
        await self._publish_one(tenant, name)
        await self._store.audit(tenant, None, "secret.remove", {"name": name})

    async def named(self, tenant: TenantId, names: tuple[str, ...]) -> list[SecretInfo]:
        """These secrets. Raises NotFound for the first one that does not exist."""
        known = {info.name: info for info in await self._store.secrets(tenant)}
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

    def bound(self, tenant: TenantId, names: Iterable[str]) -> list[tuple[str, Binding]]:
        """Those of these secrets that go to hosts, as they were last published."""
        return [(name, found) for name in names if (found := self._bindings.get((tenant, name))) is not None]

    async def publish(self) -> None:
        """Hand all secrets and prices to the gateway."""
        opened = await self._store.open_secrets()
        self._bindings = {(one.tenant, one.name): one.binding for one in opened if one.binding is not None}
        await self._gateway.set_secrets(opened)
        await self._gateway.set_prices(await self._store.prices())

    async def list(self, tenant: TenantId) -> list[SecretInfo]:
        """What may be shown of a tenant's secrets."""
        return await self._store.secrets(tenant)


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
        await self._store.set_price(price)
        await self._gateway.set_prices(await self._store.prices())

    async def list(self) -> list[ModelPrice]:
        """All operator's prices."""
        return await self._store.prices()


def _default_url(provider: Provider) -> str:
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
