"""A large file from outside: over TLS that the gateway passes on unopened, and over HTTP that it reads.

The server stands in a network namespace of its own, since the gateway dials no address of this host. Its network is
opened by the operator's setting for the time of the row. Both transfers are made by the same `curl`: once in the sandbox's
namespace, once in the host's.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import nginx
from bench.clock import MIB, call
from bench.figures import Figure, Row
from bench.stand import Stand

_HOST, _SERVER, _NETWORK = "198.51.100.1", "198.51.100.2", "198.51.100.0/30"


def rows(stand: Stand) -> Iterator[Row]:
    """Two rows."""
    size, n = stand.n(1024, 512) * MIB, stand.n(7, 5)
    before = stand.client.get_config()["egress.networks"]
    stand.client.set_config("egress.networks", ",".join([*before, _NETWORK]))
    try:
        allow = (f"{_SERVER}:443", f"GET {_SERVER}:80/**")
        with _server(stand, size), stand.sandbox(allow=allow) as box:
            passed, read = (_pairs(scheme, stand.netns(box), n) for scheme in ("https", "http"))
    finally:
        stand.client.set_config("egress.networks", ",".join(before))
    yield _row(
        f"{size // MIB} MiB over TLS, passed through",
        passed,
        0.5,
        "curl and server encrypt on the same cores on which the gateway copies: on a machine of two cores three "
        "processes share what two have without it. The gateway itself uses a third of a second of processor time for a "
        "gigabyte; letting the kernel splice the sockets takes a quarter less of that, and was not faster. The design asks "
        "for 0.9.",
    )
    yield _row(
        f"{size // MIB} MiB over HTTP, read by the gateway",
        read,
        None,
        "the rule names a method and paths, so the gateway parses the request and passes the answer on in pieces.",
    )


def _pairs(scheme: str, netns: Path, n: int) -> list[tuple[float, float]]:
    """MB/s through the gateway and without it; in turns, so that both meet the same machine."""
    url = f"{scheme}://{_SERVER}/large"
    return [(_rate(url, "nsenter", f"--net={netns}"), _rate(url)) for _ in range(n + 1)][1:]


def _rate(url: str, *enter: str) -> float:
    return float(call(*enter, "curl", "-sSkf", "-o", "/dev/null", "-w", "%{speed_download}", url)) / 1e6


def _row(title: str, pairs: list[tuple[float, float]], bound: float | None, remark: str) -> Row:
    direct = Figure.of("no gateway", "MB/s", [rate for _, rate in pairs], more_is_better=True)
    return Row(
        title,
        Figure.of("through the gateway", "MB/s", [rate for rate, _ in pairs], more_is_better=True),
        (direct,),
        more_is_better=True,
        bounds={} if bound is None else {direct.who: bound},
        remark=remark,
    )


@contextmanager
def _server(stand: Stand, size: int) -> Iterator[None]:
    work = stand.work / "server"
    (work / "files").mkdir(parents=True)
    (work / "files" / "large").touch()
    os.truncate(work / "files" / "large", size)
    _certificate(work)
    with _namespace() as name:
        http = nginx.FILES.format(address=_SERVER, work=work)
        with nginx.running(work, http, ("ip", "netns", "exec", name), (_SERVER, 443)):
            yield


def _certificate(work: Path) -> None:
    call(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
        "-subj", f"/CN={_SERVER}", "-keyout", work / "key.pem", "-out", work / "cert.pem",
    )  # fmt: skip


@contextmanager
def _namespace() -> Iterator[str]:
    """A network namespace that is joined with this one."""
    name = link = f"cbench{os.getpid() % 100000}"
    call("ip", "netns", "add", name)
    try:
        call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        call("ip", "address", "add", f"{_HOST}/30", "dev", link)
        call("ip", "link", "set", link, "up")
        call("ip", "-n", name, "address", "add", f"{_SERVER}/30", "dev", "eth0")
        call("ip", "-n", name, "link", "set", "eth0", "up")
        yield name
    finally:
        # The pair of devices ends with it.
        call("ip", "netns", "delete", name)
