"""Which port of which sandbox a request's Host names: `{port}-{sandbox}.{domain}`. Pure."""

import re
from dataclasses import dataclass

LOCAL = "localhost"
"""A domain whose names browsers resolve to loopback themselves."""
MAX_PORT = 65535
_LABEL = re.compile(r"([0-9]{1,5})-([a-z0-9]{1,64})(?:-[a-z0-9]{1,64})?")


@dataclass(frozen=True, slots=True)
class Target:
    """A port of a sandbox, as its caller named it: nothing is known of either yet."""

    sandbox: str
    port: int


@dataclass(frozen=True, slots=True)
class Addresses:
    """How ports of sandboxes are reached from outside. `domain`: what names end in, without a port; empty for none but
    `localhost`. `tls` and `plain` are the ports of the listeners, None where there is none."""

    domain: str = ""
    tls: int | None = None
    plain: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Domains below which names of sandboxes are known, lower case."""
        return tuple(dict.fromkeys(name for name in (self.domain, LOCAL) if name))

    @property
    def authority(self) -> str | None:
        """The domain and port that clients append to a sandbox's label; None where no domain was given."""
        if not self.domain or not (self.tls or self.plain):
            return None
        usual = 443 if self.tls else 80
        port = self.tls or self.plain
        return self.domain if port == usual else f"{self.domain}:{port}"

    def url(self, sandbox: str, port: int) -> str | None:
        """The address of a port; None where the API listens on no TCP port."""
        label = f"{port}-{sandbox}"
        if self.tls and self.domain:
            return f"https://{label}.{self.authority}/"
        if self.plain:
            suffix = "" if self.plain == 80 else f":{self.plain}"
            return f"http://{label}.{self.domain or LOCAL}{suffix}/"
        return None


def target_of(host: str, domains: tuple[str, ...]) -> Target | None:
    """What a host name (lower case, without port) names; None for one that is no sandbox's. Raises ValueError for one that
    has the form of a sandbox's but names no port."""
    label, dot, domain = host.partition(".")
    if not dot or domain not in domains:
        return None
    found = _LABEL.fullmatch(label)
    if found is None:
        return None
    port = int(found[1])
    if not 1 <= port <= MAX_PORT:
        raise ValueError(f"{port} is not a port")
    return Target(found[2], port)
