"""The host's own way out: its proxy variables, as curl and Python read them.

Only the gateway's environment counts. aiohttp could read these variables itself, but would then also take
credentials out of the host's netrc file and send them for sandboxes.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from corral.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Proxy:
    """A parent proxy. `authorization` is the value of Proxy-Authorization, or empty; `tls` speaks TLS to the
    proxy.
    """

    host: str
    port: int
    tls: bool
    authorization: str

    @property
    def url(self) -> str:
        """Without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({self.url})"

    def credentials(self, scheme: str) -> "tuple[dict[str, str], dict[str, str]]":
        """Header fields for aiohttp: of the request itself, which is what the proxy reads of plain HTTP, and
        of the CONNECT that opens a tunnel for all else.
        """
        own = {"Proxy-Authorization": self.authorization} if self.authorization else {}
        return (own, {}) if scheme == "http" else ({}, own)


class Proxies:
    """The proxies in force for this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        lower = {name.lower(): value for name, value in environment.items()}
        exact = {name: value for name, value in environment.items() if name.islower()}
        merged = {**lower, **exact}
        self._by_scheme = {
            scheme: _parse(url)
            for scheme in ("http", "https")
            if (url := merged.get(f"{scheme}_proxy") or merged.get("all_proxy"))
        }
        self._direct = [
            entry.strip().lower() for entry in merged.get("no_proxy", "").split(",") if entry.strip()
        ]

    @classmethod
    def of_process(cls) -> "Proxies":
        """Those of this process's environment."""
        found = getproxies_environment()
        return cls({f"{scheme}_proxy": url for scheme, url in found.items()})

    def find(self, scheme: str, host: str, port: int) -> Proxy | None:
        """The proxy for a destination, or None to go there directly."""
        proxy = self._by_scheme.get(scheme)
        if proxy is None or _is_loopback(host) or any(_covers(entry, host, port) for entry in self._direct):
            return None
        return proxy


def _is_loopback(host: str) -> bool:
    """A proxy's loopback is not this host's, so loopback never goes through one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _covers(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY names a destination: `*`, a CIDR block, or a domain with or without a
    port.
    """
    if entry == "*":
        return True
    try:
        return ip_address(host) in ip_network(entry)
    except ValueError:
        name, _, only = entry.removeprefix("*").removeprefix(".").partition(":")
        return (host == name or host.endswith("." + name)) and only in ("", str(port))


def _parse(url: str) -> Proxy:
    """Raises InvalidInput for a kind of proxy that is not supported: to go around it unasked would be wrong."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(
            f"a proxy of kind {parts.scheme!r} is not supported",
            "set HTTPS_PROXY and HTTP_PROXY to an HTTP proxy",
        )
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + b64encode(pair.encode()).decode()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Proxy(parts.hostname, port, parts.scheme == "https", authorization)
