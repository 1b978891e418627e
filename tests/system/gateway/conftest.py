"""A real gateway process, sandboxes' ends of its listeners, and an upstream that does what a test says."""

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from corral.engine.ports import Attachment, Inspector, Ledger, Listener, OpenedSecret
from corral.errors import CorralError
from corral.gateway.client import GatewayClient
from corral.gateway.journal import Journals
from corral.gateway.questions import OnAsk, refuse_all
from corral.model.budget import LedgerEntry, Outcome, Refusal, Reservation, Return, Settlement
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy, RepoGrant
from corral.model.grants import Grant
from corral.model.ids import GrantId, SandboxId, TenantId
from corral.model.listeners import ListenerKind
from corral.model.route import Route
from corral.model.secrets import Provider, Secret
from corral.model.usage import Usage
from corral.wire.link import AuditRecord

KEY = "sk-ant-canary-0123456789abcdef"
TENANT = TenantId("default")
SOURCE = Path(__file__).resolve().parents[3] / "src"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """A request as the upstream got it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        """The values of a field."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


class Upstream:
    """An HTTP server on loopback."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.handler: Handler = self._ok
        self.port = 0

    async def _ok(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"ok": True})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fields = [(name.decode(), value.decode()) for name, value in request.raw_headers]
        seen = Seen(request.method, request.raw_path, fields, b"")
        self.seen.append(seen)
        if request.body_exists:
            seen.body = await request.read()
        return await self.handler(request)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Upstream"]:
        """Serve meanwhile."""
        app = web.Application(client_max_size=100 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()


@dataclass
class BoxEnd:
    """What a sandbox has: where its listeners are, and its token."""

    id: SandboxId
    token: str
    ports: dict[ListenerKind, int]

    @property
    def url(self) -> str:
        """The gateway's own pages."""
        return f"http://127.0.0.1:{self.ports[ListenerKind.HTTP]}"

    async def raw(self, data: bytes, *, kind: ListenerKind = ListenerKind.HTTP) -> bytes:
        """Everything that comes back for some bytes until the gateway closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[kind])
        try:
            writer.write(data)
            async with asyncio.timeout(30):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


class TestLedger:
    """Takes everything, or refuses what a test says; keeps what was reserved and how it ended."""

    __test__ = False

    def __init__(self) -> None:
        self.usage: asyncio.Queue[Usage] = asyncio.Queue()
        self.taking = asyncio.Event()
        self.open: dict[tuple[str, int], Reservation] = {}
        self.reserved: list[Reservation] = []
        self.released: list[int] = []
        self.refusal: Refusal | None = None
        self.failure: CorralError | None = None

    async def apply(self, entries: Sequence[LedgerEntry]) -> list[Outcome]:
        """As the engine's."""
        if any(isinstance(entry, Settlement) for entry in entries):
            await self.taking.wait()
        if self.failure is not None:
            raise self.failure
        return [Outcome(None if isinstance(entry, Return) else self._enter(entry)) for entry in entries]

    def _enter(self, entry: Reservation | Settlement) -> Refusal | None:
        key = (entry.holder, entry.number)
        if isinstance(entry, Reservation):
            if self.refusal is None:
                self.open[key] = entry
                self.reserved.append(entry)
            return self.refusal
        if self.open.pop(key, None) is None:
            return None
        if entry.usage is None:
            self.released.append(entry.number)
        else:
            self.usage.put_nowait(entry.usage)
        return None

    async def abandon(self, holder: str, drawn: Mapping[int, int] | None) -> None:
        """As the engine's, without a charge."""
        self.open = {key: value for key, value in self.open.items() if key[0] != holder}


@dataclass
class Bed:
    """The gateway under test."""

    upstream: Upstream
    client: GatewayClient
    http: aiohttp.ClientSession
    command: list[str]
    environment: dict[str, str]
    ledger: TestLedger
    audits: list[AuditRecord] = field(default_factory=list)
    recording: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, no record is written."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def usage(self) -> asyncio.Queue[Usage]:
        """What calls used."""
        return self.ledger.usage

    @property
    def taking(self) -> asyncio.Event:
        """Whether usage is taken."""
        return self.ledger.taking

    def spawn(self) -> socket.socket:
        """Start a process; our end of its link."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self.process = subprocess.Popen(
                [*self.command, "--control-fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=self.environment,
            )
        return ours

    async def kill(self) -> None:
        """End the process as `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            await asyncio.get_running_loop().run_in_executor(None, self.process.wait)

    async def secrets(self, *extra: OpenedSecret, base: str = "") -> None:
        """One key for each provider, both at the upstream."""
        url = base or f"http://127.0.0.1:{self.upstream.port}"
        await self.client.set_secrets(
            [
                OpenedSecret(TENANT, "anthropic", Provider.ANTHROPIC, url, Secret(KEY)),
                OpenedSecret(TENANT, "openai", Provider.OPENAI, url, Secret(KEY)),
                *extra,
            ]
        )

    async def attach(
        self,
        number: int = 1,
        *,
        policy: EgressPolicy | None = None,
        secrets: tuple[str, ...] = ("anthropic", "openai"),
        listeners: list[Listener] | None = None,
        grant: Grant | None = None,
        repos: tuple[RepoGrant, ...] = (),
        push: PushPolicy | None = None,
        route: Route | None = None,
    ) -> BoxEnd:
        """A sandbox with listeners on loopback, or on given sockets."""
        own = listeners if listeners is not None else loopback_listeners()
        token = f"corral-token-{number}"
        sandbox = SandboxId(f"{number:016x}")
        attachment = Attachment(
            sandbox,
            TENANT,
            f"box-{number}",
            grant or a_grant(sandbox, token, secrets),
            policy or EgressPolicy(),
            Secret(f"seed-{number}"),
            repos=repos,
            push=push or PushPolicy(),
            route=route or Route(),
        )
        ports = {listener.kind: listener.sock.getsockname()[1] for listener in own}
        try:
            await self.client.attach(attachment, own)
        finally:
            for listener in own:
                listener.sock.close()
        return BoxEnd(sandbox, token, ports)

    async def audit(self, kind: str, decision: str) -> AuditRecord:
        """The first record of a kind and decision, once it is there."""
        async with asyncio.timeout(20):
            while True:
                for record in self.audits:
                    if (record.kind, record.decision) == (kind, decision):
                        return record
                await self.client.ping()


def a_grant(sandbox: SandboxId, token: str, secrets: tuple[str, ...]) -> Grant:
    """A grant with this token."""
    hashed = hashlib.sha256(token.encode()).hexdigest()
    return Grant(GrantId("g"), TENANT, sandbox, hashed, secrets, datetime.now(UTC))


def loopback_listeners() -> list[Listener]:
    """Sockets on free ports of loopback, for each kind."""
    found = []
    for kind, port in ((ListenerKind.HTTP, 80), (ListenerKind.TLS, 443), (ListenerKind.DNS_TCP, 53)):
        sock = socket.create_server(("127.0.0.1", 0))
        found.append(Listener(kind, port, sock))
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return [*found, Listener(ListenerKind.DNS_UDP, 53, sock)]


def _program(seconds: Mapping[str, float]) -> list[str]:
    if not seconds:
        return ["-m", "corral.gateway.main"]
    lines = ["import sys", "from corral.gateway import main"]
    for name, value in seconds.items():
        module, _, constant = name.partition(".")
        lines += [
            f"from corral.gateway import {module}",
            f"assert {constant!r} in vars({module})",
            f"{module}.{constant} = {value}",
        ]
    return ["-c", "\n".join([*lines, "sys.exit(main.main())"])]


@contextlib.asynccontextmanager
async def gateway(
    *,
    prefix: list[str] | None = None,
    environment: dict[str, str] | None = None,
    uid: int | None = None,
    ledger: Ledger | None = None,
    on_ask: OnAsk = refuse_all,
    inspector: Inspector | None = None,
    journals: Journals | None = None,
    seconds: Mapping[str, float] | None = None,
) -> AsyncIterator[Bed]:
    """A gateway process, an upstream and a client session; `ledger` takes the place of one that takes everything.

    `prefix` is put before the command. `seconds`: other values of the gateway's own times, as `module.NAME`, where a test
    cannot wait for as long as they are.
    """
    bed: Bed | None = None

    async def on_audit(records: Sequence[AuditRecord]) -> None:
        if bed is not None:
            await bed.recording.wait()
            bed.audits.extend(records)

    own = TestLedger()
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    async with (
        Upstream().running() as upstream,
        aiohttp.ClientSession(auto_decompress=False) as http,
        GatewayClient(
            ledger=ledger or own,
            on_audit=on_audit,
            on_ask=on_ask,
            inspector=lambda: inspector,
            journals=journals,
        ) as client,
    ):
        command = [*(prefix or []), sys.executable, *_program(seconds or {})]
        full = {**clean, "PYTHONPATH": str(SOURCE), **(environment or {})}
        bed = Bed(upstream, client, http, command, full, own)
        bed.taking.set()
        bed.recording.set()
        try:
            await client.reattach(bed.spawn())
            await bed.secrets()
            yield bed
        finally:
            await bed.kill()


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """A gateway without privileges of any kind needed: listeners on loopback."""
    async with gateway() as found:
        yield found


@pytest.fixture
def make_gateway() -> Callable[..., contextlib.AbstractAsyncContextManager[Bed]]:
    """`gateway`, for tests that give it options."""
    return gateway
