"""What a sandbox may reach."""

from dataclasses import dataclass

TLS_PORT = 443
PLAIN_PORT = 80


@dataclass(frozen=True, slots=True)
class HostRule:
    """One destination: an exact host name, an address, `*.` and a domain for names below it at any depth, `*` for any name,
    or a range of addresses as CIDR: allowed to who connects to an address, denied also where a name leads there.

    `methods` and `paths` narrow it to HTTP requests that match one of each; empty means all. A path is matched segment by
    segment: `*` stands for any characters of one, `**` for any number of whole ones. `deny` refuses what it matches,
    whatever else allows it. `private` lets the name lead to private addresses. `tcp` passes connections on, whatever is spoken in
    them. `origin` says where the rule comes from.
    """

    host: str
    ports: tuple[int, ...] = (TLS_PORT, PLAIN_PORT)
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    deny: bool = False
    private: bool = False
    tcp: bool = False
    origin: str = ""

    @property
    def is_range(self) -> bool:
        """Whether it is for a range of addresses."""
        return "/" in self.host

    @property
    def inside(self) -> bool:
        """Whether the rule can only be applied to requests that are read, not to connections."""
        return bool(self.methods or self.paths)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """Allowed destinations; everything else is refused. Empty means nothing.

    `networks` are CIDR blocks of private or special ranges that the operator opened for this host; without
    them a name that resolves there is refused although its rule allows the name.
    """

    rules: tuple[HostRule, ...] = ()
    networks: tuple[str, ...] = ()

    @property
    def allowing(self) -> tuple[HostRule, ...]:
        """The rules that allow something."""
        return tuple(rule for rule in self.rules if not rule.deny)

    @property
    def denying(self) -> tuple[HostRule, ...]:
        """The rules that refuse something, whatever else allows it."""
        return tuple(rule for rule in self.rules if rule.deny)

    @property
    def ports(self) -> frozenset[int]:
        """All ports that its rules name."""
        return frozenset(port for rule in self.rules for port in rule.ports)
