"""Which layer a recipe, or a layer of an OCI image on top of others, became: so that nothing is made twice."""

import contextlib
import os
import re
import tempfile
from pathlib import Path

from corral.errors import InvalidInput
from corral.model.ids import LayerDigest

_KEY = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UNFINISHED = "new-"


class LayerIndex:
    """One small file per key in `directory`. A key is 64 hexadecimal digits: the hash of what a layer is made from.

    An entry may name a layer that was removed since; ask the store.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def tidy(self) -> None:
        """Remove what a daemon that was killed had not finished writing. Nobody may be writing now."""
        for path in self._directory.glob(f"{_UNFINISHED}*"):
            path.unlink()

    def get(self, key: str) -> LayerDigest | None:
        """The layer that `key` became, if known."""
        try:
            text = self._path(key).read_text("ascii").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return LayerDigest(text) if _DIGEST.fullmatch(text) else None

    def put(self, key: str, layer: LayerDigest) -> None:
        """Remember it; replaces a former entry at once."""
        path = self._path(key)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=_UNFINISHED, dir=self._directory)
        try:
            with open(fd, "w", encoding="ascii") as file:
                file.write(f"{layer}\n")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def touch(self, key: str) -> None:
        """Note that an entry is used now."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(key))

    def entries(self) -> list[tuple[str, LayerDigest, float]]:
        """Key, layer and time of the last use (seconds since 1970) of all, longest unused first."""
        found = []
        for path in self._directory.glob("[0-9a-f]*"):
            layer = self.get(path.name) if _KEY.fullmatch(path.name) else None
            if layer is not None:
                found.append((path.name, layer, path.stat().st_mtime))
        return sorted(found, key=lambda entry: entry[2])

    def remove(self, key: str) -> None:
        """Forget an entry. Idempotent."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"{key[:80]!r} is not a key of a layer")
        return self._directory / key
