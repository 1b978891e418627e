"""Shapes of volumes: of the control plane, and of what is in them."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from corral.protocol.e2b.sandboxes import Int32, Wire

Id = Annotated[Int32, Field(ge=0, lt=65_536)]
Mode = Annotated[Int32, Field(ge=0, le=0o7777)]


class NewVolume(Wire):
    """A volume to make."""

    name: Annotated[str, StringConstraints(max_length=63)]


class Volume(Wire):
    """A volume in a list."""

    volume_id: str
    name: str


class VolumeAndToken(Volume):
    """A volume, and what opens its content."""

    token: str


class Change(Wire):
    """What is to be changed of an entry."""

    uid: Id | None = None
    gid: Id | None = None
    mode: Mode | None = None


class EntryStat(Wire):
    """An entry of a volume."""

    name: str
    type: str
    path: str
    size: int
    mode: int
    uid: int
    gid: int
    atime: datetime
    mtime: datetime
    ctime: datetime
    target: str | None = None
