"""The client's side of SOCKS5 (RFC 1928, RFC 1929): bytes in, bytes out. Only connections, and only to addresses: a name is
looked up by who asks.
"""

from ipaddress import IPv4Address, IPv6Address

from corral.errors import UpstreamFailed

_VERSION, _CONNECT = 5, 1
_OPEN, _PASSWORD = 0, 2
_IPV4, _NAME, _IPV6 = 1, 3, 4
_LENGTHS = {_IPV4: 4, _IPV6: 16}


class Opening:
    """Asks a proxy for a connection. Send `hello`, then what `feed` gives; once `opened`, `rest` is what the server at the
    other end has said already.
    """

    def __init__(
        self, address: IPv4Address | IPv6Address, port: int, user: str = "", password: str = ""
    ) -> None:
        """Without a user's name, none is told; it and the password are at most 255 bytes."""
        kind = _IPV4 if address.version == 4 else _IPV6
        self._request = bytes((_VERSION, _CONNECT, 0, kind)) + address.packed + port.to_bytes(2, "big")
        name, word = user.encode(), password.encode()
        self._login = bytes((1, len(name))) + name + bytes((len(word),)) + word if user else b""
        self.hello = bytes((_VERSION, 1, _PASSWORD if user else _OPEN))
        self._step = self._chosen
        self._received = b""
        self.opened = False

    @property
    def rest(self) -> bytes:
        """What came after the proxy's last answer."""
        return self._received if self.opened else b""

    def feed(self, data: bytes) -> bytes:
        """What is to be sent now. Raises UpstreamFailed if the proxy refuses or speaks something else."""
        self._received += data
        sent = b""
        while not self.opened and (answer := self._step()) is not None:
            sent += answer
        return sent

    def _take(self, size: int) -> bytes | None:
        if len(self._received) < size:
            return None
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    def _chosen(self) -> bytes | None:
        if (taken := self._take(2)) is None:
            return None
        if taken[0] != _VERSION:
            raise UpstreamFailed("it does not speak SOCKS5")
        if taken[1] == _OPEN and not self._login:
            self._step = self._answered
            return self._request
        if taken[1] == _PASSWORD and self._login:
            self._step = self._logged_in
            return self._login
        raise UpstreamFailed("it wants another kind of login")

    def _logged_in(self) -> bytes | None:
        if (taken := self._take(2)) is None:
            return None
        if taken[1] != 0:
            raise UpstreamFailed("it refuses the user and password")
        self._step = self._answered
        return self._request

    def _answered(self) -> bytes | None:
        if len(self._received) < 5:
            return None
        version, code, _, kind, first = self._received[:5]
        if version != _VERSION or (kind not in _LENGTHS and kind != _NAME):
            raise UpstreamFailed("it does not speak SOCKS5")
        if code != 0:
            raise UpstreamFailed(f"it refuses the connection (code {code})")
        if self._take(4 + (_LENGTHS.get(kind) or 1 + first) + 2) is not None:
            self.opened = True
        return None
