"""Programs of every kind at a host that is looked into, as people install and run them, in both kinds of sandbox.

The server is this host's own. That its connections are looked into shows by a path that no rule allows: each program that
gets an answer there gets it from the gateway.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
from tests.certificates import make_certificate
from tests.conftest import Daemon
from tests.system.gateway.test_gateway_http2 import serving

from corral import Client, Sandbox
from corral.daemon.trust import host_bundles

pytestmark = pytest.mark.root

HOST = "host.corral"
TEMPLATE_PYTHON = (3, 11)
CALL = """\
import grpc, os, sys
trust = grpc.ssl_channel_credentials(open(os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"], "rb").read())
print(grpc.secure_channel(sys.argv[1], trust).unary_unary("/open/Echo")(b"hello", timeout=60).decode())
"""
JAVA = """\
import java.net.URI;
import java.net.http.*;
public class Get {
    public static void main(String[] a) throws Exception {
        var asked = HttpRequest.newBuilder(URI.create(a[0])).build();
        System.out.println(HttpClient.newHttpClient().send(asked, HttpResponse.BodyHandlers.ofString()).body());
    }
}
"""
CLIENTS = {
    "curl": "curl -fsS URL/hello",
    "curl without variables": "env -i curl -fsS URL/hello",
    "wget": "wget -qO- URL/hello",
    "python": "python3 -c \"import urllib.request as u; print(u.urlopen('URL/hello').read().decode())\"",
    "node": "node -e \"fetch('URL/hello').then(r => r.text()).then(console.log)\"",
    "node's https": "node -e \"require('https').get('URL/hello', r => r.pipe(process.stdout))\"",
    "openssl": "printf 'GET /open/hello HTTP/1.0\\r\\nHost: PLACE\\r\\n\\r\\n' | "
    "openssl s_client -quiet -verify_return_error -connect PLACE -servername host.corral 2>/dev/null",
    "git": "git clone -q URL/repo.git /tmp/clone && cat /tmp/clone/hello",
    "git-lfs, in Go": "cd /tmp/clone && git lfs locks && echo hello",
    "pip": "pip install -q --target /tmp/pip --index-url URL/simple demo && cat /tmp/pip/demo.py",
    "npm": "npm view --registry URL/npm/ demo description",
    "apt": "echo 'deb [trusted=yes] URL/apt /' > /tmp/list && sudo apt-get -q update -o Dir::Etc::SourceList=/tmp/list "
    "-o Dir::Etc::SourceParts=- -o Dir::State::Lists=/var/lib/apt/other && apt-cache show hello "
    "-o Dir::Etc::SourceList=/tmp/list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=/var/lib/apt/other",
}
PROGRAMS = {
    "java": "/tmp/programs/jre/bin/java -cp /tmp/programs Get URL/hello",
    "cargo": "CARGO_REGISTRIES_OWN_INDEX=sparse+URL/cargo/ /tmp/programs/cargo search --registry own demo",
    "uv, in Rust": "/tmp/programs/uv pip install -q --target /tmp/uv --index-url URL/simple demo && cat /tmp/uv/demo.py",
    "grpc": "PYTHONPATH=/tmp/programs/python python3 /tmp/programs/call.py GRPC",
}
"""Programs that are too large for the template, put into the sandbox where this host has them."""


class Files(SimpleHTTPRequestHandler):
    """Serves a directory, as HTTP/1.1."""

    protocol_version = "HTTP/1.1"

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        """What git-lfs and others insist on."""
        return "text/html" if str(path).endswith(".html") else "application/json"

    def log_message(self, format: str, *args: object) -> None:
        """Keep what was asked."""
        self.server.seen.append(self.path)  # type: ignore[attr-defined]


@dataclass
class World:
    """A daemon that trusts a server of this host, and what there is for clients; `grpc` is another server's port."""

    client: Client
    port: int
    programs: Path
    there: set[str]
    grpc: int
    seen: list[str]

    def command(self, text: str) -> str:
        """A command that is about the server."""
        place = f"{HOST}:{self.port}"
        return (
            text.replace("URL", f"https://{place}/open")
            .replace("PLACE", place)
            .replace("GRPC", f"{HOST}:{self.grpc}")
        )


def fill(root: Path) -> None:
    """What the programs ask for: each finds the word `hello`."""
    made = root / "open"
    for folder in ("simple/demo", "npm", "apt", "cargo/api/v1"):
        (made / folder).mkdir(parents=True)
    (made / "hello").write_text("hello\n")
    with zipfile.ZipFile(made / "simple/demo/demo-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("demo.py", "# hello\n")
        wheel.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        wheel.writestr(
            "demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("demo-1.0.dist-info/RECORD", "")
    name = "demo-1.0-py3-none-any.whl"
    (made / "simple/demo/index.html").write_text(f'<!DOCTYPE html><a href="{name}">{name}</a>')
    package = {"version": "1.0.0", "name": "demo", "description": "hello", "dist": {}}
    document = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": package}}
    (made / "npm/demo").write_text(json.dumps(document))
    (made / "apt/Packages").write_text(
        "Package: hello\nVersion: 1\nArchitecture: all\nMaintainer: hello\nFilename: ./hello.deb\nSize: 1\n"
        f"SHA256: {'0' * 64}\nDescription: hello\n"
    )
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "-C", str(made / "work")]
    (made / "work").mkdir()
    (made / "work/hello").write_text("hello\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    bare = str(made / "repo.git")
    subprocess.run(["git", "clone", "-q", "--bare", str(made / "work"), bare], check=True)
    subprocess.run(["git", "-C", bare, "update-server-info"], check=True)
    (made / "repo.git/info/lfs").mkdir()
    lock = {"id": "1", "path": "hello", "locked_at": "2026-01-01T00:00:00Z"}
    (made / "repo.git/info/lfs/locks").write_text(json.dumps({"locks": [lock]}))
    crate = {"name": "demo", "max_version": "1.0.0", "description": "hello"}
    (made / "cargo/api/v1/crates").write_text(json.dumps({"crates": [crate], "meta": {"total": 1}}))


def pack(programs: Path) -> set[str]:
    """Put programs of this host together; which there are."""
    found = set()
    if shutil.which("jlink") and shutil.which("javac"):
        (programs / "Get.java").write_text(JAVA)
        subprocess.run(["javac", "-d", programs, programs / "Get.java"], check=True)
        modules = "java.base,java.net.http,jdk.crypto.ec"
        subprocess.run(
            ["jlink", "--add-modules", modules, "--output", programs / "jre", "--strip-debug"], check=True
        )
        found.add("java")
    cargo = subprocess.run(["rustup", "which", "cargo"], capture_output=True, text=True, check=False)
    if cargo.returncode == 0:
        shutil.copy(cargo.stdout.strip(), programs / "cargo")
        found.add("cargo")
    if uv := shutil.which("uv"):
        shutil.copy(uv, programs / "uv")
        found.add("uv, in Rust")
    if sys.version_info[:2] == TEMPLATE_PYTHON:
        (programs / "call.py").write_text(CALL)
        for module in ("grpc", "typing_extensions"):
            place = find_spec(module)
            assert place is not None
            assert place.origin is not None
            origin = Path(place.origin)
            if origin.name == "__init__.py":
                shutil.copytree(origin.parent, programs / "python" / module)
            else:
                shutil.copy(origin, programs / "python")
        found.add("grpc")
    return found


@pytest.fixture(scope="module")
def world(shared_daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root, programs = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("programs")
    fill(root)
    there = pack(programs)
    keys = tmp_path_factory.mktemp("certificate")
    context, pem = make_certificate(keys, [HOST])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(root)))
    server.seen = []  # type: ignore[attr-defined]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    port = server.server_address[1]
    (root / "open/cargo/config.json").write_text(
        json.dumps({"dl": f"https://{HOST}:{port}/open/cargo/dl", "api": f"https://{HOST}:{port}/open/cargo"})
    )
    bundle = pem.with_name("bundle.pem")
    bundle.write_bytes(b"".join(path.read_bytes() for path in [*host_bundles(os.environ), pem]))
    thread = Thread(target=server.serve_forever)
    thread.start()
    shared_daemon.stop()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("SSL_CERT_FILE", str(bundle))
            shared_daemon.start()
        with serving(keys) as (_, grpc), shared_daemon.client() as client:
            yield World(client, port, programs, there, grpc, server.seen)  # type: ignore[attr-defined]
        shared_daemon.stop()
        shared_daemon.start()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("isolation", ["container", "gvisor"])
def test_programs_of_every_kind(world: World, isolation: str) -> None:
    """G-122 to G-128: without options, by what is in the sandbox's files and environment."""
    rule = f"GET,HEAD,POST private:{HOST}:{world.port},{world.grpc}/open/**"
    with Sandbox.create(client=world.client, isolation=isolation, allow=(rule,)) as box:
        told = box.exec(world.command("curl -sS https://PLACE/other"))
        assert json.loads(told.stdout)["rule"] == "request-not-allowed", told
        box.files.upload(world.programs, "/tmp/programs")
        wanted = CLIENTS | {name: text for name, text in PROGRAMS.items() if name in world.there}
        failed = {}
        for name, text in wanted.items():
            shown = box.exec(world.command(text), timeout=120)
            if shown.exit_code != 0 or "hello" not in shown.stdout:
                failed[name] = f"{name}: {shown.exit_code}\n{shown.stdout}{shown.stderr}"
        assert not failed, "\n".join(failed.values())
        assert any("/lfs/locks" in path for path in world.seen)
