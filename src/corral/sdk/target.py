"""What both transports know of their daemon: its address, what requests carry, and what failures mean."""

import ssl
from urllib.parse import urlsplit

from corral import __version__
from corral.errors import CorralError, DaemonUnreachable, Forbidden, Timeout
from corral.sdk.operations import Request
from corral.sdk.settings import LOCAL_URL, Settings

CONNECT_SECONDS = 10.0
KEPT_SECONDS = 4.0
"""How long a connection that nobody uses is kept: less than the daemon's own 5."""
RETRY_PAUSES = (0.05, 0.3)
"""Seconds before a GET that broke off is sent again."""
MAX_EVENT = 8 * 1024 * 1024
_REMOTE_HINT = (
    "check CORRAL_URL, and on its host that the daemon runs and listens there: `corral config get api.listen`"
)


class Target:
    """One daemon."""

    def __init__(self, where: Settings) -> None:
        self.where = where
        self.base = LOCAL_URL if where.local else where.url
        self.headers = {"user-agent": f"corral/{__version__}", "accept-encoding": "identity"}
        if where.key:
            self.headers["authorization"] = f"Bearer {where.key}"
        host = urlsplit(self.base).hostname or ""
        self.trust_env = not (where.local or host == "localhost" or host.startswith("127.") or host == "::1")
        """Whether the environment's proxies are used."""

    def headers_of(self, request: Request) -> dict[str, str]:
        """The headers of a request."""
        headers = {**self.headers, "accept": request.accept}
        if request.json:
            headers["content-type"] = "application/json"
        elif request.body is not None:
            headers["content-type"] = "application/octet-stream"
        return headers

    def may_start(self, error: Exception) -> bool:
        """Whether starting the daemon can help where no connection was made: nothing listens on this host's socket."""
        own = self.where.local and self.where.autostart
        return own and (_cause(error, FileNotFoundError) or _cause(error, ConnectionRefusedError))

    def not_connected(self, error: Exception) -> CorralError:
        """The public error where no connection was made."""
        if _cause(error, PermissionError):
            return Forbidden(
                f"the socket {self} may not be used by this user", "run the command as root: sudo"
            )
        if _cause(error, ssl.SSLCertVerificationError):
            return DaemonUnreachable(
                f"the certificate of {self} is not one that this machine trusts",
                "name a file with its authority: SSL_CERT_FILE=PATH",
            )
        hint = None if self.where.local else _REMOTE_HINT
        return DaemonUnreachable(f"no daemon answers at {self}", hint)

    def broken(self) -> CorralError:
        """The public error where a connection ended before its answer."""
        return DaemonUnreachable(f"the connection to the daemon at {self} broke off")

    def silent(self) -> CorralError:
        """The public error where no answer came in time."""
        return Timeout(f"the daemon at {self} did not answer in time", "look at `corral daemon logs`")

    def __str__(self) -> str:
        return str(self.where.socket) if self.where.local else self.where.url


def _cause(error: BaseException | None, kind: type[OSError]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False
