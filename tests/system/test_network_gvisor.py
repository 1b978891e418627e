"""gVisor's own network stack over the same attachment: it takes the addresses of the namespace at its start."""

import asyncio
import json
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.host import mounts, process
from corral.model.ids import SandboxId
from corral.model.listeners import ListenerKind
from corral.network.networks import Networks

pytestmark = [pytest.mark.root, pytest.mark.gvisor]

PROGRAM = """
import socket
for address, port in (("93.184.216.34", 443), ("1.1.1.1", 22), ("127.0.0.1", 80)):
    try:
        with socket.create_connection((address, port), 5) as sock:
            print(sock.recv(100).decode(), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
async def networks(tmp_path: Path) -> AsyncIterator[Networks]:
    networks = Networks(tmp_path / "run")
    yield networks
    for sandbox in await networks.known():
        await networks.remove(sandbox)
    await networks.close()
    mounts.unmount_below(tmp_path)  # runsc pins an empty network namespace in its state directory


def write_bundle(folder: Path, netns: Path) -> None:
    """The host's root, read-only, and one program."""
    folder.mkdir(exist_ok=True)
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "/", "readonly": True},
        "process": {
            "args": [sys.executable, "-c", PROGRAM],
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/usr/bin:/bin"],
        },
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {
            "namespaces": [
                {"type": "pid"},
                {"type": "mount"},
                {"type": "ipc"},
                {"type": "uts"},
                {"type": "network", "path": str(netns)},
            ]
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


async def run_sandbox(tmp_path: Path, server: socket.socket) -> tuple[str, list[str]]:
    """The address that the sandbox wanted, and what it printed."""
    state = ["runsc", f"--root={tmp_path / 'state'}", "--network=sandbox", "--ignore-cgroups"]
    command = [*state, "run", f"--bundle={tmp_path / 'bundle'}", f"net-{secrets.token_hex(4)}"]
    server.settimeout(60)
    async with process.stream(command, timeout=60) as child:
        accepted, _ = await asyncio.to_thread(server.accept)
        with accepted:
            wanted = accepted.getsockname()[0]
            accepted.sendall(b"hello from the gateway")
        out = b"".join([chunk async for chunk in child])
        (await child.wait()).check()
    return wanted, out.decode().splitlines()


async def test_gvisor_reaches_its_gateway_and_nothing_else_and_starts_again(
    networks: Networks, tmp_path: Path
) -> None:
    sandbox = SandboxId(secrets.token_hex(8))
    for _ in range(2):
        await networks.create(sandbox)
        write_bundle(tmp_path / "bundle", networks.sandbox_netns(sandbox))
        listeners = await networks.listen(sandbox, ())
        try:
            (server,) = [found.sock for found in listeners if found.kind is ListenerKind.TLS]
            assert await run_sandbox(tmp_path, server) == (
                "93.184.216.34",
                ["hello from the gateway", "ConnectionRefusedError", "ConnectionRefusedError"],
            )
        finally:
            for listener in listeners:
                listener.sock.close()
