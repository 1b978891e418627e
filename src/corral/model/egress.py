"""What a sandbox may reach."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostRule:
    """One allowed destination: an exact host name, or `*.` and a domain for names below it at any depth."""

    host: str
    ports: tuple[int, ...] = (443, 80)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """Allowed destinations; everything else is refused. Empty means nothing.

    `networks` are CIDR blocks of private or special ranges that the operator opened for this host; without
    them a name that resolves there is refused although its rule allows the name.
    """

    rules: tuple[HostRule, ...] = ()
    networks: tuple[str, ...] = ()

    @property
    def ports(self) -> frozenset[int]:
        """All ports that its rules name."""
        return frozenset(port for rule in self.rules for port in rule.ports)
