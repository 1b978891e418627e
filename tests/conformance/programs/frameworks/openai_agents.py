"""OpenAI's Agents SDK: its client of E2B's sandboxes, of both types, as its agents use it."""

import asyncio
import io
from pathlib import Path

import httpx
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox.manifest import Manifest

SERVER = "nohup python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 &"
REACHED = "for i in $(seq 300); do curl -sf localhost:8000/note && exit; sleep 0.1; done; exit 1"


async def one(kind: str) -> None:
    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(
        sandbox_type=kind, timeout=600, exposed_ports=(8000,), on_timeout="kill"
    )
    session = await client.create(manifest=Manifest(), options=options)
    async with session:
        done = await session.exec("echo out; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 3), done
        await session.write(Path("note"), io.BytesIO(b"kept"))
        assert (await session.read(Path("note"))).read() == b"kept"
        assert (await session.exec(f"cd /workspace && {SERVER}")).exit_code == 0
        assert (await session.exec(REACHED)).exit_code == 0
        port = await session.resolve_exposed_port(8000)
        async with httpx.AsyncClient() as web:  # it takes a name with a port for one without TLS
            assert (await web.get(f"https://{port.host}:{port.port}/note")).text == "kept"
        kept = (await session.persist_workspace()).read()
        await session.exec("rm /workspace/note")
        await session.hydrate_workspace(io.BytesIO(kept))
        assert (await session.read(Path("note"))).read() == b"kept"
    await client.delete(session)


async def main() -> None:
    await one("e2b")
    await one("e2b_code_interpreter")


if __name__ == "__main__":
    asyncio.run(main())
