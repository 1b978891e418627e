"""How what a sandbox sends goes out, where its creator said so; it may hold credentials of theirs."""

from dataclasses import dataclass

from corral.model.secrets import Secret


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
class Route:
    """Of the rules for a host the most specific one holds, and no other."""

    headers: tuple[HeaderRule, ...] = ()
