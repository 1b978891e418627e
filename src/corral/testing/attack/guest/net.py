"""Tries what a JSON list of attempts on standard input says; prints a list of outcomes."""

import contextlib
import json
import re
import socket
import ssl
import struct
import sys
from typing import Any

from .kit import outcome, report

PATIENCE = 10.0
AT_ONCE = 100


def tcp(host: str, port: int) -> str:
    """Connect."""
    return outcome(lambda: socket.create_connection((host, port), PATIENCE).close())


def raw(host: str, port: int, data: str, requests: int = 1) -> list[dict[str, Any]]:
    """Send bytes as they are; the status and the head's fields of each HTTP answer, and what followed."""
    with socket.create_connection((host, port), PATIENCE) as connection:
        connection.sendall(data.encode("latin-1"))
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
                if received.count(b"HTTP/1.1 ") >= requests and b"\r\n\r\n" in received:
                    connection.settimeout(0.3)
        except (TimeoutError, ConnectionError):
            pass
    answers = re.split(rb"(?=HTTP/1\.[01] \d{3})", received)
    return [_answer(part.decode("latin-1")) for part in answers if part.strip()]


def _answer(text: str) -> dict[str, Any]:
    head, _, body = text.partition("\r\n\r\n")
    return {
        "status": int(head.split(" ")[1]) if head.startswith("HTTP/") else 0,
        "head": head,
        "body": body[:4000],
    }


def http(
    host: str, port: int, authority: str, path: str = "/", fields: str = "", method: str = "GET"
) -> dict[str, Any]:
    """One HTTP request to an address, with any Host."""
    text = f"{method} {path} HTTP/1.1\r\nHost: {authority}\r\n{fields}Connection: close\r\n\r\n"
    answers = raw(host, port, text)
    return answers[0] if answers else {"status": 0, "head": "", "body": ""}


def tls(host: str, port: int, name: str | None) -> str:
    """A TLS handshake with any server name, or none; `ok`, or why it failed. One with the gateway itself, which so tells
    its reason (G-312), is `refused` and that reason.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=name) as secure,
        ):
            return (
                _reason(secure, name or host)
                if b"Corral" in (secure.getpeercert(binary_form=True) or b"")
                else "ok"
            )
    except ssl.SSLError as error:
        return str(error.reason)
    except OSError as error:
        return type(error).__name__


def _reason(secure: ssl.SSLSocket, name: str) -> str:
    """What the gateway says inside a connection that it has taken for itself; `ok` if it passes a request on."""
    secure.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
    head = secure.recv(65536).partition(b"\r\n\r\n")[0].decode("latin-1").lower()
    found = re.search(r"^x-corral-decision: denied; reason=(\S+)", head, re.MULTILINE)
    return f"refused {found.group(1)}" if found else "ok"


def udp(host: str, port: int, data: str = "x") -> str:
    """A datagram; `reply`, `silence` or the error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as connection:
            connection.settimeout(0.5)
            connection.connect((host, port))
            connection.send(data.encode())
            connection.recv(4096)
            return "reply"
    except TimeoutError:
        return "silence"
    except OSError as error:
        return type(error).__name__


def datagram(host: str, port: int, data: str) -> str:
    """A datagram whose answer nobody waits for."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        return outcome(connection.sendto, data.encode("latin-1"), (host, port))


def questions(server: str, name: str, count: int) -> int:
    """Many DNS questions, as fast as they go, and so many at once as a socket holds; how many answers came."""
    query = _question(name, 1)
    answers = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.connect((server, 53))
        connection.settimeout(0.2)
        for _ in range(count // AT_ONCE):
            for _ in range(AT_ONCE):
                connection.send(query)
            with contextlib.suppress(TimeoutError):
                for _ in range(AT_ONCE):
                    connection.recv(4096)
                    answers += 1
    return answers


def _question(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 0x1234, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def ping(host: str) -> str:
    """An echo request by an unprivileged ICMP socket."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as connection:
            connection.settimeout(0.5)
            connection.sendto(struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"ping", (host, 0))
            connection.recv(1024)
            return "reply"
    except TimeoutError:
        return "silence"
    except OSError as error:
        return type(error).__name__


def dns(server: str, name: str, kind: int = 1, over_tcp: bool = False) -> dict[str, Any]:
    """A DNS question to a server: the answer's code, and how many answers it holds."""
    query = _question(name, kind)
    try:
        with socket.socket(
            socket.AF_INET, socket.SOCK_STREAM if over_tcp else socket.SOCK_DGRAM
        ) as connection:
            connection.settimeout(PATIENCE)
            connection.connect((server, 53))
            connection.sendall(struct.pack("!H", len(query)) + query if over_tcp else query)
            answer = connection.recv(4096)[2 if over_tcp else 0 :]
    except OSError as error:
        return {"error": type(error).__name__}
    flags, _, answers = struct.unpack("!3H", answer[2:8])
    address = ".".join(map(str, answer[-4:])) if answers and kind == 1 else ""
    return {"code": flags & 15, "answers": answers, "address": address}


def unix(path: str) -> str:
    """Connect to a unix socket; a path that starts with @ is an abstract one."""
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX) as connection:
        return outcome(connection.connect, address)


def attempt(kind: str, *arguments: Any) -> Any:
    """One attempt."""
    try:
        return globals()[kind](*arguments)
    except OSError as error:
        return type(error).__name__


if __name__ == "__main__":
    report([attempt(*item) for item in json.load(sys.stdin)])
