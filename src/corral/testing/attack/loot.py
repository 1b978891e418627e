"""A key worth stealing, behind an API that sends it back to whoever asks."""

import html
import json
import secrets
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from typing import Any
from urllib.parse import quote

from corral.sdk.client import Client

ANSWER_SECONDS = 0.3
"""How long a call takes, so that others come meanwhile."""
ANSWER = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 1000},
}


def forms(key: str) -> list[bytes]:
    """The byte strings by which a key would be seen: plain, base64 at each offset, URL, JSON, HTML and hexadecimal."""
    raw = key.encode()
    found = {raw, raw.hex().encode(), raw.hex().upper().encode(), quote(key, safe="").encode()}
    found |= {json.dumps(key)[1:-1].encode(), html.escape(key).encode()}
    for encode in (b64encode, urlsafe_b64encode):
        for offset in range(3):
            # The first and the last sign depend on what surrounds the key.
            coded = encode(bytes(offset) + raw).rstrip(b"=")
            found.add(coded[(offset * 8 + 5) // 6 + (offset > 0) : -1])
    return sorted(found)


def masked(key: str) -> str:
    """The forms of a key, masked as guest/search.py wants them: in its arguments they would find themselves."""
    return "\n".join(bytes(byte ^ 0x5A for byte in form).hex() for form in forms(key))


def seen_in(key: str, data: bytes | str) -> bool:
    """Whether a key can be read out of something."""
    data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    return any(form in data for form in forms(key))


def make_key() -> str:
    """A key with characters that URLs, JSON and HTML spell differently."""
    return f"sk-ant-api03/canary+{secrets.token_hex(16)}=&<'\"\\>"


@dataclass
class Loot:
    """The key; `secret` is its name in the vault. `calls` counts what has reached the API."""

    secret: str
    key: str
    calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def masked(self) -> str:
        """The forms of the key, masked as guest/search.py wants them."""
        return masked(self.key)

    def seen_in(self, text: str) -> bool:
        """Whether the key can be read out of something."""
        return seen_in(self.key, text)

    def count(self) -> None:
        """A call has come."""
        with self._lock:
            self.calls += 1


@contextmanager
def loot(client: Client) -> Iterator[Loot]:
    """The key in the vault, and the API behind it, until the block is left."""
    key = make_key()
    made = Loot(f"self-test-{secrets.token_hex(3)}", key)
    server = _Server(("127.0.0.1", 0), _handler(made))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        client.put_secret(made.secret, key, "anthropic", f"http://127.0.0.1:{server.server_address[1]}")
        try:
            yield made
        finally:
            client.remove_secret(made.secret)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(made: Loot) -> type[BaseHTTPRequestHandler]:
    class Handler(_Upstream):
        loot = made

    return Handler


class _Server(ThreadingHTTPServer):
    """Says nothing of clients that went away, as some attacks do."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing to say."""


class _Upstream(BaseHTTPRequestHandler):
    """Answers as Anthropic does, or sends back everything that it was sent, in every form and in small pieces."""

    protocol_version = "HTTP/1.1"
    loot: Loot

    def do_GET(self) -> None:
        """A list of models."""
        self._send(200, "application/json", b'{"data": []}', "")

    def do_POST(self) -> None:
        """A model call; `metadata.echo` asks for the key."""
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        echo = body.get("metadata", {}).get("echo")
        if echo is None:
            self.loot.count()
            sleep(ANSWER_SECONDS)
            self._send(200, "application/json", json.dumps(ANSWER).encode(), "")
        else:
            self._echo(echo)

    def _echo(self, how: str) -> None:
        key = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        raw = key.encode()
        lines = [key, quote(key, safe=""), raw.hex(), b64encode(raw).decode(), b64encode(b"x" + raw).decode()]
        lines += [b64encode(b"xy" + raw).decode(), json.dumps(key), str(self.headers)]
        if how == "error":
            content = json.dumps({"error": {"message": f"invalid key {key}"}}).encode()
            self._send(401, "application/json", content, key)
        elif how == "stream":
            events = b"".join(b"data: " + line.encode() + b"\n\n" for line in lines[:6])
            self._send(200, "text/event-stream", events, key)
        else:
            self._send(200, "application/json", "\n".join(lines).encode(), key)

    def _send(self, status: int, kind: str, content: bytes, key: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        if key:
            self.send_header("x-echo", quote(key))
            self.send_header("x-echo-raw", key)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for start in range(0, len(content), 7 if key else len(content)):
            piece = content[start : start + (7 if key else len(content))]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
