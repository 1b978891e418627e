"""A server's list of refs, changed on its way to a sandbox, without I/O.

What would send the client elsewhere (G-242) or keep its push from being read is left out: the client then does not ask
for it. Everything else passes byte for byte.
"""

from collections.abc import Callable

from corral.errors import InvalidInput, TooLarge
from corral.wire.pktline import Kind, Line, encode, malformed, take

MAX_LIST = 256 * 1024 * 1024
"""Bytes of a list of refs."""

# What a client would fetch from addresses that the server names.
_ELSEWHERE = frozenset({"packfile-uris", "bundle-uri"})
# A signed push says its commands twice; a push with it could be read in two ways.
_UNREADABLE = frozenset({"push-cert", "packfile-uris", "bundle-uri"})
_MAX_CAPABILITIES = 256
_PACK_BAND = b"\1"


class Texts:
    """Takes an answer to a fetch in pieces and changes its text: lists of refs and of objects, errors and what is told on the
    way, by a function that keeps its length. Packs pass as they are, and so does all that follows what is no pkt-line.
    """

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._buffer = bytearray()
        self._raw = False

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now."""
        self._buffer += data
        out = bytearray()
        try:
            while not self._raw and (line := take(self._buffer)) is not None:
                packed = line.data[:1] == _PACK_BAND
                out += line.encode() if packed else Line(line.kind, self._change(line.data)).encode()
        except InvalidInput:
            self._raw = True
        return bytes(out) + (self.finish() if self._raw else b"")

    def finish(self) -> bytes:
        """What was waited with."""
        left = bytes(self._buffer)
        self._buffer.clear()
        return left


class RefsFilter:
    """Takes the answer to `info/refs` in pieces. `push`: the one for `git-receive-pack`; `options` is whether push
    options may be offered. Raises InvalidInput or TooLarge for what is no such answer.
    """

    def __init__(self, *, push: bool, options: bool = False) -> None:
        self._push = push
        self._options = options
        self._buffer = bytearray()
        self._lines = 0
        self._size = 0
        self._second_version = False
        self._capabilities_seen = False
        self.refs: dict[str, str] = {}
        """Object ids by ref, for a push."""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now."""
        self._size += len(data)
        if self._size > MAX_LIST:
            raise TooLarge("the server lists too many refs", "use a smaller repository")
        self._buffer += data
        out = bytearray()
        while (line := take(self._buffer)) is not None:
            self._lines += 1
            out += self._passed(line)
        return bytes(out)

    def finish(self) -> None:
        """Raise InvalidInput if the list is cut."""
        if self._buffer or not self._lines:
            raise malformed("the list of refs is cut")

    def _passed(self, line: Line) -> bytes:
        if line.kind is not Kind.DATA or line.data.startswith(b"# service="):
            return line.encode()
        if line.data.rstrip(b"\n") == b"version 2":
            self._second_version = True
            return line.encode()
        if line.data.rstrip(b"\n") == b"version 1":
            return line.encode()
        return self._capability(line) if self._second_version else self._ref(line)

    def _capability(self, line: Line) -> bytes:
        """A line of version 2: `name`, or `name=values`."""
        if self._push:
            raise malformed("there is no push in version 2")
        if self._lines > _MAX_CAPABILITIES:
            raise malformed("there are too many capabilities")
        name, equals, values = line.data.rstrip(b"\n").partition(b"=")
        if name.decode("latin-1") in _ELSEWHERE:
            return b""
        kept = b" ".join(word for word in values.split(b" ") if word.decode("latin-1") not in _ELSEWHERE)
        return encode(name + equals + kept + b"\n")

    def _ref(self, line: Line) -> bytes:
        body, zero, capabilities = line.data.rstrip(b"\n").partition(b"\0")
        if zero and self._capabilities_seen:
            raise malformed("capabilities are listed twice")
        self._capabilities_seen = True
        if self._push:
            old, _, name = body.partition(b" ")
            if name == b".have":
                return b""  # objects of other repositories, of which nothing is known here
            self.refs[name.decode("utf-8", "backslashreplace")] = old.decode("latin-1")
        if not zero:
            return line.encode()
        return encode(body + b"\0" + self._kept(capabilities) + b"\n")

    def _kept(self, capabilities: bytes) -> bytes:
        words = [word for word in capabilities.split(b" ") if word]
        if not self._push:
            return b" ".join(word for word in words if _name(word) not in _ELSEWHERE)
        dropped = _UNREADABLE if self._options else _UNREADABLE | {"push-options"}
        # Packs that stand for themselves can be read without the server's objects.
        kept = [word for word in words if _name(word) not in dropped and word != b"no-thin"]
        return b" ".join([*kept, b"no-thin"])


def _name(capability: bytes) -> str:
    return capability.partition(b"=")[0].decode("latin-1")
