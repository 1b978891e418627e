"""The gateway, and what it asks of the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from corral.engine.ports.driver import Listener
from corral.errors import CorralError
from corral.model.binding import Binding
from corral.model.budget import LedgerEntry, Outcome
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy, RepoGrant
from corral.model.grants import Grant, TenantModels
from corral.model.ids import SandboxId, TenantId
from corral.model.push import PushReport, PushToInspect
from corral.model.route import Route
from corral.model.secrets import Provider, Secret, SecretForm


@dataclass(frozen=True, slots=True)
class Attachment:
    """What the gateway must know of a sandbox before it answers it."""

    sandbox: SandboxId
    tenant: TenantId
    name: str
    grant: Grant
    egress: EgressPolicy
    seed: Secret
    """What the sandbox's placeholders are made of."""
    repos: tuple[RepoGrant, ...] = ()
    push: PushPolicy = field(default_factory=PushPolicy)
    route: Route = field(default_factory=Route)


@dataclass(frozen=True, slots=True)
class OpenedSecret:
    """A secret as the vault holds it (`value` is of its form) or, once presented, as the gateway needs it.

    `account` is what a subscription's API wants to be told beside the key.
    """

    tenant: TenantId
    name: str
    provider: Provider
    base_url: str
    value: Secret
    binding: Binding | None = None
    form: SecretForm = SecretForm.VALUE
    account: str = ""


@dataclass(frozen=True, slots=True)
class BrokenSecret:
    """A secret whose row was altered, and what to tell whoever wants it."""

    tenant: TenantId
    name: str
    error: CorralError


@dataclass(frozen=True, slots=True)
class OpenedSecrets:
    """All that the vault holds."""

    whole: tuple[OpenedSecret, ...] = ()
    broken: tuple[BrokenSecret, ...] = ()


class SecretSource(Protocol):
    """Where the key comes from, for a form of secret that does not hold it."""

    async def present(self, secret: OpenedSecret, *, anew: bool) -> OpenedSecret:
        """The secret with the key that is good now as its value. Quick where nothing changed; `anew` asks again.
        Raises CorralError where there is no key that is good.
        """


class Ledger(Protocol):
    """Where the gateway's calls are reserved and settled."""

    async def apply(self, entries: Sequence[LedgerEntry]) -> list[Outcome]:
        """All of them at once, in order. Raises CorralError if nothing was done."""

    async def abandon(self, holder: str, drawn: Mapping[int, int] | None) -> None:
        """A gateway process is gone, and all that it said was passed on: settle what it had under way. `drawn` is what it
        drew in all on its leases, None where that is not known."""


class Inspector(Protocol):
    """Reads pushes before they go upstream."""

    def spool(self) -> int:
        """A descriptor of a new file without a name, for a push; the caller closes it. Raises DiskFull."""

    async def inspect(self, tenant: TenantId, sandbox: SandboxId, push: PushToInspect, fd: int) -> PushReport:
        """What the pack in `fd` brings. Raises Forbidden for one that is not what it should be, other errors where it
        cannot be read now. A cancelled call leaves nothing."""


class Gateway(Protocol):
    """The unprivileged process that sandboxes talk to. Restarted by its owner; until it is back, sandboxes have no network."""

    async def attach(self, attachment: Attachment, listeners: Sequence[Listener] | None) -> None:
        """Serve a sandbox on these sockets, of which the gateway gets duplicates; replaces a former attachment, whose
        connections are cut. None: on the sockets of the former attachment; raises Conflict where there was none."""

    async def detach(self, sandbox: SandboxId) -> None:
        """Stop serving it and cut its open connections. Idempotent."""

    def ports(self, sandbox: SandboxId) -> frozenset[int]:
        """The ports on which a sandbox is served."""

    async def set_policy(
        self,
        sandbox: SandboxId,
        egress: EgressPolicy,
        listeners: Sequence[Listener],
        route: Route | None = None,
    ) -> None:
        """Change what an attached sandbox may reach, from its next request on, and serve it on further sockets. Its
        connections go on, but for those to what it may no longer reach; another route (None: the same) ends all of them.
        Nothing happens to one that is not attached."""

    async def regrant(self, grant: Grant) -> None:
        """Replace a sandbox's grant; what it no longer covers is cut within a second. Idempotent."""

    async def recall(self, sandbox: SandboxId | None) -> None:
        """Take back what is leased to a sandbox, or (None) to all: on return, each of their calls asks the ledger."""

    async def set_secrets(self, secrets: Sequence[OpenedSecret]) -> None:
        """Replace all secrets that the gateway holds; calls that use one which is gone are cut."""

    async def set_prices(self, prices: "Sequence[ModelPrice]") -> None:
        """Replace all operator's prices."""

    async def set_models(self, tenants: Sequence[TenantModels]) -> None:
        """Replace all tenants' rules for models."""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """Micro-US-dollars per million tokens, given by the operator for a model or (`*`) for a secret's whole endpoint."""

    secret: str
    model: str
    input: int
    output: int
    cache_read: int
    cache_write: int
