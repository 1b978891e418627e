"""nginx as a yardstick, and as a server of large files; each with a configuration and a process of its own."""

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.clock import end, wait_until

# Its worker stays root: it must read below the bench's own directory, which is nobody else's.
_FRAME = """
user root;
worker_processes 1;
daemon off;
pid {work}/nginx.pid;
error_log {work}/nginx.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {work}/tmp; proxy_temp_path {work}/tmp; fastcgi_temp_path {work}/tmp;
  uwsgi_temp_path {work}/tmp; scgi_temp_path {work}/tmp;
  keepalive_requests 1000000000;
  {http}
}}
"""

PROXY = """
  upstream model {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header Connection ""; proxy_set_header x-api-key real;
    }}
  }}
"""
"""A reverse proxy that sets a header, as the gateway does, and reads nothing of what passes."""

FILES = """
  server {{
    listen {address}:443 ssl;
    listen {address}:80;
    ssl_certificate {work}/cert.pem; ssl_certificate_key {work}/key.pem;
    root {work}/files;
  }}
"""
"""Files, over TLS and plainly."""


@contextmanager
def running(
    work: Path, http: str, prefix: Sequence[str] = (), ready: tuple[str, int] | None = None
) -> Iterator[int]:
    """nginx with an `http` block, for the time of the block; its process id. `prefix`: words before the command.

    `ready`: address and port that answer once it is up.
    """
    work.mkdir(exist_ok=True)
    (work / "nginx.conf").write_text(_FRAME.format(work=work, http=http))
    process = subprocess.Popen(
        [*prefix, "nginx", "-p", str(work), "-c", str(work / "nginx.conf"), "-e", str(work / "nginx.log")],
        stdin=subprocess.DEVNULL,
    )
    try:
        if ready is not None:
            wait_until(lambda: listens(process, work / "nginx.log", ready), "nginx")
        yield process.pid
    finally:
        end(process)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(process: "subprocess.Popen[bytes]", log: Path, where: tuple[str, int]) -> bool:
    """Whether somebody listens there yet. Raises RuntimeError, with the end of the log, if the process has ended."""
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended: {log.read_text()[-1000:]}")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(where) == 0
