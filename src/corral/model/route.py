"""How what a sandbox sends goes out, where its creator said so; it may hold credentials of theirs."""

from dataclasses import dataclass, field

from corral.model.secrets import Secret

MAX_RESOLVERS = 10


@dataclass(frozen=True, slots=True)
class HeaderField:
    """A field of a request, which the gateway writes."""

    name: str
    value: Secret


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """The fields of all requests over TLS to a host: an exact name, or `*.` and a domain. It opens no host."""

    host: str
    fields: tuple[HeaderField, ...]


@dataclass(frozen=True, slots=True)
class EgressProxy:
    """A SOCKS5 proxy. `tls`: TLS is spoken to it, `server_name` (else `host`) being in its certificate; `authorities` are
    what that is checked by, in PEM, in place of the host's. Without `username` there is no login.
    """

    host: str
    port: int
    username: str = ""
    password: Secret = field(default_factory=lambda: Secret(""))
    tls: bool = False
    server_name: str = ""
    authorities: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """Of the rules for a host the most specific one holds, and no other. All connections to hosts outside go through
    `proxy`, if there is one. `resolvers` are addresses of servers that names are looked up by, in place of the host's.
    """

    headers: tuple[HeaderRule, ...] = ()
    proxy: EgressProxy | None = None
    resolvers: tuple[str, ...] = ()
