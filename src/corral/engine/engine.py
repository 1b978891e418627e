"""The whole engine as one value: what the API serves."""

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from corral.engine.approvals import Approvals
from corral.engine.audit import AuditLog
from corral.engine.budgets import Budgets
from corral.engine.builds import Builds
from corral.engine.checkpoints import Checkpoints
from corral.engine.disk import Disk
from corral.engine.egress import Egress
from corral.engine.grants import Grants
from corral.engine.keys import ApiKeys
from corral.engine.learning import Learning
from corral.engine.models import Models
from corral.engine.pools import Pools
from corral.engine.ports import Driver, GuestFiles
from corral.engine.processes import Processes
from corral.engine.samples import Samples
from corral.engine.sandboxes import Sandboxes
from corral.engine.templates import Templates
from corral.engine.vault import Prices, Secrets
from corral.engine.volumes import Volumes
from corral.errors import Conflict
from corral.model.events import Event
from corral.model.ids import SandboxId, TenantId, VolumeId
from corral.model.lifecycle import State
from corral.model.process import ProcessInfo
from corral.model.sandbox import Sandbox
from corral.model.secrets import Secret
from corral.model.template import Template


class Agents(Protocol):
    """Starting coding agents in sandboxes that were created for them."""

    async def start(self, tenant: TenantId, ref: str, prompt: str | None, model: str | None) -> ProcessInfo:
        """Start the sandbox's agent: headless on `prompt`, or without one in a terminal that can be attached."""

    async def attach_command(self, tenant: TenantId, ref: str) -> tuple[str, ...]:
        """The command that shows the agent's terminal. Raises Conflict where none is open."""

    def names(self) -> tuple[str, ...]:
        """Agents that can be named."""


class Repositories(Protocol):
    """A sandbox's repository, seen from the host."""

    def diff(self, tenant: TenantId, ref: str) -> AsyncIterator[bytes]:
        """What changed since the sandbox got the repository, uncommitted and untracked files included."""

    async def open_pull_request(
        self,
        tenant: TenantId,
        ref: str,
        title: str | None,
        body: str | None,
        base: str | None,
        branch: str | None,
        draft: bool,
    ) -> dict[str, Any]:
        """Open a pull request for what a sandbox pushed, with the host's credential; where it is."""

    async def pull(self, tenant: TenantId, ref: str, target: str | None) -> dict[str, Any]:
        """Fetch the sandbox's commits into `refs/corral/` of the host's repository; what arrived."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Every use case. `doctor`, `denials`, `config_get` and `config_set` are the operator's. `sandbox_token` opens one
    sandbox's processes and files, and nothing else; `port_token` one of its ports, or (None) all those that E2B's clients
    share; they are the same as long as the sandbox lives. Who uses `follow_events` counts as somebody who may answer
    approvals."""

    sandboxes: Sandboxes
    processes: Processes
    templates: Templates
    checkpoints: Checkpoints
    disk: Disk
    pools: Pools
    volumes: Volumes
    builds: Builds
    secrets: Secrets
    prices: Prices
    models: Models
    budgets: Budgets
    approvals: Approvals
    grants: Grants
    audit: AuditLog
    egress: Egress
    learning: Learning
    agents: Agents
    repos: Repositories
    driver: Driver
    doctor: Callable[[bool], Awaitable[list[dict[str, Any]]]]
    recent_denials: Callable[[str], list[dict[str, Any]]]
    config_get: Callable[[], dict[str, Any]]
    config_set: Callable[[str, Any], Awaitable[None]]
    keys: ApiKeys
    sandbox_token: Callable[[SandboxId], Awaitable[Secret]]
    webhook_key: Callable[[], Awaitable[Secret]]
    volume_token: Callable[[VolumeId], Awaitable[Secret]]
    touch: Callable[[SandboxId], None]
    follow_events: Callable[[TenantId, int | None], AsyncGenerator[Event, None]]
    port_token: Callable[[SandboxId, int | None], Awaitable[Secret]]
    samples: Samples

    async def dial(self, sandbox: Sandbox, port: int) -> socket.socket | None:
        """A connection to a port of a running sandbox, the caller's; None where nothing listens."""
        if sandbox.state is not State.RUNNING:
            raise Conflict(
                f"sandbox {sandbox.spec.name} is {sandbox.state}", f"`corral start {sandbox.spec.name}`"
            )
        self.touch(sandbox.id)
        return await self.driver.dial(sandbox.spec, port)

    def saves_memory(self, sandbox: Sandbox) -> bool:
        """Whether its processes can be written to disk, and go on from there."""
        return self.driver.saves_memory(sandbox.spec.runtime)

    async def files_of(self, tenant: TenantId, ref: str) -> GuestFiles:
        """A sandbox's files. Raises NotFound, and Conflict while it is being made or removed."""
        sandbox = self.sandboxes.get(tenant, ref)
        if sandbox.state not in (State.RUNNING, State.PAUSED, State.STOPPED):
            hint = "resume it" if sandbox.state is State.SUSPENDED else "wait until it is running"
            raise Conflict(f"sandbox {sandbox.spec.name} is {sandbox.state}", hint)
        self.touch(sandbox.id)
        return self.driver.files(sandbox.spec)

    async def denials(self, tenant: TenantId, ref: str) -> list[dict[str, Any]]:
        """The last requests of a sandbox that were refused, newest last, and how each could be allowed."""
        return self.recent_denials(self.sandboxes.get(tenant, ref).id)

    async def checkpoint(
        self,
        tenant: TenantId,
        ref: str,
        name: str,
        *,
        memory: bool = False,
        redact: bool = False,
        by: str = "",
    ) -> Template:
        """A template of a sandbox as it is now; a running sandbox stands still for that moment."""
        return await self.checkpoints.make(tenant, ref, name, memory=memory, redact=redact, by=by)
