"""The directories of one installation."""

import errno
import os
import secrets as randomness
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corral.errors import CorralError, DiskFull, HostError
from corral.host.statefile import write_state
from corral.model.places import RUN_ROOT, data_dir, instance_of


def _unusable(directory: Path, error: OSError) -> CorralError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"the disk of {directory} is full")
    return HostError(
        f"the daemon cannot write to {directory}: {error.strerror}",
        "see `dmesg` and `findmnt`: mount its file system writable, or set CORRAL_DATA_DIR to a directory on another",
    )


@dataclass(frozen=True, slots=True)
class Places:
    """`data` survives reboots, `run` does not and is short, so that sockets' paths fit."""

    data: Path
    run: Path
    instance: str

    @classmethod
    def from_environment(cls) -> Self:
        """From CORRAL_DATA_DIR or its default; creates nothing."""
        data = data_dir(os.environ)
        instance = instance_of(data)
        return cls(data, RUN_ROOT / instance, instance)

    def create(self) -> None:
        """Make the directories. They are root's, and passable, since sandboxes' roots lie below them; the logs are not.
        Raises HostError, DiskFull.
        """
        for directory in (
            self.data,
            RUN_ROOT,
            self.run,
            self.run / "sandboxes",
            self.logs,
            self.trust.parent,
        ):
            try:
                directory.mkdir(parents=True, exist_ok=True)
                directory.chmod(0o700 if directory == self.logs else 0o711)
            except OSError as error:
                raise _unusable(directory, error) from error

    @property
    def logs(self) -> Path:
        """The directory of the daemon's logs."""
        return self.data / "logs"

    @property
    def log(self) -> Path:
        """The engine's log."""
        return self.logs / "engine.log"

    @property
    def gateway_log(self) -> Path:
        """The gateway's log."""
        return self.logs / "gateway.log"

    @property
    def audit(self) -> Path:
        """The directory of audit records that were moved out of the database."""
        return self.data / "audit"

    @property
    def leases(self) -> Path:
        """The directory of what gateways drew on their leases."""
        return self.data / "leases"

    @property
    def trust(self) -> Path:
        """The CA bundle that sandboxes get."""
        return self.data / "trust" / "ca.pem"

    @property
    def ask(self) -> Path:
        """The program by which sandboxes ask for more."""
        return self.data / "trust" / "corral-ask"

    @property
    def authority(self) -> Path:
        """The certificate authority by which the gateway ends TLS, with its key."""
        return self.data / "authority.pem"

    @property
    def tls(self) -> Path:
        """The directory of the certificate that was made here for the API's TLS listener."""
        return self.data / "tls"

    @property
    def tls_bundle(self) -> Path:
        """What a program of this host trusts that uses that listener: the host's CAs, and ours."""
        return self.tls / "bundle.pem"

    @property
    def socket(self) -> Path:
        """The API's unix socket."""
        return self.run / "api.sock"

    @property
    def lock(self) -> Path:
        """Held by the one daemon of this data directory."""
        return self.data / "daemon.lock"

    @property
    def config(self) -> Path:
        """The operator's settings."""
        return self.data / "config.json"

    @property
    def database_url(self) -> str:
        """The database: what CORRAL_DATABASE_URL says, else SQLite in the data directory."""
        return os.environ.get("CORRAL_DATABASE_URL") or f"sqlite:///{self.data / 'corral.db'}"

    @property
    def shares_database(self) -> bool:
        """Whether other daemons may write to it: SQLite's is in the data directory, which is one daemon's."""
        return not self.database_url.startswith("sqlite:")

    def installation(self) -> str:
        """The random name of this installation, kept in the data directory; made at the first call."""
        place = self.data / "instance"
        if not place.exists():
            write_state(place, randomness.token_hex(8).encode())
        return place.read_text().strip()

    @property
    def key_file(self) -> Path:
        """The key under which secrets are encrypted."""
        return self.data / "key"
