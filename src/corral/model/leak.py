"""Secrets where they may not be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leak:
    """`what` was found in `path` of a checkpoint; a path that does not begin with `/` is in its memory or settings.
    `overwritten`: it is there no more. The path comes from a sandbox."""

    path: str
    what: str
    overwritten: bool
