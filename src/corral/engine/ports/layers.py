"""Layers of root filesystems, and what fills them."""

from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from corral.engine.ports.world import Progress
from corral.model.build import RegistryLogin
from corral.model.ids import LayerDigest, TenantId
from corral.model.template import Template, TemplateConfig
from corral.policy.building import Directory
from corral.policy.copying import Item, Placed


class Layers(Protocol):
    """The content-addressed store of layers, and the ways to fill it."""

    async def base(self, progress: Progress) -> tuple[LayerDigest, ...]:
        """Layers of the `base` image of this version of Corral, built where they are missing."""

    async def image(
        self, reference: str, progress: Progress, login: RegistryLogin | None = None
    ) -> "ImportedImage":
        """Layers and configuration of an OCI image pulled from a registry, opened by `login` or else by the logins of the
        host. Raises InvalidInput, UpstreamFailed."""

    def export(self, template: Template) -> AsyncIterator[bytes]:
        """A template as an OCI image archive, a tar. What fails, fails before the first bytes. Raises DiskFull,
        InvalidInput."""

    async def import_archive(self, data: AsyncIterator[bytes], progress: Progress) -> "ImportedImage":
        """Layers and configuration of an image's archive: an OCI layout, or what `docker save` writes. Raises InvalidInput,
        UpstreamFailed (it is damaged), TooLarge, Unsupported, DiskFull."""

    async def size(self, layer: LayerDigest) -> int:
        """Bytes of a layer."""

    async def flush(self) -> None:
        """On return all layers survive a power cut. Before, one that was just made may be gone after it, or be damaged."""

    async def known(self, key: str) -> LayerDigest | None:
        """The layer that was remembered by `key`, if the store still has it. It counts as used now."""

    async def remember(self, key: str, layer: LayerDigest) -> None:
        """Find `layer` by `key` (64 hexadecimal digits: the hash of what it is made from) from now on. It is kept for as
        long as the store keeps steps of builds, also where no template has it."""

    async def forget(self, keep: Set[LayerDigest]) -> int:
        """Forget all remembered layers but those in `keep`; how many. `prune` then removes them."""

    async def flatten(self, layers: Sequence[LayerDigest]) -> tuple[LayerDigest, ...]:
        """A shorter stack with the same tree. Takes as long as to look at all of it, and to copy what the layers that go
        hold. Raises Unsupported, DiskFull."""

    async def unused(self, keep: set[LayerDigest]) -> set[LayerDigest]:
        """What `prune` would remove, as long as no remembered layer grows too old."""

    async def prune(self, keep: set[LayerDigest]) -> int:
        """Remove layers that are neither in `keep` nor remembered; bytes freed."""


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """An archive that was uploaded. `size`: bytes of all its files; `skipped` entries that no image may hold."""

    id: str
    entries: int
    size: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Placing:
    """Where files go in an image. `target` is absolute; `directory`: a file goes below it by its name. `directories` are
    made before, where they are missing. `owner` is `user[:group]` of the image, empty for root. `mode` is set on all.
    `unpack`: archives among the files are unpacked below the target."""

    target: str
    directory: bool = False
    owner: str = ""
    mode: int | None = None
    unpack: bool = False
    directories: tuple[Directory, ...] = ()


class Archives(Protocol):
    """Contexts of builds: archives that a tenant uploaded, kept for a day after their last use. All of them are hostile,
    and so are the layers that they are copied into: nothing of either reaches the host.
    """

    async def save(self, tenant: TenantId, data: AsyncIterator[bytes]) -> ArchiveInfo:
        """Keep a tar archive (plain, gzip, zstd, bzip2, xz). Raises InvalidInput, TooLarge, DiskFull; then nothing is kept."""

    async def pack(
        self, tenant: TenantId, layers: Sequence[LayerDigest], sources: Sequence[str]
    ) -> ArchiveInfo:
        """What `sources` (clean paths, patterns) match in a stack of layers, lowest first, as an archive. Raises NotFound."""

    async def has(self, tenant: TenantId, archive: str) -> bool:
        """Whether it is there; it then stays for another day."""

    async def items(self, tenant: TenantId, archive: str) -> Mapping[str, Item]:
        """What an archive holds, by path. Raises NotFound, InvalidInput for what is no id."""

    async def place(
        self,
        tenant: TenantId,
        archive: str,
        placed: Sequence[Placed],
        below: Sequence[LayerDigest],
        placing: Placing,
    ) -> LayerDigest | None:
        """A layer on top of those `below` with files of an archive (none: empty `archive` and `placed`, for directories
        alone); None where nothing changed. Raises InvalidInput for an owner that the image lacks, Conflict, DiskFull."""


@dataclass(frozen=True, slots=True)
class ImportedImage:
    """An OCI image as layers, lowest first, and the parts of its configuration that Corral honours. `kept`: what one that was
    made from a template says of that besides."""

    layers: tuple[LayerDigest, ...]
    env: dict[str, str]
    user: str
    workdir: str
    digest: str
    kept: TemplateConfig | None = None
