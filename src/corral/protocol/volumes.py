"""Shapes of volumes."""

from pydantic import Field

from corral.model.volume import DEFAULT_SIZE, MAX_SIZE, MIN_SIZE, VOLUME_PATTERN
from corral.protocol.base import Reply, Request, Time


class NewVolume(Request):
    """A volume to make."""

    name: str = Field(pattern=f"^{VOLUME_PATTERN}$", max_length=63)
    size: int = Field(
        default=DEFAULT_SIZE, ge=MIN_SIZE, le=MAX_SIZE, description="The most that it can hold, in bytes."
    )


class VolumeInfo(Reply):
    """A volume as it stands. Sizes in bytes."""

    id: str
    name: str
    size: int = Field(description="The most that it can hold.")
    used: int = Field(description="What it takes of the disk.")
    sandboxes: list[str] = Field(description="Sandboxes that mount it, running or not.")
    created_at: Time


class VolumeList(Reply):
    """The tenant's volumes, by name."""

    volumes: list[VolumeInfo]
