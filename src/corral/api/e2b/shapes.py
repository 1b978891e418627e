"""From the engine's values to shapes of the control plane."""

import json
import math
from datetime import datetime, timedelta

from corral.api.e2b.names import template_id
from corral.api.e2b.states import PAUSED_STATES, WITH_MEMORY
from corral.api.preview import access
from corral.engine.engine import Engine
from corral.model.lifecycle import State
from corral.model.sandbox import MIB, Expiry, Sandbox
from corral.protocol.e2b import sandboxes as wire
from corral.protocol.e2b.base import ENVD_VERSION

ALIAS = access.ALIAS_NOTE
AUTO_RESUME = "e2b.auto-resume"
INTERNET = "e2b.internet"
NETWORK = access.NETWORK_NOTE
TIMEOUT = "e2b.timeout"
PAUSE_FILES = "e2b.pause-files"
_NO_END = timedelta(days=365)


def is_of_e2b(sandbox: Sandbox) -> bool:
    """Whether a client of E2B made it."""
    return TIMEOUT in sandbox.spec.attributes


def state_of(sandbox: Sandbox) -> str:
    """The state as clients know it: a stopped sandbox is one that was paused without its memory."""
    return "paused" if sandbox.state in PAUSED_STATES else "running"


def started_at(sandbox: Sandbox) -> datetime:
    """When it last began to run; of a sandbox that does not run, when it was made."""
    return sandbox.changed_at if sandbox.state is State.RUNNING else sandbox.spec.created_at


def end_at(sandbox: Sandbox) -> datetime:
    """When it ends; of a paused one, when it was paused."""
    if state_of(sandbox) == "paused":
        return sandbox.changed_at
    return sandbox.spec.ends_at or sandbox.spec.created_at + _NO_END


def template_of(sandbox: Sandbox) -> str:
    """The id, as clients know it, of what it was made from."""
    alias = sandbox.spec.attributes.get(ALIAS)
    return template_id(sandbox.spec.tenant, alias) if alias else sandbox.spec.template


async def reply(engine: Engine, sandbox: Sandbox, domain: str | None) -> wire.SandboxReply:
    """What create and connect answer."""
    public = access.is_public(sandbox)
    return wire.SandboxReply(
        template_id=template_of(sandbox),
        sandbox_id=sandbox.id,
        envd_version=ENVD_VERSION,
        alias=sandbox.spec.attributes.get(ALIAS),
        envd_access_token=(await engine.sandbox_token(sandbox.id)).reveal(),
        traffic_access_token=None if public else (await engine.port_token(sandbox.id, None)).reveal(),
        domain=domain,
    )


def listed(sandbox: Sandbox) -> wire.ListedSandbox:
    """A sandbox in a list."""
    spec = sandbox.spec
    return wire.ListedSandbox(
        template_id=template_of(sandbox),
        sandbox_id=sandbox.id,
        started_at=started_at(sandbox),
        end_at=end_at(sandbox),
        cpu_count=math.ceil(spec.limits.cpus),
        memory_mb=spec.limits.memory // MIB,
        disk_size_mb=spec.limits.disk // MIB,
        state=state_of(sandbox),
        envd_version=ENVD_VERSION,
        alias=spec.attributes.get(ALIAS),
        metadata=spec.labels,
        volume_mounts=[wire.VolumeMount(name=one.name, path=one.path) for one in spec.volumes] or None,
    )


def noted_network(sandbox: Sandbox, changed: wire.NetworkUpdate) -> dict[str, str]:
    """What is noted of a sandbox's network once its egress has changed: that, and its ingress as it was."""
    former = wire.Network.model_validate_json(sandbox.spec.attributes.get(NETWORK, "{}"))
    ingress = {
        name: getattr(former, name) for name in ("allow_public_traffic", "mask_request_host", "https_ports")
    }
    network = changed.model_copy(update=ingress).to_dict()
    internet = network.pop("allow_internet_access", None)
    return {NETWORK: json.dumps(network), INTERNET: json.dumps(internet)}


async def detail(engine: Engine, sandbox: Sandbox, domain: str | None) -> wire.SandboxDetail:
    """All of a sandbox."""
    noted = sandbox.spec.attributes
    paused = dict.fromkeys(WITH_MEMORY, "full") | {State.STOPPED: "filesystem"}
    return wire.SandboxDetail(
        **listed(sandbox).model_dump(),
        envd_access_token=(await engine.sandbox_token(sandbox.id)).reveal(),
        allow_internet_access=json.loads(noted.get(INTERNET, "null")),
        network=json.loads(noted[NETWORK]) if NETWORK in noted else None,
        lifecycle=wire.Lifecycle(
            auto_resume=noted.get(AUTO_RESUME) == "true",
            on_timeout="kill" if sandbox.spec.expiry is Expiry.REMOVE else "pause",
        ),
        pause_mode=paused.get(sandbox.state),
        domain=domain,
    )
