"""The two-namespace attachment on a real kernel: what a sandbox reaches, and what is left behind."""

import asyncio
import contextlib
import errno
import os
import re
import secrets
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from corral.engine.ports import Listener
from corral.errors import HostError, InvalidInput, NotFound
from corral.host import mounts, namespaces, netlink
from corral.model.ids import SandboxId
from corral.model.listeners import ListenerKind
from corral.network.networks import Networks
from corral.network.pair import make_pair

pytestmark = pytest.mark.root

_T = TypeVar("_T")


def new_id() -> SandboxId:
    return SandboxId(secrets.token_hex(8))


@pytest.fixture
async def networks(tmp_path: Path) -> AsyncIterator[Networks]:
    networks = Networks(tmp_path)
    yield networks
    for sandbox in await networks.known():
        await networks.remove(sandbox)
    await networks.close()
    assert [entry.target for entry in mounts.mounts_below(tmp_path)] == []


@pytest.fixture
async def sandbox(networks: Networks) -> SandboxId:
    sandbox = new_id()
    await networks.create(sandbox)
    return sandbox


@pytest.fixture
async def listeners(networks: Networks, sandbox: SandboxId) -> AsyncIterator[dict[ListenerKind, Listener]]:
    made = await networks.listen(sandbox, (8443,))
    yield {listener.kind: listener for listener in made if listener.port != 8443}
    for listener in made:
        listener.sock.close()


def inside(path: Path, work: Callable[[], _T]) -> _T:
    """`work` in the namespace pinned at `path`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return namespaces.run_in_netns(fd, work)
    finally:
        os.close(fd)


def connect_to(address: str, port: int, family: int = socket.AF_INET) -> Callable[[], socket.socket]:
    def work() -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(5)
        try:
            sock.connect((address, port))
        except OSError:
            sock.close()
            raise
        return sock

    return work


def outcome(path: Path, work: Callable[[], socket.socket]) -> int:
    """The errno of a connection attempt inside; 0 if it succeeded."""
    try:
        inside(path, work).close()
    except OSError as error:
        return error.errno or -1
    return 0


@pytest.mark.parametrize("address", ["93.184.216.34", "198.18.0.7", "8.8.8.8", "10.200.0.1", "10.0.0.1"])
@pytest.mark.parametrize(("kind", "port"), [(ListenerKind.TLS, 443), (ListenerKind.HTTP, 80)])
async def test_any_address_reaches_the_listener_and_is_told(
    networks: Networks,
    sandbox: SandboxId,
    listeners: dict[ListenerKind, Listener],
    address: str,
    kind: ListenerKind,
    port: int,
) -> None:
    client = inside(networks.sandbox_netns(sandbox), connect_to(address, port))
    accepted, peer = listeners[kind].sock.accept()
    with client, accepted:
        assert accepted.getsockname() == (address, port)
        assert peer[0] == "10.200.0.2"
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.sendall(b"hello")
        accepted.settimeout(5)
        assert accepted.recv(16) == b"hello"


async def test_listeners_are_what_is_asked_for(networks: Networks, sandbox: SandboxId) -> None:
    made = await networks.listen(sandbox, (9999, 80, 443, 9999))
    with contextlib.ExitStack() as stack:
        for listener in made:
            stack.enter_context(listener.sock)
            assert not listener.sock.getblocking()
        assert [(listener.kind.value, listener.port) for listener in made] == [
            ("dns-udp", 53),
            ("dns-tcp", 53),
            ("http", 80),
            ("tls", 443),
            ("tls", 9999),
        ]
    again = await networks.listen(sandbox, ())
    for listener in again:
        listener.sock.close()


@pytest.mark.parametrize("port", [0, 53, 65536, -1])
async def test_a_port_that_cannot_be_served_is_refused(
    networks: Networks, sandbox: SandboxId, port: int
) -> None:
    with pytest.raises(InvalidInput):
        await networks.listen(sandbox, (port,))


async def test_dns_reaches_the_gateway_at_any_address_and_is_answered_from_it(
    networks: Networks, sandbox: SandboxId, listeners: dict[ListenerKind, Listener]
) -> None:
    def ask() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(5)
        sock.connect(("9.9.9.9", 53))
        sock.send(b"question")
        return sock

    server = listeners[ListenerKind.DNS_UDP].sock
    with inside(networks.sandbox_netns(sandbox), ask) as client:
        data, control, _, peer = server.recvmsg(512, socket.CMSG_SPACE(12))
        (_, local, asked) = struct.unpack("=I4s4s", control[0][2])
        assert (data, socket.inet_ntoa(asked)) == (b"question", "9.9.9.9")
        source = struct.pack("=I4s4s", 0, asked, bytes(4))
        server.sendmsg([b"answer"], [(socket.IPPROTO_IP, 8, source)], 0, peer)
        assert client.recv(16) == b"answer"
        assert local == asked


@pytest.mark.usefixtures("listeners")
@pytest.mark.parametrize("address", ["93.184.216.34", "10.200.0.1", "169.254.169.254"])
async def test_other_tcp_ports_are_refused_at_once(
    networks: Networks, sandbox: SandboxId, address: str
) -> None:
    for port in (22, 8080, 65535):
        assert outcome(networks.sandbox_netns(sandbox), connect_to(address, port)) == errno.ECONNREFUSED


@pytest.mark.usefixtures("listeners")
async def test_other_udp_ports_are_refused_each_time(networks: Networks, sandbox: SandboxId) -> None:
    def send() -> int:
        refused = 0
        for _ in range(20):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.settimeout(5)
                sock.connect(("1.1.1.1", 443))
                sock.send(b"quic")
                try:
                    sock.recv(16)
                except ConnectionRefusedError:
                    refused += 1
        return refused

    assert inside(networks.sandbox_netns(sandbox), send) == 20


@pytest.mark.usefixtures("listeners")
@pytest.mark.parametrize("address", ["2606:4700:4700::1111", "fe80::1%eth0", "::ffff:0:0:1"])
async def test_ipv6_is_unreachable(networks: Networks, sandbox: SandboxId, address: str) -> None:
    result = outcome(networks.sandbox_netns(sandbox), connect_to(address, 443, socket.AF_INET6))
    assert result in {errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.EACCES}


@pytest.mark.usefixtures("listeners")
async def test_ping_of_the_world_is_not_answered(networks: Networks, sandbox: SandboxId) -> None:
    def ping() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
            sock.settimeout(0.2)
            sock.connect(("8.8.8.8", 0))
            sock.send(struct.pack("!BBHHH", 8, 0, 0, 1, 1))
            return sock.recv(512)

    with pytest.raises(TimeoutError):
        inside(networks.sandbox_netns(sandbox), ping)


@contextlib.contextmanager
def host_listener() -> Iterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        yield server.getsockname()[1]


def host_addresses() -> set[str]:
    """The host's own IPv4 addresses: where its routes would leave from."""
    found = {"127.0.0.1"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.connect(("192.0.2.1", 9))
        found.add(sock.getsockname()[0])
    return found


async def test_the_host_is_not_reachable(networks: Networks, sandbox: SandboxId) -> None:
    with host_listener() as port:
        for address in host_addresses():
            connect_to(address, port)().close()  # it is there, for the host
            assert outcome(networks.sandbox_netns(sandbox), connect_to(address, port)) == errno.ECONNREFUSED


async def test_two_sandboxes_do_not_reach_each_other(networks: Networks, sandbox: SandboxId) -> None:
    other = new_id()
    await networks.create(other)

    def serve() -> socket.socket:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.bind(("0.0.0.0", 7000))
        server.listen()
        return server

    with inside(networks.sandbox_netns(other), serve):
        for address in ("10.200.0.1", "10.200.0.2", "10.200.0.3", "198.18.0.2"):
            result = outcome(networks.sandbox_netns(sandbox), connect_to(address, 7000))
            assert result in {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EACCES}, address


@pytest.mark.parametrize("within", [True, False])
async def test_a_port_of_the_sandbox_can_be_dialled_from_outside(
    networks: Networks, sandbox: SandboxId, within: bool
) -> None:
    def serve() -> socket.socket:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.bind(("0.0.0.0", 3000))
        server.listen()
        return server

    with (
        inside(networks.sandbox_netns(sandbox), serve) as server,
        await networks.connect(sandbox, 3000, inside=within) as client,  # type: ignore[union-attr]
    ):
        accepted, _ = server.accept()
        with accepted:
            await asyncio.get_running_loop().sock_sendall(client, b"GET /")
            assert accepted.recv(16) == b"GET /"


async def test_low_ports_need_no_privilege_inside(networks: Networks, sandbox: SandboxId) -> None:
    def settings() -> tuple[str, str]:
        base = Path("/proc/sys/net/ipv4")
        return (base / "ip_unprivileged_port_start").read_text(), (base / "ping_group_range").read_text()

    assert inside(networks.sandbox_netns(sandbox), settings) == ("0\n", "0\t2147483647\n")


async def test_sysfs_shows_the_sandbox_devices_only(networks: Networks, sandbox: SandboxId) -> None:
    for _ in range(2):
        await networks.create(sandbox, sysfs=True)
    shown = networks.sysfs(sandbox)
    assert sorted(path.name for path in (shown / "class" / "net").iterdir()) == ["eth0", "lo"]
    with pytest.raises(OSError, match="Read-only"):
        (shown / "kernel" / "uevent_seqnum").write_text("0")


async def test_create_is_idempotent_and_keeps_the_namespaces(networks: Networks, sandbox: SandboxId) -> None:
    before = networks.sandbox_netns(sandbox).stat().st_ino
    await networks.create(sandbox)
    assert networks.sandbox_netns(sandbox).stat().st_ino == before


async def test_create_restores_addresses_that_a_runtime_took_away(
    networks: Networks, sandbox: SandboxId
) -> None:
    flush = netlink.Request("take interface down", 16, 0, struct.pack("=BxHiII", 0, 0, 2, 0, 1))

    def take_down() -> None:
        with netlink.open_socket() as link:
            netlink.transact(link, [flush])

    netns = networks.sandbox_netns(sandbox)
    inside(netns, take_down)
    assert outcome(netns, connect_to("1.2.3.4", 443)) == errno.ENETUNREACH
    await networks.create(sandbox)
    assert outcome(netns, connect_to("1.2.3.4", 443)) == errno.ECONNREFUSED


async def test_a_half_made_network_is_made_anew(networks: Networks, sandbox: SandboxId) -> None:
    netns = networks.sandbox_netns(sandbox)
    namespaces.unpin(netns.parent / "gw.ns")
    with pytest.raises(NotFound):
        await networks.listen(sandbox, ())
    assert await networks.known() == {sandbox}
    await networks.create(sandbox)
    for listener in await networks.listen(sandbox, ()):
        listener.sock.close()


async def test_a_network_whose_interface_is_gone_is_made_anew(networks: Networks, sandbox: SandboxId) -> None:
    netns = networks.sandbox_netns(sandbox)
    delete = netlink.Request("delete interface", 17, 0, struct.pack("=BxHiII", 0, 0, 2, 0, 0))

    def unplug() -> None:
        with netlink.open_socket() as link:
            netlink.transact(link, [delete])

    inside(netns, unplug)
    await networks.create(sandbox)
    assert outcome(netns, connect_to("1.2.3.4", 22)) == errno.ECONNREFUSED


async def test_remove_is_idempotent_and_takes_everything(networks: Networks, sandbox: SandboxId) -> None:
    await networks.create(sandbox, sysfs=True)
    place = networks.sandbox_netns(sandbox).parent
    await networks.remove(sandbox)
    await networks.remove(sandbox)
    assert not place.exists()
    assert await networks.known() == set()
    with pytest.raises(NotFound):
        await networks.listen(sandbox, ())


def host_network() -> list[str]:
    """Addresses, interfaces, routes, rules and packet filters of this host, but for counters, and for the hosts outside that
    other tests may be making meanwhile.
    """
    found: list[str] = []
    for kind, more in (("addr", ()), ("link", ()), ("route", ("table", "all")), ("rule", ())):
        done = subprocess.run(
            ["ip", "-o", kind, "show", *more], check=True, capture_output=True, text=True
        ).stdout
        found += [re.sub(r"_lft \S+", "", line) for line in done.splitlines()]
    for tool in ("iptables-save", "ip6tables-save"):
        if shutil.which(tool):
            text = subprocess.run([tool], check=True, capture_output=True, text=True).stdout
            found += re.sub(r"\[\d+:\d+\]|^#.*$", "", text, flags=re.MULTILINE).splitlines()
    return [re.sub(r"^\d+: ", "", line) for line in found if not re.search(r"\bcgw-|\b10\.213\.", line)]


async def test_the_hosts_network_and_other_sandboxes_are_not_touched(
    networks: Networks, sandbox: SandboxId
) -> None:
    """G-294, G-336, G-338: no rule, route or interface of the host's is made for a sandbox, so none is taken away with it."""
    before, other = host_network(), new_id()
    with contextlib.ExitStack() as stack:
        for listener in await networks.listen(sandbox, ()):
            stack.enter_context(listener.sock)
        await networks.create(other)
        for listener in await networks.listen(other, ()):
            listener.sock.close()
        assert host_network() == before
        await networks.remove(other)
        assert host_network() == before
        assert outcome(networks.sandbox_netns(sandbox), connect_to("93.184.216.34", 443)) == 0


USUAL = frozenset({53, 80, 443})


@pytest.fixture
async def served(networks: Networks, sandbox: SandboxId) -> AsyncIterator[SandboxId]:
    """A sandbox's network whose sockets are open."""
    with contextlib.ExitStack() as stack:
        for listener in await networks.listen(sandbox, (9,)):
            stack.enter_context(listener.sock)
        yield sandbox


async def test_a_network_that_is_in_order_passes(networks: Networks, served: SandboxId) -> None:
    """G-5: whatever ports are served."""
    await networks.probe(served, USUAL | {9})
    with pytest.raises(HostError, match="port 9 of other addresses is not refused"):
        await networks.probe(served, USUAL)


async def test_a_network_without_its_gateway_does_not_pass(networks: Networks, sandbox: SandboxId) -> None:
    """G-5."""
    with pytest.raises(HostError, match="the gateway is not reached"):
        await networks.probe(sandbox, USUAL)


def change(netns: Path, command: str) -> None:
    """Change a network from the host, as its root can."""
    subprocess.run(["nsenter", f"--net={netns}", *command.split()], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("side", "commands", "fault"),
    [
        (
            "net.ns",
            [
                "sysctl -qw net.ipv6.conf.lo.disable_ipv6=0",
                "ip -6 addr add 2001:db8::2/64 dev lo",
                "ip -6 route add local 2001:db8::/64 dev lo",
            ],
            "IPv6",
        ),
        ("net.ns", ["ip addr add 192.0.2.1/32 dev lo"], "the gateway is not reached at 192.0.2.1"),
        ("net.ns", ["ip route del default", "ip route add blackhole default"], "the gateway is not reached at 192.0.2.1"),
        ("gw.ns", ["iptables -I INPUT -p tcp --dport 10 -j DROP"], "port 10 of other addresses is not refused"),
    ],
    ids=["IPv6", "an address of its own", "no route", "a filter"],
)  # fmt: skip
async def test_a_network_that_something_has_changed_does_not_pass(
    networks: Networks, served: SandboxId, side: str, commands: list[str], fault: str
) -> None:
    """G-5: by whatever on this host it was."""
    for command in commands:
        change(networks.sandbox_netns(served).with_name(side), command)
    with pytest.raises(HostError, match=fault):
        await networks.probe(served, USUAL | {9})


async def test_networks_outlive_the_daemon(networks: Networks, sandbox: SandboxId, tmp_path: Path) -> None:
    later = Networks(tmp_path)
    try:
        assert await later.known() == {sandbox}
        (listener, *others) = await later.listen(sandbox, ())
        assert listener.kind is ListenerKind.DNS_UDP
        for made in (listener, *others):
            made.sock.close()
    finally:
        await later.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def open_namespaces() -> int:
    """Descriptors of network namespaces that this process holds."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += str(entry.readlink()).startswith("net:")
    return count


async def test_two_hundred_cycles_leave_nothing(networks: Networks, tmp_path: Path) -> None:
    """G-337."""
    descriptors = open_descriptors()
    for _ in range(200):
        sandbox = new_id()
        await networks.create(sandbox)
        await networks.remove(sandbox)
    assert open_descriptors() <= descriptors
    assert open_namespaces() == 0
    assert mounts.mounts_below(tmp_path) == []
    assert list((tmp_path / "sandboxes").iterdir()) == []


async def test_spare_pairs_are_used_refilled_and_freed(tmp_path: Path) -> None:
    networks = Networks(tmp_path, spares=2)
    made = [new_id() for _ in range(6)]
    try:
        for sandbox in made:
            await networks.create(sandbox)
            assert outcome(networks.sandbox_netns(sandbox), connect_to("1.2.3.4", 22)) == errno.ECONNREFUSED
    finally:
        for sandbox in made:
            await networks.remove(sandbox)
        await networks.close()
    assert open_namespaces() == 0


async def test_a_refusal_of_the_kernel_is_a_host_error(networks: Networks, sandbox: SandboxId) -> None:
    for listener in await networks.listen(sandbox, ()):
        with listener.sock:
            if listener.port == 443:
                with pytest.raises(HostError, match="refused a step"):
                    await networks.listen(sandbox, ())


def test_the_kernel_says_which_request_it_refuses() -> None:
    pair = make_pair()
    try:

        def work() -> None:
            with netlink.open_socket() as link:
                netlink.transact(link, [netlink.set_up(1), netlink.set_up(77)])

        with pytest.raises(netlink.NetlinkError, match="set interface 77 up") as caught:
            namespaces.run_in_netns(pair.sandbox, work)
        assert caught.value.errno == errno.ENODEV
    finally:
        pair.close()
