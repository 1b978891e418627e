"""What the engine and its gateway say to each other. `frames` has the form in which it travels.

The link is one stream socket. Listening sockets travel beside an `Attach` (SCM_RIGHTS), in the order of its `listeners`. The engine
numbers its calls and the gateway answers each with `Done` or `Failed`.

The gateway numbers model calls: it asks with `Reserve` before it makes one, and ends it with a `UsageRecord`, which the engine
acknowledges once it is in the ledger, or with `Release` if it was never made. What a `Leased` adds to a sandbox's lease covers
further calls: they begin with a `Reserve` that says `drawn`, which nothing answers, until the gateway says `Return`, by itself or
after a `Recall`.

It numbers questions to a person too: `Ask`, which the engine meets with `Asked` once it is recorded and with `Answered` at its
end; `Withdraw` when nobody waits for the answer any more. And it numbers pushes: `OpenSpool` for a file that holds one, `Inspect`
to have it read, `CloseSpool` at its end.
"""

from dataclasses import dataclass
from datetime import datetime

from corral.model.approval import Answer, Question
from corral.model.binding import Binding
from corral.model.budget import RateRefusal, Refusal
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy, RepoGrant
from corral.model.grants import ModelRules, TenantModels
from corral.model.ids import SandboxId, TenantId
from corral.model.push import PushReport, PushToInspect
from corral.model.route import Route
from corral.model.secrets import Provider, Secret, SecretForm
from corral.model.usage import Usage
from corral.wire.forges import ForgeAnswer, ForgeCall

MAX_FRAME = 32 * 1024 * 1024
MAX_GATEWAY_FRAME = 256 * 1024
"""What the engine accepts of a gateway."""
MAX_LISTENERS = 128
"""Sockets per sandbox: fewer than one message can carry (253)."""
VERSION = 9


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """A socket that travels with the frame: what it serves (`ListenerKind`) and its port."""

    kind: str
    port: int


@dataclass(frozen=True, slots=True)
class GrantSpec:
    """What a sandbox's token may be used for; see `Grant`. `revoked`: for nothing."""

    token_hash: str
    secrets: tuple[str, ...]
    models: ModelRules
    expires_at: datetime | None = None
    former_hash: str = ""
    former_until: datetime | None = None
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Serve a sandbox. `seq` is answered."""

    seq: int
    sandbox: SandboxId
    tenant: TenantId
    name: str
    grant: GrantSpec
    egress: EgressPolicy
    seed: Secret
    repos: tuple[RepoGrant, ...]
    push: PushPolicy
    route: Route
    listeners: tuple[ListenerSpec, ...]


@dataclass(frozen=True, slots=True)
class Detach:
    """Stop serving a sandbox, if it is served, and cut its connections."""

    seq: int
    sandbox: SandboxId


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Change what a served sandbox may reach, and serve it on further sockets. What it has open and may keep stays, unless
    the route is another one.
    """

    seq: int
    sandbox: SandboxId
    egress: EgressPolicy
    route: Route
    listeners: tuple[ListenerSpec, ...]


@dataclass(frozen=True, slots=True)
class Regrant:
    """Replace the grant of a sandbox, if it is served, and cut what the new one does not cover."""

    seq: int
    sandbox: SandboxId
    grant: GrantSpec


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """A secret, opened. Its value is on the wire in clear: the link never leaves the host. `account` is what a
    subscription's API wants to be told beside it.
    """

    tenant: TenantId
    name: str
    provider: Provider
    base_url: str
    value: Secret
    binding: Binding | None = None
    account: str = ""
    form: SecretForm = SecretForm.VALUE


@dataclass(frozen=True, slots=True)
class SetSecrets:
    """Replace all secrets."""

    seq: int
    secrets: tuple[SecretSpec, ...]


@dataclass(frozen=True, slots=True)
class PriceSpec:
    """Micro-US-dollars per million tokens of a secret's model, or of all its models (`*`)."""

    secret: str
    model: str
    input: int
    output: int
    cache_read: int
    cache_write: int


@dataclass(frozen=True, slots=True)
class SetPrices:
    """Replace all prices of the operator."""

    seq: int
    prices: tuple[PriceSpec, ...]


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Replace the operator's configuration: `networks` are private ranges open to every sandbox's allowed
    names; `bypass` are hosts whose TLS is never ended here;
    `model_calls` is how many calls of one sandbox may be under way; `output` the limit in tokens of a call
    that sets none; `asking` is whose model calls wait while a person is asked for more money: `*`, `TENANT` or
    `TENANT/SANDBOX`; `models` hold for all sandboxes beside their own.
    """

    seq: int
    networks: tuple[str, ...]
    bypass: tuple[str, ...]
    model_calls: int
    output: int
    asking: tuple[str, ...]
    models: ModelRules


@dataclass(frozen=True, slots=True)
class SetModels:
    """Replace all tenants' rules for models. A tenant that is left out has none."""

    seq: int
    tenants: tuple[TenantModels, ...]


@dataclass(frozen=True, slots=True)
class SetAuthority:
    """Replace the certificate authority by which the gateway ends TLS: its certificate and its key, both in PEM."""

    seq: int
    certificate: str
    key: Secret


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a sign of life."""

    seq: int


@dataclass(frozen=True, slots=True)
class UsageAck:
    """The record with this number is in the ledger."""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The gateway's first message."""

    version: int


@dataclass(frozen=True, slots=True)
class Done:
    """A call has taken effect."""

    seq: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A call changed nothing; `code` is that of an error of `corral.errors`."""

    seq: int
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Recall:
    """Give back what is leased to a sandbox, or (None) to all."""

    seq: int
    sandbox: SandboxId | None


@dataclass(frozen=True, slots=True)
class SetJournal:
    """The file whose descriptor comes with this is the journal of what is drawn on leases. Without one there are none."""

    seq: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """May a call be made that costs at most `amount`? Answered by `Reserved`, `Refused` or `Unreserved`.

    `lease` is the number of the lease that may be given for the next ones, 0 for none. A `drawn` one is covered by it, and
    not answered.
    """

    number: int
    sandbox: SandboxId
    amount: int
    secret: str
    provider: str
    model: str
    path: str
    lease: int = 0
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class Leased:
    """So much more may be drawn on a lease."""

    lease: int
    added: int


@dataclass(frozen=True, slots=True)
class Return:
    """Nothing will be drawn on a lease any more."""

    lease: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """It is set aside: make the call."""

    number: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A budget does not cover it."""

    number: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Limited:
    """It is one too many now."""

    number: int
    refusal: RateRefusal


@dataclass(frozen=True, slots=True)
class Unreserved:
    """It could not be set aside, for a fault of this host."""

    number: int
    message: str


@dataclass(frozen=True, slots=True)
class Release:
    """The call was never made."""

    number: int


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """A call that was reserved under the number is over. Kept by the gateway until acknowledged."""

    number: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Ask:
    """Put a question of a sandbox to a person. Answered by `Asked` where one has to be waited for, then by `Answered`."""

    number: int
    sandbox: SandboxId
    question: Question


@dataclass(frozen=True, slots=True)
class Asked:
    """The question is recorded, and told to those who listen. It is a no after `seconds`."""

    number: int
    approval: str
    seconds: int
    listeners: int


@dataclass(frozen=True, slots=True)
class Answered:
    """How the question ended; what a yes allows has taken effect."""

    number: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nobody waits for the answer any more."""

    number: int


@dataclass(frozen=True, slots=True)
class CallForge:
    """Call a forge's API with a secret, for a person on the host. Answered by `Forged` or `Failed`."""

    seq: int
    tenant: TenantId
    secret: str
    call: ForgeCall


@dataclass(frozen=True, slots=True)
class Forged:
    """What the forge answered."""

    seq: int
    answer: ForgeAnswer


@dataclass(frozen=True, slots=True)
class OpenSpool:
    """A file is wanted that holds a push. Answered by `Spool`, with its descriptor, or by `PushFailed`."""

    number: int
    sandbox: SandboxId


@dataclass(frozen=True, slots=True)
class Spool:
    """The descriptor that comes with this is the file."""

    number: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """Read the pack in the file of this number. Answered by `Inspected` or `PushFailed`."""

    number: int
    push: PushToInspect


@dataclass(frozen=True, slots=True)
class Inspected:
    """What it brings."""

    number: int
    report: PushReport


@dataclass(frozen=True, slots=True)
class PushFailed:
    """No file, or no report; `code` is that of an error of `corral.errors`."""

    number: int
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class CloseSpool:
    """The file is not needed any more, and nobody waits for a report."""

    number: int


@dataclass(frozen=True, slots=True)
class Flush:
    """All audit records that were sent before this are wanted where they survive a power cut. Answered by `Flushed`, then."""

    number: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """They are there."""

    number: int


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A decision. Never holds a secret, a token, a header's or a query's value.

    `kind` is the service: dns, tls, http, llm, git. `suppressed` counts records of the sandbox that were left out
    since the last one because they were too many. `refs`: those of a push, with their ids before and after. Bytes are those
    that the sandbox sent and received, as far as they are counted; `provider_request_id` is the model API's own.
    """

    at: datetime
    tenant: TenantId
    sandbox: SandboxId
    kind: str
    decision: str
    host: str = ""
    port: int = 0
    method: str = ""
    path: str = ""
    rule: str = ""
    reason: str = ""
    secret: str = ""
    status: int = 0
    suppressed: int = 0
    refs: str = ""
    request_id: str = ""
    bytes_sent: int = 0
    bytes_received: int = 0
    duration_ms: int = 0
    provider_request_id: str = ""

    def detail(self) -> dict[str, str]:
        """The record's own fields as text, empty ones left out, as the audit log takes them."""
        own = (
            "decision",
            "host",
            "port",
            "method",
            "path",
            "rule",
            "reason",
            "secret",
            "status",
            "suppressed",
            "refs",
            "request_id",
            "bytes_sent",
            "bytes_received",
            "duration_ms",
            "provider_request_id",
        )
        return {name: str(value) for name in own if (value := getattr(self, name))}


Order = (
    Attach
    | Detach
    | SetPolicy
    | Regrant
    | SetSecrets
    | SetPrices
    | SetConfig
    | SetModels
    | SetAuthority
    | SetJournal
    | Recall
    | Ping
)
"""The engine's calls that are answered by `Done` or `Failed`."""

Message = (
    Order
    | UsageAck
    | Ready
    | Done
    | Failed
    | Reserve
    | Reserved
    | Refused
    | Limited
    | Unreserved
    | Release
    | Leased
    | Return
    | UsageRecord
    | Ask
    | Asked
    | Answered
    | Withdraw
    | CallForge
    | Forged
    | OpenSpool
    | Spool
    | Inspect
    | Inspected
    | PushFailed
    | CloseSpool
    | AuditRecord
    | Flush
    | Flushed
)
