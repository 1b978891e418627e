"""Defences of the network: namespaces, names, addresses, and which destination is meant."""

from tests.removals.removal import Edit, Removal

_RULES, _NAMES, _DNS = "policy/egress.py", "gateway/names.py", "gateway/dns.py"
_TLS, _FORWARD, _PAIR, _SOCKETS, _BUNDLE = (
    "gateway/tls.py",
    "gateway/forward.py",
    "network/pair.py",
    "network/sockets.py",
    "oci/bundle.py",
)
_ANY_ADDRESS = Edit(
    "policy/addresses.py",
    "    for name, networks in _NEVER:\n",
    "    return None\n    for name, networks in _NEVER:\n",
)

NETWORK = (
    Removal(
        "a name that no rule allows is unknown",
        {
            "no-policy": "a name resolves without a rule",
            "dns-exfiltration": "a name that is not allowed was answered",
            "local-names": "answered",
        },
        (
            Edit(
                _RULES,
                "        return any(self._shut(host, port) is None for port in ports)",
                "        return True",
            ),
        ),
    ),
    Removal(
        "no question leaves the host",
        {"dns-exfiltration": "the name left the host"},
        (
            Edit(
                _DNS,
                "        try:\n            query = parse_query(data)\n",
                '        socket.socket(type=socket.SOCK_DGRAM).sendto(data, ("127.0.0.1", 53))\n'
                "        try:\n            query = parse_query(data)\n",
            ),
        ),
    ),
    Removal(
        "names have few labels",
        {"odd-questions": "a name of 60 labels was answered"},
        (Edit(_DNS, 'name.count(".") >= MAX_LABELS or ', ""),),
    ),
    Removal(
        "each sandbox has a network namespace of its own",
        {
            "host-services": "tcp",
            "neighbour": "another sandbox was reached",
            "unix-sockets": "abstract",
        },
        (Edit(_BUNDLE, '[*_namespaces(), {"type": "network", "path": str(paths.netns)}]', "_namespaces()"),),
    ),
    Removal(
        "the gateway's side has no IPv6, and nothing listens by it",
        {"ipv6": "reached by IPv6"},
        (
            # Else the kernel would first look for whoever has the address already.
            Edit(
                _PAIR,
                '_NO_IPV6 = ("ipv6/conf/all/disable_ipv6", "1")',
                '_NO_IPV6 = ("ipv6/conf/default/accept_dad", "0")',
            ),
            Edit(
                _SOCKETS,
                "socket.socket(socket.AF_INET, kind_of_socket",
                "socket.socket(socket.AF_INET6, kind_of_socket",
            ),
            Edit(_SOCKETS, '_ANY = "0.0.0.0"', '_ANY = "::"'),
        ),
    ),
    Removal(
        "pings are not answered",
        {"datagrams": "a datagram was answered"},
        (Edit(_PAIR, '("ipv4/icmp_echo_ignore_all", "1")', '("ipv4/icmp_echo_ignore_all", "0")'),),
    ),
    Removal(
        "the gateway listens at the ports of rules only",
        {"other-ports": "a port without a rule answered", "encrypted-dns": "DNS over TLS is open"},
        (Edit(_SOCKETS, "{TLS_PORT, *tls_ports}", "{TLS_PORT, 22, 853, *tls_ports}"),),
    ),
    Removal(
        "the port is a part of the rule",
        {"other-ports": "another rule's port was open"},
        (
            Edit(
                _RULES,
                "            if port in rule.ports:\n                return Allowed(host, port, rule)",
                "            return Allowed(host, port, rule)",
            ),
        ),
    ),
    Removal(
        "*.DOMAIN is what is below it",
        {"wildcards": "answered [0"},
        (Edit(_RULES, '    at = host.find(".")\n', '    yield "*." + host\n    at = host.find(".")\n'),),
    ),
    Removal(
        "an address stands for one name",
        {
            "stand-ins": "an address that stands for nothing",
            "fronting-tls": "a handshake was not refused for its name",
            "fronting-http": "went to look for a host that was not meant",
        },
        (Edit(_NAMES, "        return wanted == self.address(name)", "        return True"),),
    ),
    Removal(
        "metadata services have no name",
        {"metadata": "a metadata name resolves"},
        (Edit(_RULES, "host in METADATA_HOSTS or host in MODEL_HOSTS", "host in MODEL_HOSTS"),),
    ),
    Removal(
        "model APIs have no name",
        {"model-hosts": "a model API resolves"},
        (Edit(_RULES, "host in METADATA_HOSTS or host in MODEL_HOSTS", "host in METADATA_HOSTS"),),
    ),
    Removal(
        "addresses of the host are not dialled",
        {"own-address": "tcp", "rebinding": "tcp"},
        (_ANY_ADDRESS,),
    ),
    Removal(
        "the gateway dials what a name resolves to, not what was connected to",
        {"hosts-file": "tcp"},
        (
            _ANY_ADDRESS,
            Edit(
                _TLS,
                "self._dialer.connect(self._box, decision, self._upstream)",
                "self._dialer.connect(self._box, replace(decision, host=self._address()), self._upstream)",
            ),
            Edit(
                _TLS,
                "from functools import partial\n",
                "from dataclasses import replace\nfrom functools import partial\n",
            ),
        ),
    ),
    Removal(
        "one connection's requests are decided on one by one",
        {"pipelining": "answered", "host-spellings": "answered"},
        (
            Edit(_FORWARD, "if named_port != port or not self._names_match(host, address):", "if False:"),
            Edit(_RULES, "len(text) <= 5 and 0 < int(text) <= 65535", "len(text) <= 5"),
        ),
    ),
    Removal(
        "refusals are written down at a rate",
        {"dns-flood": "each question is kept"},
        (
            Edit(
                "gateway/audit.py", "if not self._bucket.take(now) and not first and not always:", "if False:"
            ),
            Edit(
                "gateway/dns.py",
                "QUERY_RATE, QUERY_BURST = 1000.0, 2000",
                "QUERY_RATE, QUERY_BURST = 1e6, 1_000_000",
            ),
        ),
    ),
    Removal(
        "malformed questions are refused",
        {"malformed-questions": "names are no longer resolved"},
        (
            # A name that goes on at itself is followed, for half a minute.
            Edit(
                "wire/dns.py",
                "    while True:\n        size = data[at]",
                "    for _ in range(200_000_000):\n        size = data[at]",
            ),
            Edit(
                "wire/dns.py",
                "        label = data[at : at + size]\n",
                "        if size > 191:\n            at = data[at]\n            continue\n        label = data[at : at + size]\n",
            ),
        ),
    ),
)
