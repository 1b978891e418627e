"""A server of the host that writes down what reaches it, byte for byte, and answers as badly as it is asked to."""

import gzip
import socketserver
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, cast
from urllib.parse import quote

_PATIENCE = 20.0
_PIECE = 5


@dataclass
class Witness:
    """`seen` are the requests that came, as they came."""

    port: int
    seen: list[bytes] = field(default_factory=list)

    def saw(self, text: str | bytes) -> bool:
        """Whether some request held it."""
        wanted = text.encode("latin-1") if isinstance(text, str) else text
        return any(wanted in request for request in self.seen)

    def take(self) -> list[bytes]:
        """All that came since the last call."""
        taken, self.seen[:] = list(self.seen), []
        return taken


@contextmanager
def witness() -> Iterator[Witness]:
    """A server on loopback, until the block is left."""
    with _Server(("127.0.0.1", 0), _Talk) as server:
        server.made = Witness(int(server.server_address[1]))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.made
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    made: Witness

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away."""


class _Talk(socketserver.StreamRequestHandler):
    timeout: ClassVar[float] = _PATIENCE

    def handle(self) -> None:
        """Requests of one connection, until it ends."""
        server = cast(_Server, self.server)
        while (head := self._head()) and b"\r\n" in head:
            path = head.split(b" ", 2)[1].decode("latin-1")
            body = self._body(head.lower())
            server.made.seen.append(head + body)
            answer = _ANSWERS.get(path.partition("?")[0], _plain)
            self.wfile.write(answer(head))
            if b"connection: close" in head.lower() or answer is _cut:
                return

    def _head(self) -> bytes:
        lines = []
        while line := self.rfile.readline():
            lines.append(line)
            if line in (b"\r\n", b"\n"):
                break
        return b"".join(lines)

    def _body(self, head: bytes) -> bytes:
        if b"transfer-encoding: chunked" in head:
            parts = []
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0].strip()
        return self.rfile.read(int(length)) if length.isdigit() else b""


def _plain(_: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def _key(head: bytes) -> bytes:
    """What came in the fields that may hold a secret."""
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    return b" ".join(
        value.strip() for name, _, value in lines if name.lower() in (b"private-token", b"authorization")
    )


def _chunks(content: bytes, size: int) -> bytes:
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n"


def _echo(head: bytes) -> bytes:
    key = _key(head)
    spelled = [key, key.hex().encode(), quote(key).encode(), *(b64encode(bytes(n) + key) for n in range(3))]
    fields = b"".join(b"X-Echo-%d: %s\r\n" % (n, form) for n, form in enumerate(spelled))
    cookie = b"Set-Cookie: s=%s\r\nLocation: /?k=%s\r\nWWW-Authenticate: Bearer %s\r\n" % (key, key, key)
    start = b"HTTP/1.1 200 OK\r\n" + fields + cookie + b"Transfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n"
    return start + _chunks(b"|".join(spelled), _PIECE) + b"X-End: %s\r\n\r\n" % key


def _packed(head: bytes) -> bytes:
    content = gzip.compress(_key(head))
    return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(content) + content


def _sealed(head: bytes) -> bytes:
    content = _key(head)
    return (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: x-own\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    )


def _redirect(head: bytes) -> bytes:
    place = head.partition(b"X-To: ")[2].partition(b"\r\n")[0]
    return b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % place


def _lengths(_: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 40\r\n\r\nok"


def _framings(_: bytes) -> bytes:
    hidden = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhidden"
    return b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden


def _control(_: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nX-Odd: a\x01b\x0bc\r\nContent-Length: 2\r\n\r\nok"


def _switch(_: bytes) -> bytes:
    return b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\nhidden"


def _away(_: bytes) -> bytes:
    return b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nContent-Length: 2\r\n\r\nok'


def _cut(_: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"


_ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    "/echo": _echo, "/packed": _packed, "/sealed": _sealed, "/redirect": _redirect, "/lengths": _lengths,
    "/framings": _framings, "/control": _control, "/switch": _switch, "/away": _away, "/cut": _cut,
}  # fmt: skip
