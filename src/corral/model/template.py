"""What sandboxes start from."""

from dataclasses import dataclass, field
from datetime import datetime

from corral.model.ids import LayerDigest, TemplateId, TenantId


@dataclass(frozen=True, slots=True)
class TemplateConfig:
    """How a sandbox of the template is run. `sudo` lets its user become the sandbox's root.

    `start_command` is started in each sandbox; the sandbox is ready once `ready_command` succeeds.
    """

    env: dict[str, str] = field(default_factory=dict)
    user: str = "user"
    workdir: str = "/home/user"
    sudo: bool = True
    start_command: tuple[str, ...] = ()
    ready_command: tuple[str, ...] = ()


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
