"""What sandboxes start from."""

from dataclasses import dataclass, field
from datetime import datetime

from corral.model.grants import ModelRules
from corral.model.ids import ImageId, LayerDigest, SandboxId, TemplateId, TenantId
from corral.model.sandbox import Isolation, Limits
from corral.model.service import Service


@dataclass(frozen=True, slots=True)
class TemplateConfig:
    """How a sandbox of the template is run. `sudo` lets its user become the sandbox's root.

    `start_command` is started in each sandbox; the sandbox is ready once `ready_command` succeeds, within `ready_seconds`
    where that is given. `services` are started after it. `limits` are those of its sandboxes where nothing else is asked
    for; None: the host's defaults. `models` hold for each of its sandboxes beside the sandbox's own; None: all models.
    """

    env: dict[str, str] = field(default_factory=dict)
    user: str = "user"
    workdir: str = "/home/user"
    sudo: bool = True
    start_command: tuple[str, ...] = ()
    ready_command: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()
    limits: Limits | None = None
    models: ModelRules | None = None
    ready_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MachineState:
    """What runs in every sandbox of a template from its first moment on: an image of a sandbox's memory, of `size` bytes,
    which goes on under the same runtime and limits only. `services` run in it already.
    """

    image: ImageId
    isolation: Isolation
    runtime: str
    limits: Limits
    size: int
    services: tuple[Service, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """What a checkpoint was made from: the sandbox's name and id, by whom (empty: the daemon itself), and what was taken
    out of it, as `path: what`, and the repository that the sandbox worked on (empty: none)."""

    sandbox: str
    sandbox_id: SandboxId
    by: str = ""
    redacted: tuple[str, ...] = ()
    project: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """That a name was given to a template: what it stood for from `at` on. `build` is the same for all templates that hold the
    same (`engine.fingerprint`), the first of which was made at `built_at`."""

    template: TemplateId
    name: str
    build: str
    built_at: datetime
    at: datetime


@dataclass(frozen=True, slots=True)
class Template:
    """Ordered read-only layers, lowest first, and a configuration. `size` in bytes over all layers."""

    id: TemplateId
    tenant: TenantId
    name: str
    layers: tuple[LayerDigest, ...]
    config: TemplateConfig
    size: int
    created_at: datetime
    source: str = ""
    parent: TemplateId | None = None
    memory: MachineState | None = None
    origin: Origin | None = None
