"""Shapes of what sandboxes are made from and use: templates, secrets, prices; and of the daemon itself."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from corral.errors import InvalidInput
from corral.model.binding import Absent, Mode, Place
from corral.model.budget import Scope, Window
from corral.model.capacity import Resource
from corral.model.lifecycle import State
from corral.model.sandbox import Isolation
from corral.model.secrets import MAX_SECRET, Provider, SecretForm
from corral.policy.money import MAX_CAP
from corral.protocol.base import Name, Ref, Reply, Request, TemplateName, Text, Time
from corral.protocol.sandboxes import Limits

MAX_PRICE = 10**12
MAX_ARCHIVE = 20 << 30
"""Bytes of an image's archive."""
Price = Annotated[int, Field(ge=0, le=MAX_PRICE)]


class TemplateMemory(Reply):
    """Saved processes: sandboxes go on from them under this runtime and these limits."""

    isolation: Isolation
    runtime: str
    size: int = Field(description="Bytes on disk.")


class TemplateOrigin(Reply):
    """What a checkpoint was made of, and by whom."""

    sandbox: str
    sandbox_id: str
    by: str
    redacted: list[str] = Field(default=[], description="What was overwritten in it: `path: what`.")


class TemplateInfo(Reply):
    """What sandboxes can start from."""

    id: str
    name: str
    layers: list[str] = Field(description="Digests, lowest first.")
    env: dict[str, str]
    user: str
    workdir: str
    sudo: bool
    start_command: list[str] = Field(default=[], description="Runs in each sandbox from its start.")
    ready_command: list[str] = Field(default=[], description="Succeeds once that is ready.")
    size: int = Field(description="Bytes over all layers; layers are shared between templates.")
    source: str = Field(description="What it was made from.")
    parent: str | None = None
    created_at: Time
    services: list[str] = Field(
        default=[], description="Names of what is started in each sandbox beside that."
    )
    memory: TemplateMemory | None = Field(
        default=None, description="The processes that every sandbox of it begins with; null for none."
    )
    origin: TemplateOrigin | None = Field(default=None, description="The sandbox that it is a checkpoint of.")
    models: list[str] = Field(default=["*"], description="Models that its sandboxes may use at most.")
    aliases: dict[str, str] = Field(default={}, description="Model asked for → model sent, in each of them.")
    limits: Limits | None = Field(
        default=None,
        description="Of its sandboxes, where nothing else is asked for; null: the host's defaults.",
    )


class TemplateList(Reply):
    """Templates, oldest first."""

    templates: list[TemplateInfo]


class BuildTemplate(Request):
    """What to build: the base, an OCI image (`image` and `name`), or an agent's template (`agent`)."""

    kind: Literal["base", "image", "agent"]
    name: TemplateName | None = Field(default=None, description="Of the template; for `image` only.")
    image: Text | None = Field(
        default=None, description="OCI reference.", examples=["registry.example.com/debian:12"]
    )
    agent: Name | None = Field(default=None, examples=["claude"])

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        given = {key for key in ("name", "image", "agent") if getattr(self, key) is not None}
        needed = {"base": set[str](), "image": {"name", "image"}, "agent": {"agent"}}[self.kind]
        if given != needed:
            wanted = " and ".join(f"`{key}`" for key in sorted(needed)) or "neither name, image nor agent"
            raise InvalidInput(
                f"the build of kind {self.kind!r} is not complete or says too much", f"give {wanted}"
            )
        return self


class Checkpoint(Request):
    """A template to make from a sandbox as it is now."""

    sandbox: Ref
    name: TemplateName
    redact: bool = Field(
        default=False,
        description="Overwrite secrets of the tenant's in the checkpoint; else one that would hold some is refused.",
    )
    memory: bool = Field(
        default=False,
        description="With its running processes, which go on in each sandbox made from it. gVisor only.",
    )


class _BindingFields(BaseModel):
    hosts: list[Text] = Field(
        max_length=64, description="Names, or `*.DOMAIN`.", examples=[["api.example.com"]]
    )
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(default=[443], max_length=16)
    places: list[Place] = Field(
        default=[Place.HEADER], description="Parts of a request in which the placeholder is replaced."
    )
    mode: Mode = Field(
        default=Mode.REPLACE,
        description="`replace` a placeholder, `set` a header field in each request, sign requests to `aws` again, or show "
        'servers a `certificate`: the value is `{"pem": …}`, the certificate with its issuers and key.',
    )
    absent: Absent = Field(
        default=Absent.PASS, description="What becomes of a request without a placeholder."
    )
    fields: list[Text] = Field(default=[], max_length=16, description="Header fields beyond the usual ones.")
    form: Text = Field(default="{}", description="Value of the header field that `set` writes.")
    parameters: list[Text] = Field(default=[], max_length=16, description="Of the query. Default: all.")
    methods: list[Text] = Field(default=[], max_length=16, description="For `set`. Default: all.")
    paths: list[Text] = Field(default=[], max_length=64, description="For `set`; at least one.")
    replaces: bool = Field(default=False, description="`set` takes the place of a field that is there.")
    plaintext: bool = Field(default=False, description="Also over unencrypted HTTP.")
    variable: Text = Field(default="", description="Holds the placeholder. Default: told from the name.")


class BindSecret(Request, _BindingFields):
    """The hosts that a secret goes to, and where in a request it may stand."""


class SecretBinding(Reply, _BindingFields):
    """The hosts that a secret goes to, and where in a request it may stand."""


class AddSecret(Request):
    """A credential for the vault. Its value is never shown again."""

    name: Name
    value: SecretStr = Field(max_length=MAX_SECRET)
    provider: Provider | None = Field(default=None, description="Default: told from the name.")
    base_url: Text | None = Field(default=None, description="Default: the provider's own.")
    binding: BindSecret | None = Field(
        default=None, description="In place of a provider: the hosts that get it."
    )
    form: SecretForm = Field(
        default=SecretForm.VALUE,
        description="What `value` is: the key; a `command` that prints it, as a JSON list of words; the auth.json of a "
        "`chatgpt` login, as JSON on one line; or the `app` (its id) and `key` (PEM) of a `github-app`, as JSON on one line.",
    )


class RotateSecret(Request):
    """Another value for a secret."""

    value: SecretStr | None = Field(
        default=None, max_length=MAX_SECRET, description="Default: what its command or login gives now."
    )


class SecretInfo(Reply):
    """What may be shown of a secret."""

    name: str
    provider: Provider
    base_url: str
    form: SecretForm
    problem: str = Field(default="", description="Why it cannot be used now; empty where it can.")
    created_at: Time
    updated_at: Time
    binding: SecretBinding | None = None


class SecretList(Reply):
    """Secrets of the tenant."""

    secrets: list[SecretInfo]


class _PriceFields(Request):
    secret: Name = Field(description="The secret whose endpoint it is for.")
    model: Text = Field(min_length=1, description="Model name, or `*` for all of the endpoint.")
    input: Price
    output: Price
    cache_read: Price
    cache_write: Price


class SetPrice(_PriceFields):
    """The operator's price of a model: millionths of a US dollar per million tokens."""


class PriceInfo(Reply):
    """A price that the operator gave: millionths of a US dollar per million tokens."""

    secret: str
    model: str
    input: int
    output: int
    cache_read: int
    cache_write: int


class PriceList(Reply):
    """Prices that the operator gave."""

    prices: list[PriceInfo]


_WINDOW = "`total`; `day`: a calendar day in UTC; `hour`, `24h`, `week`: up to now, at every moment."


class SetBudget(Request):
    """A cap on what model calls may cost, from the next call on."""

    cap: Annotated[int, Field(ge=0, le=MAX_CAP)] | Literal["default"] | None = Field(
        description="Millionths of a US dollar; null for no cap, `default` for the host's."
    )
    window: Window = Field(default=Window.TOTAL, description=_WINDOW)


class SetTenantBudget(Request):
    """A cap on what all calls of a tenant may cost together, from the next call on."""

    cap: Annotated[int, Field(ge=0, le=MAX_CAP)] | None = Field(
        description="Millionths of a US dollar; null for no cap."
    )
    window: Window = Field(default=Window.TOTAL, description=_WINDOW)
    tenant: Name | None = Field(default=None, description="Default: the caller's own.")


class BudgetAccount(Reply):
    """What a cap counts. All money in millionths of a US dollar."""

    scope: Scope
    window: Window
    cap: int | None = Field(description="Null for no cap.")
    default: bool = Field(description="The cap is the host's default.")
    spent: int
    reserved: int = Field(description="The most that calls under way can cost.")
    warning: int | None = Field(default=None, description="Percent of the cap that is spent: 50, 80 or 95.")
    resets_at: Time | None = Field(default=None, description="When the account of a day starts anew.")


class BudgetWarning(Reply):
    """Much of a budget is spent (event `budget`). Money in millionths of a US dollar."""

    scope: Scope
    window: Window
    sandbox: str = Field(description="Whose call it was that passed the mark.")
    name: str
    percent: int = Field(description="Of the cap: 50, 80 or 95.")
    cap: int
    spent: int
    at: Time


class Budget(Reply):
    """The accounts that count a call; it is made only if its worst case fits into all of them."""

    accounts: list[BudgetAccount]


class HostResource(Reply):
    """A resource of the host: memory and disk in bytes, CPUs in cores, the others in pieces."""

    resource: Resource
    total: float
    reserve: float = Field(description="Left to the host.")
    used: float = Field(description="By whatever runs on the host; CPUs and handles: not measured.")
    promised: float = Field(description="The sum of sandboxes' limits.")
    expected: float = Field(description="What sandboxes count as: what they use, or are expected to.")
    free: float | None = Field(description="What a new sandbox may take; null: not counted.")


class HostWaiting(Reply):
    """A create in the queue. Another tenant's has no name."""

    place: int = Field(description="1 is next.")
    name: str
    seconds: float
    reason: str


class HostSandbox(Reply):
    """What one of the tenant's sandboxes uses now."""

    name: str
    state: State
    memory: int = Field(description="Bytes.")
    disk: int = Field(description="Bytes.")
    pids: int
    idle: float = Field(description="Seconds since it was last used.")


class HostInfo(Reply):
    """What the host can carry and carries."""

    resources: list[HostResource]
    queue: list[HostWaiting]
    sandboxes: list[HostSandbox] = Field(description="The tenant's own.")


class CreateKey(Request):
    """A new key for the TCP interface."""

    label: Name = Field(description="To know it by.")


class ApiKey(Reply):
    """A new key; it is shown once."""

    label: str
    key: str


class ApiKeyInfo(Reply):
    """What may be shown of a key."""

    id: str = Field(description="Tells keys of one label apart.")
    label: str
    created_at: Time


class ApiKeyList(Reply):
    """Keys of the tenant, oldest first."""

    keys: list[ApiKeyInfo]


class SetConfig(Request):
    """A new value of a setting; some take a list."""

    value: Text | Annotated[list[Text], Field(max_length=1000)]


class Config(Reply):
    """Settings and their values."""

    values: dict[str, Any]


class Check(Reply):
    """A finding about the host. `hint` says what to do where something is amiss; further fields tell more."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = ""
    status: str = Field(default="", examples=["ok", "warn", "fail"])
    message: str = ""
    hint: str = ""
    fix_value: Any = Field(default=None, description="What a setting would have to be, where one would help.")


class Doctor(Reply):
    """Findings about the host."""

    checks: list[Check]


class Health(Reply):
    """The daemon can do its work."""

    status: Literal["ok"] = "ok"
    version: str
