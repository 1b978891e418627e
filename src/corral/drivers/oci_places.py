"""Where the `oci` driver keeps the parts of a sandbox, and what it must remember of one.

```
<run dir>/runtimes/<runtime>/          the runtime's own state
<run dir>/sandboxes/<id>/root          mount point of the root        gone after a reboot
                        /bundle/       config.json, pid, runtime.log
                        /etc/          files bound into the sandbox
                        /in, out, processes/   see guest_link; net.ns, gw.ns, sys are the network's
<data dir>/sandboxes/<id>.json         the record: written first, removed last
```
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from corral.errors import InternalError, NotFound
from corral.model.ids import LayerDigest, SandboxId, is_id
from corral.model.volume import VolumeMount


@dataclass(frozen=True, slots=True)
class Record:
    """What of a sandbox must be known without its specification. `layers` lowest first; `volumes` that are mounted in it."""

    runtime: str
    uid_base: int
    layers: tuple[LayerDigest, ...]
    volumes: tuple[VolumeMount, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """The paths of one sandbox in the run directory."""

    path: Path

    @property
    def root(self) -> Path:
        """Where its root is mounted."""
        return self.path / "root"

    @property
    def bundle(self) -> Path:
        """Its OCI bundle."""
        return self.path / "bundle"

    @property
    def pid(self) -> Path:
        """The runtime's note of its PID 1."""
        return self.bundle / "pid"

    @property
    def etc(self) -> Path:
        """Files that are bound into it."""
        return self.path / "etc"

    def make(self) -> None:
        """Make its directories. Others may pass, as the sandbox's shifted ids must; nobody may look."""
        self.path.mkdir(0o711, parents=True, exist_ok=True)
        for directory, mode in ((self.root, 0o755), (self.bundle, 0o700), (self.etc, 0o711)):
            directory.mkdir(mode, exist_ok=True)


class Records:
    """The records of all sandboxes, as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, sandbox: SandboxId, record: Record) -> None:
        """Write it, at once or not at all."""
        self._folder.mkdir(0o700, parents=True, exist_ok=True)
        self._unfinished(sandbox).write_text(json.dumps(asdict(record)))
        self._unfinished(sandbox).rename(self._path(sandbox))

    def find(self, sandbox: SandboxId) -> Record | None:
        """The record, None if there is none. Raises InternalError for a damaged one."""
        try:
            data = json.loads(self._path(sandbox).read_bytes())
            volumes = tuple(VolumeMount(**mount) for mount in data.get("volumes", ()))
            layers = tuple(map(LayerDigest, data["layers"]))
            return Record(data["runtime"], int(data["uid_base"]), layers, volumes)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise InternalError(
                f"the driver's record of sandbox {sandbox} cannot be read: {error}"
            ) from error

    def get(self, sandbox: SandboxId) -> Record:
        """The record. Raises NotFound."""
        record = self.find(sandbox)
        if record is None:
            raise NotFound(f"the driver knows no sandbox {sandbox}")
        return record

    def remove(self, sandbox: SandboxId) -> None:
        """Idempotent. What a crash left of a record that was not yet there goes too."""
        self._path(sandbox).unlink(missing_ok=True)
        self._unfinished(sandbox).unlink(missing_ok=True)

    def known(self) -> set[SandboxId]:
        """All sandboxes that have one, or the beginning of one."""
        if not self._folder.is_dir():
            return set()
        return {SandboxId(path.stem) for path in self._folder.iterdir() if is_id(path.stem)}

    def _path(self, sandbox: SandboxId) -> Path:
        if not is_id(sandbox):
            raise InternalError(f"{sandbox!r} is not a sandbox's id")
        return self._folder / f"{sandbox}.json"

    def _unfinished(self, sandbox: SandboxId) -> Path:
        return self._path(sandbox).with_suffix(".new")
