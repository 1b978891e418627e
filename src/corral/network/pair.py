"""A sandbox's network: two namespaces joined by a veth pair, and nothing else.

```
 sandbox                              gateway
 lo                                   lo  (every address is local: local 0.0.0.0/0 dev lo)
 eth0 10.200.0.2/30 ──── veth ──────  eth0 10.200.0.1/30
 default via 10.200.0.1               no route to anywhere
```

Whatever address the sandbox connects to, the connection ends at the gateway's side: at a listener that was
opened there, or, where there is none, by a refusal of the kernel. The address that was wanted is the
accepted socket's own. No bridge, no NAT, no packet filter; all sandboxes have the same addresses, since no
two of them share a namespace.

All of this needs rights over the namespace, which the host's root has and the sandbox's root has not.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

from corral.host import namespaces, netlink, syscalls

SANDBOX_ADDRESS = IPv4Address("10.200.0.2")
GATEWAY_ADDRESS = IPv4Address("10.200.0.1")
INTERFACE = "eth0"

_PREFIX = 30
_INDEX = 2
_SYSCTL = Path("/proc/sys/net")
_NO_IPV6 = ("ipv6/conf/all/disable_ipv6", "1")
_SANDBOX_SYSCTLS = (
    _NO_IPV6,
    # Ports and pings of the sandbox are its own affair: they need no capability.
    ("ipv4/ip_unprivileged_port_start", "0"),
    ("ipv4/ping_group_range", "0 2147483647"),
)
_GATEWAY_SYSCTLS = (
    _NO_IPV6,
    # A new namespace inherits this from the host, which forwards if it runs Docker.
    ("ipv4/ip_forward", "0"),
    # An answer to a ping of any address would tell the sandbox that the world is there.
    ("ipv4/icmp_echo_ignore_all", "1"),
    # Each UDP packet that nobody takes is refused, not only some per second: programs then fall back at once.
    ("ipv4/icmp_ratelimit", "0"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Descriptors of both namespaces, which keep them alive. Whoever has the pair closes it."""

    sandbox: int
    gateway: int

    def close(self) -> None:
        """Let go of both. Namespaces that nothing else holds end now."""
        os.close(self.sandbox)
        os.close(self.gateway)


def make_pair() -> Pair:
    """Two new namespaces, joined and configured. Takes 2.5 ms. Raises OSError."""
    return namespaces.run_in_new_netns(_make_in_new_thread)


def _make_in_new_thread() -> Pair:
    sandbox = namespaces.own_netns_fd()
    try:
        with netlink.open_socket() as sandbox_link:
            _write_sysctls(_SANDBOX_SYSCTLS)
            syscalls.unshare(syscalls.CLONE_NEWNET)
            gateway = namespaces.own_netns_fd()
            try:
                _write_sysctls(_GATEWAY_SYSCTLS)
                veth = netlink.add_veth(INTERFACE, _INDEX, INTERFACE, _INDEX, gateway)
                netlink.transact(sandbox_link, [veth, *_sandbox_side()])
                with netlink.open_socket() as gateway_link:
                    netlink.transact(gateway_link, _gateway_side())
            except BaseException:
                os.close(gateway)
                raise
    except BaseException:
        os.close(sandbox)
        raise
    return Pair(sandbox, gateway)


def restore_sandbox_side(sandbox: int) -> None:
    """Give a namespace that no sandbox runs in its address and route again: gVisor takes both away at start,
    since its own network stack answers in the kernel's place. Raises OSError if the interface is gone.
    """

    def work() -> None:
        with netlink.open_socket() as link:
            netlink.transact(link, _sandbox_side())

    namespaces.run_in_netns(sandbox, work)


def _sandbox_side() -> list[netlink.Request]:
    return [
        netlink.set_up(netlink.LOOPBACK_INDEX),
        netlink.put_address(_INDEX, IPv4Interface((SANDBOX_ADDRESS, _PREFIX))),
        netlink.set_up(_INDEX),
        netlink.put_default_route(GATEWAY_ADDRESS, _INDEX),
    ]


def _gateway_side() -> list[netlink.Request]:
    return [
        netlink.set_up(netlink.LOOPBACK_INDEX),
        netlink.put_address(_INDEX, IPv4Interface((GATEWAY_ADDRESS, _PREFIX))),
        netlink.set_up(_INDEX),
        netlink.put_any_address(),
    ]


def _write_sysctls(settings: Iterable[tuple[str, str]]) -> None:
    """Write settings of the calling thread's namespace."""
    for name, value in settings:
        path = _SYSCTL / name
        # A kernel without IPv6 has no such file, and nothing to switch off.
        if name.startswith("ipv6/") and not path.exists():
            continue
        path.write_text(value)
