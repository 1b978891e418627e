"""Requests about what sandboxes start from, and the disk that it takes: templates, pools, volumes."""

from corral.model.sandbox import Isolation
from corral.protocol import catalog, pools, sandboxes
from corral.protocol import disk as disk_shapes
from corral.protocol import volumes as volume_shapes
from corral.sdk.operations import (
    Call,
    Content,
    Download,
    LongCall,
    OnProgress,
    Request,
    build,
    encode,
    parse,
    reply,
)
from corral.sdk.requests import EVENTS, Limits, done, get, given, post, url


def list_templates() -> Call[list[catalog.TemplateInfo]]:
    """The tenant's templates, oldest first."""
    return Call(get(url("templates")), lambda body: parse(catalog.TemplateList, body).templates)


def get_template(ref: str) -> Call[catalog.TemplateInfo]:
    """A template by name or id. Raises NotFound."""
    return Call(get(url("templates", ref)), reply(catalog.TemplateInfo))


def remove_template(ref: str) -> Call[None]:
    """No longer offer a template; sandboxes made from it go on."""
    return Call(post(url("templates", ref), method="DELETE", quick=False), done)


def build_template(
    kind: str = "base",
    *,
    name: str | None = None,
    image: str | None = None,
    agent: str | None = None,
    progress: OnProgress | None = None,
) -> LongCall[catalog.TemplateInfo]:
    """Build the base (`base`), import an OCI image (`image`, with `name` and `image`), or install an agent (`agent`)."""
    body = build(catalog.BuildTemplate, kind=kind, **given(name=name, image=image, agent=agent))
    request = Request("POST", url("templates", "build"), encode(body), json=True, accept=EVENTS)
    return LongCall(request, reply(catalog.TemplateInfo), progress)


def export_template(ref: str) -> Download:
    """A template as an OCI image archive: a tar that Corral, docker, podman and skopeo read."""
    return Download(Request("GET", url("templates", ref, "export"), accept="*/*", timeout=None))


def import_template(name: str, data: Content) -> Call[catalog.TemplateInfo]:
    """A template from an image's archive: an OCI layout as a tar, or what `docker save` writes."""
    request = Request("POST", url("templates", "import", name=name), data, timeout=None)
    return Call(request, reply(catalog.TemplateInfo))


def checkpoint(
    ref: str, name: str, *, memory: bool = False, redact: bool = False
) -> Call[catalog.TemplateInfo]:
    """A template of a sandbox as it is now: its files, and with `memory` its running processes (isolation gvisor).

    It is refused where it would hold a secret of the tenant's; with `redact`, that is overwritten in the checkpoint.
    """
    body = build(catalog.Checkpoint, sandbox=ref, name=name, memory=memory, redact=redact)
    return Call(post(url("templates", "checkpoint"), body, quick=False), reply(catalog.TemplateInfo))


def disk() -> Call[disk_shapes.DiskOverview]:
    """What the store holds, and what of the tenant's takes its disk: own, and shared with others."""
    return Call(get(url("disk")), reply(disk_shapes.DiskOverview))


def prune(
    *, keep: int | None = None, size: int | None = None, dry_run: bool = False
) -> Call[disk_shapes.Pruned]:
    """Remove what nothing needs, and checkpoints beyond `keep` of each project or `size` bytes, oldest first. Without
    both, the operator's bounds hold. `dry_run` only tells.
    """
    body = build(disk_shapes.Prune, dry_run=dry_run, **given(keep=keep, size=size))
    return Call(post(url("disk", "prune"), body, quick=False), reply(disk_shapes.Pruned))


def set_pool(
    template: str,
    size: int,
    *,
    isolation: Isolation | str | None = None,
    runtime: str | None = None,
    limits: Limits | None = None,
    idle: int | None = None,
) -> Call[pools.PoolInfo]:
    """Have `size` sandboxes of a template ready, which creates of the same template, isolation and limits take.

    `idle`: seconds without such a create after which they go; the next one brings them back.
    """
    wanted = given(
        isolation=isolation,
        runtime=runtime,
        limits=None if limits is None else build(sandboxes.LimitsRequest, **limits),
        idle=idle,
    )
    body = build(pools.SetPool, template=template, size=size, **wanted)
    return Call(post(url("pools"), body, "PUT", quick=False), reply(pools.PoolInfo))


def list_pools() -> Call[list[pools.PoolInfo]]:
    """The tenant's warm pools, and how they stand."""
    return Call(get(url("pools")), lambda body: parse(pools.PoolList, body).pools)


def remove_pool(template: str, isolation: Isolation | str | None = None) -> Call[None]:
    """End a template's pools, or the one of an isolation, and remove the sandboxes that wait in them."""
    return Call(post(url("pools", template, isolation=isolation), method="DELETE", quick=False), done)


def create_volume(name: str, size: int | None = None) -> Call[volume_shapes.VolumeInfo]:
    """An empty volume that can hold `size` bytes (default: 10 GiB), for sandboxes to mount."""
    body = build(volume_shapes.NewVolume, name=name, **given(size=size))
    return Call(post(url("volumes"), body), reply(volume_shapes.VolumeInfo))


def list_volumes() -> Call[list[volume_shapes.VolumeInfo]]:
    """The tenant's volumes, by name."""
    return Call(get(url("volumes")), lambda body: parse(volume_shapes.VolumeList, body).volumes)


def get_volume(ref: str) -> Call[volume_shapes.VolumeInfo]:
    """A volume, by name or id."""
    return Call(get(url("volumes", ref)), reply(volume_shapes.VolumeInfo))


def remove_volume(ref: str) -> Call[None]:
    """Remove a volume with all that is in it; refused while a sandbox mounts it."""
    return Call(post(url("volumes", ref), method="DELETE", quick=False), done)
