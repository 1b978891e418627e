"""A server for the preview proxy's tests: tells what it was sent, and misbehaves when asked to."""

import base64
import hashlib
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.headers.get("Upgrade"):
            self._upgrade(path)
        elif path == "/stream":
            self._head("transfer-encoding", "chunked")
            for number in range(3):
                self._chunk(b"piece %d\n" % number)
            self._chunk(b"")
        elif path == "/forever":
            self._head("transfer-encoding", "chunked")
            while True:
                self._chunk(b"more\n")
                time.sleep(0.05)
        elif path == "/endless-head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                self.wfile.write(b"x-filler: " + b"a" * 1000 + b"\r\n")
        elif path == "/short":
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nonly this")
            self.close_connection = True
        elif path == "/garbage":
            self.wfile.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            self.close_connection = True
        else:
            self._tell(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            size = 0
            while (length := int(self.rfile.readline(), 16)) > 0:
                size += len(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
        else:
            size = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self._tell(b"", size)

    def _tell(self, _: bytes, size: int = 0) -> None:
        body = json.dumps({"path": self.path, "headers": dict(self.headers.items()), "size": size}).encode()
        self._head("content-length", str(len(body)))
        self.wfile.write(body)

    def _head(self, name: str, value: str) -> None:
        self.send_response(200)
        self.send_header(name, value)
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _upgrade(self, path: str) -> None:
        if path == "/refuse":
            self.send_error(403)
            return
        accept = base64.b64encode(
            hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + MAGIC).digest()
        ).decode()
        self.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n"
        )
        self.wfile.write(json.dumps(dict(self.headers.items())).encode() + b"\n")
        while data := self.connection.recv(65536):
            self.connection.sendall(data)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
