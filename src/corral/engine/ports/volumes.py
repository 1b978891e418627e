"""Where volumes are kept."""

from typing import Protocol

from corral.engine.ports.guest import Entry, GuestFiles
from corral.model.ids import VolumeId
from corral.model.volume import Volume


class VolumeFiles(GuestFiles, Protocol):
    """What a volume holds, with `/` as its root; ids are those of its tenant's sandboxes."""

    async def change(self, path: str, uid: int | None, gid: int | None, mode: int | None) -> Entry:
        """Set what is given of an entry itself (a symlink is not followed)."""


class VolumeDisk(Protocol):
    """Directories with limits. That a volume is mounted nowhere is for the caller to know. Raises DiskFull, HostError."""

    async def create(self, volume: Volume, uid_base: int) -> None:
        """An empty directory for a volume whose tenant's first host id is `uid_base`. On return it survives a power cut.
        Raises Unsupported where nothing would hold its limit."""

    async def remove(self, volume: VolumeId) -> None:
        """With all that is in it. Idempotent."""

    async def tidy(self) -> None:
        """Remove what a daemon that was killed has left of writes in volumes. Called before any of them is used."""

    async def known(self) -> set[VolumeId]:
        """All that have a directory."""

    async def usage(self, volume: VolumeId) -> int:
        """Bytes that count against its limit."""

    def files(self, volume: VolumeId, uid_base: int) -> VolumeFiles:
        """What it holds."""
