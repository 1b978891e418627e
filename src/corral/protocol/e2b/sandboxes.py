"""Shapes of the control plane. Names of fields on the wire are camel case; sizes named MB are MiB."""

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, StringConstraints
from pydantic.alias_generators import to_camel

from corral.protocol.e2b.base import Wire as BaseWire


def _number(value: Any) -> Any:
    """Itself: a text or a truth value is no number, whatever it could be read as."""
    if isinstance(value, str | bool):
        raise ValueError("a number is needed")
    return value


Int32 = Annotated[int, BeforeValidator(_number), Field(ge=-(2**31), le=2**31 - 1)]
Text = Annotated[str, StringConstraints(max_length=4096)]


def wire_name(field: str) -> str:
    """A field's name on the wire, where ids and sizes end in capitals."""
    return re.sub("(Id|Mb)$", lambda found: found[0].upper(), to_camel(field))


class Wire(BaseWire):
    """A message of the control plane."""

    model_config = ConfigDict(alias_generator=wire_name)


class AutoResume(Wire):
    """Whether traffic wakes a paused sandbox."""

    enabled: bool = False


class Transform(Wire):
    """Header fields to be set. Their values are written out for nobody, like all that is a SecretStr."""

    model_config = ConfigDict(extra="forbid")

    headers: dict[str, SecretStr] = Field(default_factory=dict)


class Rule(Wire):
    """What is done to requests to a host. What is not known is refused: no rule is dropped in silence."""

    model_config = ConfigDict(extra="forbid")

    transform: Transform | None = None


class ProxyTls(Wire):
    """TLS to a proxy."""

    enabled: bool
    server_name: Text | None = None
    ca_cert: Annotated[str, StringConstraints(max_length=64 * 1024)] | None = Field(
        default=None, exclude=True
    )


class Proxy(Wire):
    """A SOCKS5 proxy. Its password and its certificates are written out for nobody."""

    address: Text
    username: Text | None = None
    password: SecretStr | None = Field(default=None, exclude=True)
    tls: ProxyTls | None = None


class Network(Wire):
    """What a sandbox may reach, and who may reach it."""

    allow_public_traffic: bool | None = None
    allow_out: list[Text] | None = None
    deny_out: list[Text] | None = None
    dns_servers: list[Text] | None = None
    egress_proxy: Proxy | None = None
    mask_request_host: Text | None = None
    https_ports: list[int] | None = None
    rules: dict[str, list[Rule]] | None = None


class NetworkUpdate(Network):
    """A replacement of a sandbox's egress settings."""

    allow_internet_access: bool | None = Field(default=None, alias="allow_internet_access")


class VolumeMount(Wire):
    """A volume, by its name, at a path."""

    name: Text
    path: Text


class NewSandbox(Wire):
    """A request for a sandbox, of both versions of the call."""

    template_id: Annotated[str, StringConstraints(max_length=512)]
    timeout: Int32 | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: AutoResume | None = None
    allow_internet_access: bool | None = Field(default=None, alias="allow_internet_access")
    network: Network | None = None
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    secure: bool | None = None
    mcp: Any = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[VolumeMount] | None = None


class Connect(Wire):
    """A request to have a sandbox running for at least `timeout` seconds."""

    timeout: Int32 | None = None
    memory: bool | None = None


class Resume(Connect):
    """The same of old clients, which may also say whether it is paused at its next end."""

    timeout: Int32 = 15
    auto_pause: bool | None = None


class Timeout(Wire):
    """Seconds from now."""

    timeout: Int32


class Refresh(Wire):
    """Seconds from now, at least."""

    duration: Annotated[Int32, Field(ge=0, le=3600)] | None = None


class Pause(Wire):
    """How to pause."""

    memory: bool = True
    require_healthy_guest: bool = False


class Fork(Wire):
    """How many children, and how long they live."""

    timeout: Int32 = 15
    count: Annotated[Int32, Field(ge=1, le=100)] = 1


class Snapshot(Wire):
    """A name for a snapshot."""

    name: Text | None = None
    memory: bool | None = None


class SandboxReply(Wire):
    """What a client needs to use a sandbox."""

    template_id: str
    sandbox_id: str
    client_id: str = "corral"
    envd_version: str
    alias: str | None = None
    envd_access_token: str | None = None
    traffic_access_token: str | None = None
    domain: str | None = None


class ListedSandbox(Wire):
    """A sandbox in a list."""

    template_id: str
    sandbox_id: str
    client_id: str = "corral"
    started_at: datetime
    end_at: datetime
    cpu_count: int
    memory_mb: int
    disk_size_mb: int
    state: str
    envd_version: str
    alias: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    volume_mounts: list[VolumeMount] | None = None


class Lifecycle(Wire):
    """What ends and what wakes a sandbox."""

    auto_resume: bool
    on_timeout: str


class SandboxDetail(ListedSandbox):
    """All that is known of a sandbox."""

    envd_access_token: str | None = None
    allow_internet_access: bool | None = None
    network: dict[str, Any] | None = None
    lifecycle: Lifecycle
    pause_mode: str | None = None
    domain: str | None = None


class Metric(Wire):
    """What a sandbox uses: bytes, and per cent of its processors."""

    timestamp: datetime
    timestamp_unix: int
    cpu_count: int
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int


class LogEntry(Wire):
    """A line of a sandbox's log."""

    timestamp: datetime
    message: str
    level: str
    fields: dict[str, str]


class SnapshotInfo(Wire):
    """A snapshot, which is a template."""

    snapshot_id: str
    names: list[str]
