"""Where a client finds its daemon: what the caller says, else the environment, else this host's own daemon."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from corral.errors import InvalidInput
from corral.model.places import RUN_ROOT, data_dir, instance_of

LOCAL_URL = "http://corral"
"""Base of requests over the unix socket; the name is not resolved."""


@dataclass(frozen=True, slots=True)
class Settings:
    """An address: `socket` for the daemon of this host, or `url` and `key` for one over TCP."""

    data_dir: Path
    socket: Path
    url: str = ""
    key: str = field(default="", repr=False)
    autostart: bool = True

    @property
    def local(self) -> bool:
        """Whether the daemon is reached over the unix socket."""
        return not self.url

    @property
    def log(self) -> Path:
        """The log of this host's daemon."""
        return self.data_dir / "logs" / "engine.log"

    @property
    def startup_log(self) -> Path:
        """What a daemon that a client started has said before it had a log."""
        return self.data_dir / "logs" / "startup.log"


def settings(
    url: str | None = None, key: str | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """From `url` and `key`, else CORRAL_URL and CORRAL_API_KEY, else the unix socket of CORRAL_DATA_DIR.

    CORRAL_AUTOSTART=0 keeps clients from starting the daemon. Raises InvalidInput for a URL that is none.
    """
    environ = os.environ if environ is None else environ
    url = environ.get("CORRAL_URL", "") if url is None else url
    data = data_dir(environ)
    return Settings(
        data_dir=data,
        socket=RUN_ROOT / instance_of(data) / "api.sock",
        url=_checked(url.rstrip("/")),
        key=environ.get("CORRAL_API_KEY", "") if key is None else key,
        autostart=environ.get("CORRAL_AUTOSTART", "1") != "0",
    )


def _checked(url: str) -> str:
    if not url:
        return url
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InvalidInput(
            f"the daemon's URL {url[:200]!r} is not valid", "set CORRAL_URL to http(s)://host:port"
        )
    return url
