"""Shapes of disk use."""

from pydantic import Field

from corral.protocol.base import Reply, Request


class DiskUse(Reply):
    """What something takes, in bytes."""

    kind: str = Field(
        description="`template`, `checkpoint`, `sandbox`, `volume`, or `unused`: what nothing needs any more."
    )
    name: str
    own: int = Field(description="What comes back when it is removed.")
    shared: int = Field(description="What others hold, too.")


class DiskOverview(Reply):
    """The store, and what of the tenant's takes its disk, largest first. All sizes in bytes."""

    total: int = Field(description="What the store can hold.")
    used: int
    free: int = Field(description="What may still be written: the disk below may have less than the store.")
    file: int | None = Field(
        default=None, description="What the store's file takes of the host's disk; null where it has none."
    )
    uses: list[DiskUse]


class Prune(Request):
    """What to remove beside what nothing needs: checkpoints beyond these bounds. Both null: the operator's bounds hold."""

    keep: int | None = Field(default=None, ge=0, description="Newest checkpoints of each project that stay.")
    size: int | None = Field(default=None, ge=0, description="Bytes of the own disk of those that stay.")
    dry_run: bool = Field(default=False, description="Only tell.")


class Pruned(Reply):
    """What was removed, or with `dry_run` would be."""

    removed: list[DiskUse]
    freed: int = Field(description="Bytes. The file system gives them back in the background.")
