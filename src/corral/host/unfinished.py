"""Hidden names that files of a guest have for a moment, written down so that a kill leaves none of them.

A file without a name gets one at once where nothing was. Where it is to replace another it needs a hidden name for the time
between two system calls, since no call both links and replaces. That name is noted before: a symlink that leads nowhere,
whose text is the path in the guest. Making one is one call, so no note is half written.

What is noted is not trusted later, since the guest may have put something else at that path: it is looked up in the guest's
own root, and only a regular file of a name that nobody could guess before is removed.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Note:
    """A path in a guest, and where that is noted."""

    place: Path
    path: str

    def forget(self) -> None:
        """Idempotent."""
        self.place.unlink(missing_ok=True)


class Unfinished:
    """Notes of all owners (sandboxes, or volumes) in one directory, which is gone after a reboot. Any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self) -> None:
        """Have the directory. Idempotent; called before anything is noted."""
        self._folder.mkdir(0o700, parents=True, exist_ok=True)

    def of(self, owner: str) -> "Notes":
        """Those of one, whose name has no dot."""
        return Notes(self._folder, owner)

    def owners(self) -> set[str]:
        """All that have some."""
        return {place.name.partition(".")[0] for place in self._folder.iterdir()}


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one owner."""

    folder: Path
    owner: str

    @contextlib.contextmanager
    def noted(self, path: str) -> Iterator[None]:
        """Within it, `path` is noted."""
        note = Note(self.folder / f"{self.owner}.{secrets.token_hex(8)}", path)
        note.place.symlink_to(path)
        try:
            yield
        finally:
            note.forget()

    def all(self) -> list[Note]:
        """What was not finished, once nothing is under way."""
        found = [place for place in self.folder.iterdir() if place.name.partition(".")[0] == self.owner]
        return [Note(place, os.readlink(place)) for place in sorted(found)]  # noqa: PTH115 - its text, as it is
