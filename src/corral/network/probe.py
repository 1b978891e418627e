"""What a sandbox's network lets through, tried from the sandbox's side before anything runs there (G-5).

The namespaces are made by a few calls to the kernel, and no rule of a packet filter is in them. Still a kernel may have
been told to give each new namespace addresses or routes, by a setting or by a program that watches for them. So each start
asks: the gateway must be reached, by an address of nobody else's too; another port must be refused at once; and by IPv6
nothing may be reached. It costs half a millisecond.
"""

import errno
import socket
from collections.abc import Container

from corral.errors import HostError
from corral.host import namespaces
from corral.network.pair import GATEWAY_ADDRESS
from corral.network.sockets import HTTP_PORT

_SECONDS = 5.0
_ELSEWHERE = "192.0.2.1"
_ELSEWHERE_6 = "2001:db8::1"
_ABSENT = frozenset(
    {errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EHOSTUNREACH, errno.EACCES}
)


def probe(sandbox: int, served: Container[int]) -> None:
    """Try the sandbox's side of a network, a descriptor of its namespace, before anything runs there. `served`: ports that
    the gateway listens at. Raises HostError where it is not as it must be, OSError if it cannot be entered.
    """
    wrong = namespaces.run_in_netns(sandbox, lambda: _first_fault(served))
    if wrong:
        raise HostError(
            f"the sandbox's network is not as it must be: {wrong}",
            "nothing was started in it; see what on this host changes new network namespaces",
        )


def _first_fault(served: Container[int]) -> str:
    shut = next(port for port in range(9, 1 << 16) if port not in served)
    for address in (str(GATEWAY_ADDRESS), _ELSEWHERE):
        if _tried(socket.AF_INET, address, HTTP_PORT) != 0:
            return f"the gateway is not reached at {address}"
    if _tried(socket.AF_INET, _ELSEWHERE, shut) != errno.ECONNREFUSED:
        return f"port {shut} of other addresses is not refused"
    if _tried(socket.AF_INET6, _ELSEWHERE_6, HTTP_PORT) not in _ABSENT:
        return "IPv6 leads somewhere"
    return ""


def _tried(family: socket.AddressFamily, address: str, port: int) -> int:
    """The error of a connection attempt; 0 if it was made."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_SECONDS)
            sock.connect((address, port))
    except TimeoutError:
        return errno.ETIMEDOUT
    except OSError as error:
        return error.errno or errno.EIO
    return 0
