"""Shapes of sandboxes: creation, state, use."""

from typing import Annotated, Any

from pydantic import Field, SecretStr

from corral.model.git import Access
from corral.model.ids import NAME_PATTERN
from corral.model.lifecycle import State
from corral.model.route import MAX_RESOLVERS
from corral.model.sandbox import GIB, MIB, Isolation
from corral.model.volume import MAX_MOUNTS
from corral.policy.money import MAX_CAP
from corral.policy.push import MAX_RULES
from corral.policy.repos import MAX_REPOS
from corral.protocol.base import (
    MAX_PROMPT,
    Env,
    GuestPath,
    Labels,
    Name,
    Ref,
    Reply,
    Request,
    Text,
    Time,
    User,
)
from corral.protocol.grants import Aliases, Expiry, ModelPatterns

MAX_TTL = 365 * 24 * 3600
MAX_ALLOW = 256

IdleSeconds = Annotated[int, Field(ge=0, le=MAX_TTL)]
Seconds = Annotated[int, Field(ge=1, le=MAX_TTL)]
AllowedHost = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2048,
        examples=["example.org", "*.example.org:8443", "GET example.org/v1/**", "@npm"],
    ),
]
SecretUse = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        pattern=f"^{NAME_PATTERN}(=[A-Za-z_][A-Za-z0-9_]*)?$",
        examples=["github", "github=GH_TOKEN"],
    ),
]


RepoText = Annotated[
    str,
    Field(min_length=3, max_length=1024, examples=["github.com/owner/name", "github.com/owner/name:write"]),
]


PushRuleText = Annotated[
    str,
    Field(min_length=5, max_length=300, examples=["allow:feature/*", "deny:main", "ask:refs/tags/*:create"]),
]


VolumeText = Annotated[
    str,
    Field(min_length=3, max_length=4200, examples=["cache:/data", "models:/models:ro"]),
]


class LimitsRequest(Request):
    """Limits of a sandbox; what is left out takes the host's default."""

    memory: int | None = Field(default=None, ge=16 * MIB, le=4096 * GIB, description="Bytes.")
    cpus: float | None = Field(default=None, ge=0.01, le=1024, description="Cores.")
    pids: int | None = Field(default=None, ge=8, le=1_000_000, description="Processes and threads.")
    disk: int | None = Field(
        default=None, ge=16 * MIB, le=64 * 1024 * GIB, description="Bytes over the template."
    )
    io_weight: int | None = Field(default=None, ge=10, le=1000, description="Share of disk time.")


Script = Annotated[str, Field(min_length=1, max_length=16 * 1024)]
Argv = Annotated[list[Annotated[str, Field(max_length=16 * 1024)]], Field(min_length=1, max_length=1000)]


class SetupStep(Request):
    """A script that is run once in the repository."""

    run: Script
    files: list[Text] = Field(
        default_factory=list,
        max_length=50,
        description="Patterns of committed files that decide what it does; it is done again when one changes.",
    )
    user: User | None = None


class Setup(Request):
    """What is done once for a repository, and kept as the beginning of its sandboxes."""

    name: Name
    steps: list[SetupStep] = Field(min_length=1, max_length=50)
    allow: list[AllowedHost] = Field(
        default_factory=list, max_length=MAX_ALLOW, description="Hosts that the steps may reach."
    )
    serve_stale: bool = Field(
        default=False, description="Start from the former one while it is being done again."
    )


class ServiceRequest(Request):
    """A program that runs from each start of the sandbox on."""

    name: Name
    command: Argv
    ready: Argv | None = Field(
        default=None, description="Succeeds once it is ready; the create waits for it."
    )
    user: User | None = None
    cwd: GuestPath | None = None
    env: Env = Field(default_factory=dict)
    patience: float = Field(default=120.0, ge=1, le=3600, description="Seconds that it has to get ready.")


class CreateSandbox(Request):
    """What to make a sandbox from."""

    template: Ref | None = Field(default=None, description="Default: the agent's template, or `base`.")
    name: Name | None = Field(default=None, description="Default: a free one like `brave-otter`.")
    isolation: Isolation | None = Field(
        default=None, description="At least this strong. Default: the host's."
    )
    runtime: Text | None = Field(
        default=None, description="OCI runtime. Default: the preferred one of the isolation."
    )
    limits: LimitsRequest | None = None
    env: Env = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict)
    user: User | None = Field(default=None, description="Who runs commands by default.")
    workdir: GuestPath | None = Field(default=None, description="Where commands run by default.")
    timezone: Text | None = Field(
        default=None,
        description="Time zone of its commands, such as Europe/Berlin: TZ in their environment. Default: the template's.",
    )
    ttl: Seconds | None = Field(default=None, description="Seconds until it is removed. Default: no end.")
    allow: list[AllowedHost] = Field(
        default_factory=list,
        max_length=MAX_ALLOW,
        description="Hosts it may reach beyond the host's own list.",
    )
    deny: list[AllowedHost] = Field(
        default_factory=list,
        max_length=MAX_ALLOW,
        description="What it may not reach whatever allows it, written likewise.",
    )
    dns: list[Text] = Field(
        default_factory=list,
        max_length=MAX_RESOLVERS,
        description="Addresses of DNS servers by which the names that it may reach are looked up. Default: the host's.",
    )
    proxy: SecretStr | None = Field(
        default=None,
        max_length=2048,
        description="A SOCKS5 proxy for its connections: `socks5://[USER:PASSWORD@]HOST:PORT`, `socks5+tls:` for TLS to it.",
    )
    secrets: list[SecretUse] | None = Field(
        default=None,
        max_length=64,
        description="Secrets that it may use through the gateway, as NAME or NAME=VARIABLE. Default: what the agent needs.",
    )
    agent: Name | None = Field(
        default=None, description="The coding agent that it is for.", examples=["claude"]
    )
    repo: Text | None = Field(
        default=None,
        description="HTTPS URL to clone; over the unix socket also an absolute path on the host.",
    )
    branch: Text | None = Field(default=None, description="Branch to work on; `auto` for `corral/NAME`.")
    setup: Setup | None = Field(
        default=None, description="Done for the repository, a path on the host, where it was not done yet."
    )
    services: list[ServiceRequest] = Field(default_factory=list, max_length=32)
    git_repos: list[RepoText] = Field(
        default_factory=list,
        max_length=MAX_REPOS,
        description="Repositories that git in it may read, or push to, with the credential on the host.",
    )
    push_rules: list[PushRuleText] = Field(
        default_factory=list,
        max_length=MAX_RULES,
        description="What it may push, the first that matches; behind them the host's, and the defaults.",
    )
    budget: Annotated[int, Field(ge=0, le=MAX_CAP)] | None = Field(
        default=None,
        description="What its model calls may cost, in millionths of a US dollar. Default: the host's.",
    )
    budget_at_most: Annotated[int, Field(ge=0, le=MAX_CAP)] | None = Field(
        default=None, description="A cap that counts where it is below the one that holds anyway."
    )
    idle_pause: IdleSeconds | None = Field(
        default=None,
        description="Seconds without use after which it is paused; 0 for never. Default: the host's.",
    )
    idle_stop: IdleSeconds | None = Field(
        default=None,
        description="Seconds without use after which it is stopped; 0 for never. Default: the host's.",
    )
    volumes: list[VolumeText] = Field(
        default_factory=list, max_length=MAX_MOUNTS, description="Volumes to mount, as NAME:/path[:ro]."
    )
    queue: bool = Field(
        default=False, description="Wait for room on the host in a fair queue, rather than be refused."
    )
    queue_timeout: Seconds | None = Field(
        default=None, description="Seconds to wait at most. Default: no end."
    )
    models: ModelPatterns | None = Field(
        default=None, description="Models that it may use. Default: all that the host allows."
    )
    aliases: Aliases | None = Field(default=None, description="Model asked for → model sent.")
    expires: Expiry | None = Field(
        default=None, description="Seconds until its grant covers nothing any more. Default: no end."
    )


class Limits(Reply):
    """What a sandbox may use: bytes, cores, processes."""

    memory: int
    cpus: float
    pids: int
    disk: int
    io_weight: int


class HostRule(Reply):
    """One allowed destination."""

    host: str
    ports: list[int]


class GitRepo(Reply):
    """A repository that it may use."""

    name: str = Field(examples=["github.com/owner/name"])
    access: Access
    secret: str | None = Field(description="The credential that the gateway adds; null for none.")


class VolumeMount(Reply):
    """A volume that is mounted in it."""

    name: str
    path: str
    read_only: bool


class SandboxInfo(Reply):
    """A sandbox as it stands."""

    id: str = Field(description="16 hexadecimal digits, never reused.")
    name: str
    state: State
    reason: str = Field(default="", description="Why it is in this state, where that is not plain.")
    exit_code: int | None = None
    template: str = Field(description="Id of its template.")
    template_name: str = Field(
        default="", description="What that was called when it was made; a fork has that of the first one."
    )
    isolation: Isolation
    runtime: str
    limits: Limits
    env: dict[str, str]
    labels: dict[str, str]
    user: str
    workdir: str
    allow: list[HostRule]
    secrets: list[str]
    git_repos: list[GitRepo] = Field(default_factory=list)
    push_rules: list[str] = Field(default_factory=list, description="Before the defaults.")
    volumes: list[VolumeMount] = Field(default_factory=list)
    ttl: int | None = None
    agent: str | None = None
    repo: str | None = None
    branch: str | None = None
    idle_pause: int | None = Field(default=None, description="Its own idle policy, in seconds.")
    idle_stop: int | None = None
    created_at: Time
    changed_at: Time


class SandboxList(Reply):
    """Sandboxes, oldest first."""

    sandboxes: list[SandboxInfo]


class StopSandbox(Request):
    """How to stop."""

    grace: float = Field(default=10.0, ge=0, le=600, description="Seconds between TERM and KILL.")


class PauseSandbox(Request):
    """How to pause."""

    memory: bool = Field(
        default=False,
        description="Write its processes to disk and free its memory (state `suspended`). With isolation `gvisor` only.",
    )


class ForkSandbox(Request):
    """How many sandboxes to make of one."""

    count: int = Field(default=1, ge=1, le=100)
    name: Name | None = Field(
        default=None, description="They are called `NAME-1`, `NAME-2` … Default: the first's name."
    )
    ttl: Seconds | None = Field(
        default=None, description="Seconds until each is removed. Default: as the first's."
    )
    files_only: bool = Field(default=False, description="Leave its processes behind.")


class Forks(Reply):
    """New sandboxes that are what the first one was. Each has a name, network, token and limits of its own."""

    sandboxes: list[SandboxInfo]
    memory: bool = Field(
        description="Their processes go on where the first one's were; else they have its files only."
    )


class SetTtl(Request):
    """A new time to live."""

    ttl: Seconds | None = Field(description="Seconds from now; null for no end.")


class Stats(Reply):
    """What a sandbox uses now: bytes, CPU microseconds since start, processes, and kills for want of memory."""

    memory: int
    memory_peak: int
    cpu_usec: int
    pids: int
    disk: int
    oom_kills: int
    extra: dict[str, int] = Field(default_factory=dict)


class UsageTotal(Reply):
    """Model calls of one sandbox and model, summed. `cost` in millionths of a US dollar."""

    model: str
    calls: int
    input: int
    output: int
    cache_read: int
    cache_write: int
    cost: int
    assumed: bool = Field(description="Some price or count was not known and was taken at its dearest.")


class PortUrl(Reply):
    """The address of a port. `link` opens it in a browser, once and for all: it holds the token. Programs send the token in
    the header `header`. What the port serves comes from the sandbox."""

    url: str
    token: str
    link: str
    header: str


class UsageReport(Reply):
    """What a sandbox's model calls used and cost."""

    models: list[UsageTotal]
    cost: int = Field(description="Of all models, in millionths of a US dollar.")


class LifecycleEvent(Reply):
    """A sandbox entered a state (event `lifecycle`)."""

    sequence: int
    sandbox: str
    name: str
    state: str
    reason: str
    at: Time


class StartAgent(Request):
    """What the sandbox's agent is to do. Without a prompt it waits in its terminal (`corral attach`)."""

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)] | None = None
    model: Text | None = Field(default=None, description="Model name as the agent spells it.")


class AgentTerminal(Reply):
    """How to see the agent at work."""

    argv: list[str]


class AgentList(Reply):
    """Agents that can be named in `agent`."""

    agents: list[str]


class OpenPullRequest(Request):
    """A pull request to open at the forge, for what the sandbox pushed."""

    title: Text | None = Field(default=None, description="Default: that of its last commit.")
    body: str | None = Field(default=None, max_length=60_000)
    base: Text | None = Field(
        default=None, description="Branch to go into. Default: the forge's default branch."
    )
    branch: Text | None = Field(
        default=None, description="Branch that was pushed. Default: what is checked out."
    )
    draft: bool = False


class OpenedPullRequest(Reply):
    """A pull request that is open."""

    repository: str
    url: str
    number: int
    existed: bool = Field(description="Whether it was open before.")


class PullRequest(Request):
    """Where to fetch the sandbox's commits to."""

    target: Text | None = Field(
        default=None, description="A clone on the daemon's host. Default: where `repo` came from."
    )


class Denials(Reply):
    """What a sandbox was refused, newest last. All text in it comes from the sandbox."""

    denials: list[dict[str, Any]]


class Pulled(Reply):
    """What was fetched from a sandbox's repository."""

    result: dict[str, Any]
