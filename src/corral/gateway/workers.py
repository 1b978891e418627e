"""Several gateway processes as one gateway.

Each sandbox is served by one of them, from its attachment on, so that what is counted by sandbox is counted in one place;
all of them hold the secrets, prices and settings. What is counted by tenant is the ledger's. One that ends takes only its
own sandboxes' connections with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Unpack

from corral.engine.ports import Attachment, Listener, ModelPrice, OpenedSecret
from corral.errors import CorralError
from corral.gateway.client import GatewayClient, Settings
from corral.model.egress import EgressPolicy
from corral.model.grants import Grant, TenantModels
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route
from corral.model.secrets import Secret
from corral.wire.forges import ForgeAnswer, ForgeCall


class GatewayWorkers:
    """`ports.Gateway` over one client or more, which whoever made them enters, connects and leaves."""

    def __init__(self, clients: Sequence[GatewayClient]) -> None:
        self._clients = clients
        self._of: dict[SandboxId, GatewayClient] = {}

    async def attach(self, attachment: Attachment, listeners: Sequence[Listener] | None) -> None:
        """See `ports.Gateway`. A new sandbox goes to the process that serves the fewest."""
        sandbox = attachment.sandbox
        former = self._of.get(sandbox)
        client = self._of[sandbox] = former or min(self._clients, key=lambda one: (not one.is_up, one.load))
        try:
            await client.attach(attachment, listeners)
        except BaseException:
            if former is None:
                self._of.pop(sandbox, None)
            raise

    async def detach(self, sandbox: SandboxId) -> None:
        """See `ports.Gateway`."""
        client = self._of.get(sandbox)
        if client is not None:
            await client.detach(sandbox)
            self._of.pop(sandbox, None)

    def ports(self, sandbox: SandboxId) -> frozenset[int]:
        """See `ports.Gateway`."""
        client = self._of.get(sandbox)
        return frozenset() if client is None else client.ports(sandbox)

    async def set_policy(
        self,
        sandbox: SandboxId,
        egress: EgressPolicy,
        listeners: Sequence[Listener],
        route: Route | None = None,
    ) -> None:
        """See `ports.Gateway`."""
        client = self._of.get(sandbox)
        if client is not None:
            await client.set_policy(sandbox, egress, listeners, route)

    async def regrant(self, grant: Grant) -> None:
        """See `ports.Gateway`."""
        client = self._of.get(grant.sandbox)
        if client is not None:
            await client.regrant(grant)

    async def recall(self, sandbox: SandboxId | None) -> None:
        """See `ports.Gateway`."""
        await self._all(lambda client: client.recall(sandbox))

    async def set_secrets(self, secrets: Sequence[OpenedSecret]) -> None:
        """See `ports.Gateway`."""
        await self._all(lambda client: client.set_secrets(secrets))

    async def set_prices(self, prices: Sequence[ModelPrice]) -> None:
        """See `ports.Gateway`."""
        await self._all(lambda client: client.set_prices(prices))

    async def set_models(self, tenants: Sequence[TenantModels]) -> None:
        """See `ports.Gateway`."""
        await self._all(lambda client: client.set_models(tenants))

    async def set_config(self, **settings: Unpack[Settings]) -> None:
        """As `GatewayClient.set_config`."""
        await self._all(lambda client: client.set_config(**settings))

    async def set_authority(self, certificate: str, key: Secret) -> None:
        """As `GatewayClient.set_authority`."""
        await self._all(lambda client: client.set_authority(certificate, key))

    async def call_forge(self, tenant: TenantId, secret: str, call: ForgeCall) -> ForgeAnswer:
        """As `GatewayClient.call_forge`, by any process that is up."""
        client = min(self._clients, key=lambda one: not one.is_up)
        return await client.call_forge(tenant, secret, call)

    async def _all(self, tell: Callable[[GatewayClient], Awaitable[None]]) -> None:
        """Tell each; one that does not answer keeps none from being told. Raises the first failure."""
        failures: list[CorralError] = []

        async def one(client: GatewayClient) -> None:
            try:
                await tell(client)
            except CorralError as error:
                failures.append(error)

        async with asyncio.TaskGroup() as tasks:
            for client in self._clients:
                tasks.create_task(one(client), name="gateway settings")
        if failures:
            raise failures[0]
