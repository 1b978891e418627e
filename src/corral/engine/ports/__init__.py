"""What the engine needs of the world, and what it may assume of it.

Implementations raise only errors of `corral.errors`. All methods may be called concurrently unless said. "Idempotent"
means: calling again after success, or after a crash in the middle, succeeds and leaves the same result.
"""

from corral.engine.ports.driver import Driver, DriverStatus, Listener, Machine, Saved
from corral.engine.ports.gateway import (
    Attachment,
    BrokenSecret,
    Gateway,
    Inspector,
    Ledger,
    ModelPrice,
    OpenedSecret,
    OpenedSecrets,
    SecretSource,
)
from corral.engine.ports.guest import (
    Entry,
    EntryKind,
    GuestFiles,
    GuestLink,
    Watch,
    WatchEvent,
    WatchEventKind,
)
from corral.engine.ports.layers import ArchiveInfo, Archives, ImportedImage, Layers, Placing
from corral.engine.ports.store import Store, Tenant
from corral.engine.ports.volumes import VolumeDisk, VolumeFiles
from corral.engine.ports.world import Clock, Progress

__all__ = [
    "ArchiveInfo",
    "Archives",
    "Attachment",
    "BrokenSecret",
    "Clock",
    "Driver",
    "DriverStatus",
    "Entry",
    "EntryKind",
    "Gateway",
    "GuestFiles",
    "GuestLink",
    "ImportedImage",
    "Inspector",
    "Layers",
    "Ledger",
    "Listener",
    "Machine",
    "ModelPrice",
    "OpenedSecret",
    "OpenedSecrets",
    "Placing",
    "Progress",
    "Saved",
    "SecretSource",
    "Store",
    "Tenant",
    "VolumeDisk",
    "VolumeFiles",
    "Watch",
    "WatchEvent",
    "WatchEventKind",
]
