"""What sandboxes' tokens may be used for: shown, changed, renewed, revoked."""

import contextlib
import secrets as randomness
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from corral.engine.granted import told
from corral.engine.plan import checked_expiry
from corral.engine.ports import Clock, Gateway, Store
from corral.engine.registry import Registry
from corral.engine.vault import Secrets
from corral.errors import Conflict, NotFound
from corral.model.audit import AuditItem
from corral.model.grants import Grant, ModelRules
from corral.model.ids import GrantId, SandboxId, TenantId
from corral.model.sandbox import Sandbox
from corral.policy.models import checked_rules
from corral.policy.tokens import token_hash

OVERLAP = 600
"""Seconds that the former token is good after a renewal, so that running processes can go on."""


class Grants:
    """The grants of all sandboxes. Every change is durable before the gateway goes by it."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        registry: Registry,
        secrets: Secrets,
        clock: Clock,
        refresh: Callable[[Sandbox], Awaitable[None]],
        reopen: Callable[[SandboxId], Awaitable[None]],
    ) -> None:
        """`refresh` gives the processes that start from now on the variables of a changed grant; it raises Conflict for a
        sandbox that does not run. `reopen` lets a sandbox reach the hosts that its secrets go to now, and no others for
        them; it takes the sandbox's lock.
        """
        self._store = store
        self._gateway = gateway
        self._registry = registry
        self._secrets = secrets
        self._clock = clock
        self._refresh = refresh
        self._reopen = reopen

    async def list(self, tenant: TenantId) -> list[tuple[Sandbox, Grant]]:
        """Those of a tenant's sandboxes, oldest first."""
        grants = {grant.sandbox: grant for grant in await self._store.grants(tenant)}
        return [(box, grants[box.id]) for box in self._registry.of(tenant) if box.id in grants]

    async def show(self, tenant: TenantId, ref: str) -> tuple[Sandbox, Grant]:
        """A sandbox's. Raises NotFound."""
        sandbox = self._registry.find(tenant, ref)
        return sandbox, await self._store.grant_of(sandbox.id)

    async def change(
        self,
        tenant: TenantId,
        ref: str,
        *,
        secrets: Sequence[str] | None = None,
        models: ModelRules | None = None,
        expires: int | None = None,
        endless: bool = False,
    ) -> tuple[Sandbox, Grant]:
        """Change what a grant covers, from the next request on; calls that it no longer covers are cut.

        `expires` in seconds from now; `endless` takes an end away. What is None stays. Raises NotFound, InvalidInput.
        """
        checked_expiry(expires)
        if secrets is not None:
            await self._secrets.named(tenant, tuple(secrets))
        sandbox = self._registry.find(tenant, ref)
        async with self._registry.lock(sandbox.id):
            grant = await self._store.grant_of(sandbox.id)
            if secrets is not None:
                grant = replace(grant, secrets=tuple(sorted(set(secrets))))
            if models is not None:
                grant = replace(grant, models=replace(checked_rules(models), under=grant.models.under))
            if expires is not None or endless:
                grant = replace(grant, expires_at=self._end(None if endless else expires))
            await self._use(grant, "grant.change")
        if secrets is not None:
            await self._reopen(sandbox.id)
        return self._registry.find(tenant, sandbox.id), grant

    async def renew(
        self, tenant: TenantId, ref: str, *, expires: int | None = None, overlap: int = OVERLAP
    ) -> tuple[Sandbox, Grant]:
        """A new token, good at once for new processes, also where the grant was revoked or over (then the caller may
        give a new end; without one there is none). Running processes keep the former token, which is good for
        `overlap` more seconds unless it was dead.
        """
        checked_expiry(expires)
        sandbox = self._registry.find(tenant, ref)
        async with self._registry.lock(sandbox.id):
            old = await self._store.grant_of(sandbox.id)
            now = self._clock.now()
            alive = old.state(now) == "good" and overlap > 0
            keeps_end = alive and expires is None
            grant = replace(
                await self.fresh(old),
                expires_at=old.expires_at if keeps_end else self._end(expires),
                revoked_at=None,
                former_hash=old.token_hash if alive else "",
                former_until=now + timedelta(seconds=overlap) if alive else None,
            )
            await self._use(grant, "grant.renew")
        return sandbox, grant

    async def revoke(self, tenant: TenantId, ref: str, secrets: Sequence[str] = ()) -> tuple[Sandbox, Grant]:
        """Take some secrets out of a grant, or all that it covers; what is under way with it is cut within a second
        (G-333). Raises NotFound for a secret that it does not cover.
        """
        sandbox = self._registry.find(tenant, ref)
        async with self._registry.lock(sandbox.id):
            grant = await self._store.grant_of(sandbox.id)
            for name in secrets:
                if name not in grant.secrets:
                    raise NotFound(
                        f"the grant of {sandbox.spec.name} does not cover secret {name[:80]!r}",
                        f"see what it covers: `corral grant show {sandbox.spec.name}`",
                    )
            if secrets:
                grant = replace(grant, secrets=tuple(name for name in grant.secrets if name not in secrets))
            else:
                grant = replace(grant, revoked_at=self._clock.now(), former_hash="", former_until=None)
            await self._use(grant, "grant.revoke")
        if secrets:
            await self._reopen(sandbox.id)
        return self._registry.find(tenant, sandbox.id), grant

    async def fresh(self, grant: Grant) -> Grant:
        """The grant with a new token, not yet in the store (G-15)."""
        id = GrantId(randomness.token_hex(16))
        token = await self._store.derive_token(id)
        return replace(grant, id=id, token_hash=token_hash(token.reveal()), former_hash="", former_until=None)

    def _end(self, seconds: int | None) -> datetime | None:
        return None if seconds is None else self._clock.now() + timedelta(seconds=seconds)

    async def _use(self, grant: Grant, kind: str) -> None:
        record = AuditItem(grant.tenant, grant.sandbox, kind, told(grant))
        await self._store.set_grant(grant, record)
        if grant.secrets != self._registry.find(grant.tenant, grant.sandbox).spec.secrets:
            await self._registry.set_secrets(grant.sandbox, grant.secrets)
        await self._gateway.regrant(grant)
        sandbox = self._registry.get(grant.sandbox)
        if sandbox is not None:
            with contextlib.suppress(Conflict):
                await self._refresh(sandbox)
