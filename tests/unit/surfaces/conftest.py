"""The API over a small engine in memory, and the SDK and CLI over that API, without sockets."""

import asyncio
import shlex
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx2
import pytest
import uvicorn
from starlette.requests import Request

from corral.api.app import create_app
from corral.cli.app import App
from corral.cli.main import run
from corral.engine.engine import Engine
from corral.engine.plan import CreateRequest, checked
from corral.engine.ports import Entry, EntryKind, ModelPrice, WatchEvent, WatchEventKind
from corral.engine.processes import Chunk, Ended, Output, RunResult, StartRequest
from corral.errors import Conflict, InvalidInput, NotFound, Unauthenticated
from corral.model import budget
from corral.model.approval import Approval, ApprovalId, Kind, Question, Status, bounded
from corral.model.approval import Scope as Reach
from corral.model.audit import AuditCheck, AuditEntry
from corral.model.binding import Binding
from corral.model.egress import EgressPolicy, HostRule
from corral.model.events import ApprovalEvent, BudgetEvent, LifecycleEvent
from corral.model.events import Event as Told
from corral.model.grants import Grant, ModelRules
from corral.model.ids import GrantId, LayerDigest, ProcessId, SandboxId, TemplateId, TenantId
from corral.model.lifecycle import Event, State, advance
from corral.model.process import Exit, ProcessInfo, ProcessSpec, Stream, TerminalSize
from corral.model.receipt import ChangedFile, DeniedSum, MadeCommit, Past, Pushed, Receipt, Work
from corral.model.sandbox import Isolation, Limits, Sandbox, SandboxSpec, Stats
from corral.model.secrets import ApiKeyInfo, Identity, Provider, Secret, SecretForm, SecretInfo
from corral.model.template import Assignment, Template, TemplateConfig
from corral.model.usage import Tokens, UsageTotal
from corral.sdk.client import AsyncClient, Client
from corral.sdk.settings import Settings

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TENANT = TenantId("default")
KEY = "sk-canary-0123456789"


class FakeSandboxes:
    def __init__(self) -> None:
        self.by_id: dict[str, Sandbox] = {}
        self.history: list[LifecycleEvent] = []
        self.requests: list[CreateRequest] = []

    def get(self, tenant: TenantId, ref: str) -> Sandbox:
        for item in self.by_id.values():
            if ref in (item.id, item.spec.name) and item.spec.tenant == tenant:
                return item
        raise NotFound(f"there is no sandbox {ref!r}", "list what exists: `corral ls`")

    def list(self, tenant: TenantId, labels: dict[str, str] | None = None) -> Sequence[Sandbox]:
        wanted = (labels or {}).items()
        return [s for s in self.by_id.values() if s.spec.tenant == tenant and wanted <= s.spec.labels.items()]

    async def create(self, tenant: TenantId, request: CreateRequest) -> Sandbox:
        checked(request)
        self.requests.append(request)
        number = len(self.requests)
        name = request.name or f"brave-otter-{number}"
        if any(item.spec.name == name for item in self.by_id.values()):
            raise Conflict(f"the name {name!r} is taken", "choose another")
        if request.progress is not None:
            request.progress("unpacking\x1b[2J")
            threading.Thread(target=request.progress, args=("from a thread",)).start()
        spec = SandboxSpec(
            id=SandboxId(f"{number:016x}"),
            tenant=tenant,
            name=name,
            template=TemplateId("00000000000000aa"),
            template_name="base",
            isolation=request.isolation or Isolation.CONTAINER,
            runtime=request.runtime or "runc",
            limits=request.limits or Limits(),
            env=request.env,
            labels=request.labels,
            user=request.user or "user",
            workdir=request.workdir or "/home/user",
            egress=EgressPolicy((HostRule("example.org"),)),
            secrets=request.secrets or (),
            created_at=NOW,
            ttl=request.ttl,
            agent=request.agent,
            repo=request.repo,
            branch=request.branch,
        )
        return self._put(Sandbox(spec, State.RUNNING, NOW))

    def _put(self, sandbox: Sandbox) -> Sandbox:
        self.by_id[sandbox.id] = sandbox
        self.history.append(
            LifecycleEvent(
                len(self.history) + 1, TENANT, sandbox.id, sandbox.spec.name, sandbox.state, "why\x1b[0m", NOW
            )
        )
        return sandbox

    def _advance(self, ref: str, event: Event) -> Sandbox:
        sandbox = self.get(TENANT, ref)
        state = advance(sandbox.state, event)
        return self._put(sandbox.with_state(State.RUNNING if state is State.STARTING else state, NOW))

    async def start(self, tenant: TenantId, ref: str, *, ttl: int | None = None) -> Sandbox:
        return self._advance(ref, Event.START)

    async def stop(
        self, tenant: TenantId, ref: str, grace: float = 10.0, *, endless: bool = False
    ) -> Sandbox:
        if endless:
            await self.set_ttl(tenant, ref, None)
        return self._advance(ref, Event.STOP)

    async def pause(self, tenant: TenantId, ref: str, *, memory: bool = False) -> Sandbox:
        return self._advance(ref, Event.PAUSE)

    async def resume(self, tenant: TenantId, ref: str) -> Sandbox:
        return self._advance(ref, Event.RESUME)

    async def remove(self, tenant: TenantId, ref: str) -> None:
        del self.by_id[self.get(tenant, ref).id]

    async def set_ttl(self, tenant: TenantId, ref: str, seconds: int | None) -> Sandbox:
        sandbox = self.get(tenant, ref)
        return self._put(replace(sandbox, spec=replace(sandbox.spec, ttl=seconds)))

    async def stats(self, tenant: TenantId, ref: str) -> Stats:
        self.get(tenant, ref)
        return Stats(memory=1024, pids=3)

    async def usage(self, tenant: TenantId, ref: str) -> Sequence[UsageTotal]:
        self.get(tenant, ref)
        return [UsageTotal("model\x1b]0;x\x07", 2, Tokens(10, 20, 30, 40), 1500, assumed=True)]

    async def events(self, tenant: TenantId, after: int | None = None) -> AsyncIterator[LifecycleEvent]:
        for event in self.history[after or 0 :]:
            yield event
        await asyncio.get_running_loop().create_future()


@dataclass
class FakeProcess:
    info: ProcessInfo
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    stdin: bytearray = field(default_factory=bytearray)
    signals: list[int] = field(default_factory=list)
    sizes: list[TerminalSize] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, code: int, signal: int = 0) -> None:
        self.info = replace(self.info, exit=Exit(code, signal))
        self.changed.set()


class FakeProcesses:
    """Programs: echo, err, fail N, cat (until its input ends), hang (until a signal), big N."""

    def __init__(self, sandboxes: FakeSandboxes) -> None:
        self._sandboxes = sandboxes
        self.all: dict[int, FakeProcess] = {}
        self.cut_after: int | None = None

    async def start(self, tenant: TenantId, ref: str, request: StartRequest) -> ProcessInfo:
        sandbox = self._sandboxes.get(tenant, ref)
        if sandbox.state is not State.RUNNING:
            raise Conflict(f"sandbox {sandbox.spec.name} is {sandbox.state}", "start it")
        spec = ProcessSpec(
            argv=request.argv,
            user=request.user or sandbox.spec.user,
            cwd=request.cwd or sandbox.spec.workdir,
            env=request.env,
            stdin=request.stdin,
            terminal=request.terminal,
            timeout=request.timeout,
            tag=request.tag,
        )
        process = FakeProcess(ProcessInfo(ProcessId(len(self.all) + 1), spec, NOW))
        self.all[process.info.id] = process
        self._begin(process)
        return process.info

    def _begin(self, process: FakeProcess) -> None:
        argv = process.info.spec.argv
        words = shlex.split(argv[2]) if argv[:2] == ("/bin/sh", "-c") else list(argv)
        match words:
            case ["echo", *rest]:
                process.out += " ".join(rest).encode() + b"\n"
                process.end(0)
            case ["err", *rest]:
                process.err += " ".join(rest).encode() + b"\n"
                process.end(0)
            case ["fail", code]:
                process.end(int(code))
            case ["big", count]:
                process.out += bytes(int(count))
                process.end(0)
            case ["env", name]:
                process.out += process.info.spec.env.get(name, "").encode()
                process.end(0)
            case ["cat"] if not process.info.spec.stdin:
                process.end(0)
            case ["cat" | "/run/corral/init" | "hang", *_]:
                return
            case _:
                raise NotFound(f"no program {words[0]!r} in the sandbox", "install it")

    async def run(self, tenant: TenantId, ref: str, request: StartRequest, output_limit: int) -> RunResult:
        info = await self.start(tenant, ref, request)
        async for _ in self.output(tenant, ref, info.id):
            pass
        process = self.all[info.id]
        out, err = bytes(process.out[:output_limit]), bytes(process.err[:output_limit])
        return RunResult(process.info, out, err, max(len(process.out), len(process.err)) > output_limit)

    def list(self, tenant: TenantId, ref: str) -> Sequence[ProcessInfo]:
        self._sandboxes.get(tenant, ref)
        return [process.info for process in self.all.values()]

    def get(self, tenant: TenantId, ref: str, process: ProcessId) -> ProcessInfo:
        self._sandboxes.get(tenant, ref)
        return self._find(process).info

    def _find(self, process: int) -> FakeProcess:
        if process not in self.all:
            raise NotFound(f"no process {process}", "see `corral ps`")
        return self.all[process]

    async def output(
        self,
        tenant: TenantId,
        ref: str,
        process: ProcessId,
        offsets: dict[Stream, int] | None = None,
        *,
        follow: bool = True,
    ) -> AsyncIterator[Output]:
        found = self._find(process)
        at = {Stream.STDOUT: 0, Stream.STDERR: 0, **(offsets or {})}
        while True:
            found.changed.clear()
            for stream, data in ((Stream.STDOUT, found.out), (Stream.STDERR, found.err)):
                while piece := bytes(data[at[stream] : at[stream] + 1024]):
                    yield Chunk(stream, at[stream], piece)
                    at[stream] += len(piece)
                    if self.cut_after is not None:
                        self.cut_after -= 1
                        if self.cut_after < 0:
                            self.cut_after = None
                            return
            if found.info.exit is not None:
                yield Ended(found.info.exit)
            if found.info.exit is not None or not follow:
                return
            await found.changed.wait()

    async def write_stdin(self, tenant: TenantId, ref: str, process: ProcessId, data: bytes) -> None:
        found = self._find(process)
        if not found.info.spec.stdin or found.info.exit is not None:
            raise Conflict("the process's stdin is closed", "start it with stdin open")
        found.stdin += data
        if found.info.spec.argv[-1] == "cat":
            found.out += data
            found.changed.set()

    async def close_stdin(self, tenant: TenantId, ref: str, process: ProcessId) -> None:
        self._find(process).end(0)

    async def resize(self, tenant: TenantId, ref: str, process: ProcessId, size: TerminalSize) -> None:
        found = self._find(process)
        if found.info.spec.terminal is None:
            raise Conflict("the process has no terminal", "start it with a terminal")
        found.sizes.append(size)

    async def signal(self, tenant: TenantId, ref: str, process: ProcessId, number: int) -> None:
        found = self._find(process)
        found.signals.append(number)
        found.end(128 + number, number)

    async def kill(self, tenant: TenantId, ref: str, process: ProcessId) -> None:
        await self.signal(tenant, ref, process, 9)


class FakeFiles:
    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.dirs: set[str] = {"/", "/home", "/home/user"}
        self.links: dict[str, str] = {}
        self.owners: dict[str, str] = {}
        self.modes: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        """Sizes that entries claim, where they lie."""

    async def stat(self, path: str) -> Entry:
        path = path.rstrip("/") or "/"
        name = path.rpartition("/")[2]
        if path in self.links:
            return Entry(path, name, EntryKind.SYMLINK, 0, 0o777, 1000, 1000, 1.5, self.links[path])
        if path in self.content:
            size = self.sizes.get(path, len(self.content[path]))
            mode = self.modes.get(path, 0o644)
            return Entry(path, name, EntryKind.FILE, size, mode, 1000, 1000, 1.5)
        if path in self.dirs:
            return Entry(path, name, EntryKind.DIRECTORY, 0, 0o755, 1000, 1000, 1.5)
        raise NotFound(f"there is no {path!r}", "check the path")

    async def list(self, path: str, depth: int = 1) -> Sequence[Entry]:
        base = path.rstrip("/") + "/"
        everything = {*self.content, *self.dirs, *self.links} - {"/"}
        below = [p for p in everything if p.startswith(base) and p[len(base) :].count("/") < depth]
        return [await self.stat(item) for item in sorted(below)]

    async def read(self, path: str, offset: int = 0, size: int | None = None) -> AsyncIterator[bytes]:
        if path not in self.content:
            raise NotFound(f"there is no {path!r}", "check the path")
        data = self.content[path][offset:] if size is None else self.content[path][offset : offset + size]
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    async def write(self, path: str, data: AsyncIterator[bytes], user: str, mode: int | None = None) -> Entry:
        content = b"".join([chunk async for chunk in data])
        self.content[path], self.owners[path] = content, user
        self.modes[path] = self.modes.get(path, 0o644) if mode is None else mode
        return await self.stat(path)

    async def make_dir(self, path: str, user: str, mode: int = 0o755) -> bool:
        made = path not in self.dirs
        self.dirs.add(path)
        return made

    async def move(self, source: str, target: str) -> Entry:
        await self.stat(source)
        self.content[target] = self.content.pop(source)
        return await self.stat(target)

    async def remove(self, path: str) -> None:
        await self.stat(path)
        self.content.pop(path, None)
        self.dirs.discard(path)

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async def changes() -> AsyncIterator[WatchEvent]:
            yield WatchEvent(WatchEventKind.CREATE, f"{path}/bad-\udcff")

        yield changes()


class FakeTemplates:
    def __init__(self) -> None:
        self.by_name = {"base": template("base")}
        self.given: list[Assignment] = []

    async def history(self, tenant: TenantId, name: str) -> Sequence[Assignment]:
        return [item for item in self.given if item.name.partition(":")[0] == name]

    async def list(self, tenant: TenantId) -> Sequence[Template]:
        return list(self.by_name.values())

    async def get(self, tenant: TenantId, ref: str) -> Template:
        if ref not in self.by_name:
            raise NotFound(f"there is no template {ref!r}", "see `corral template ls`")
        return self.by_name[ref]

    async def remove(self, tenant: TenantId, ref: str) -> None:
        await self.get(tenant, ref)
        del self.by_name[ref]

    def _build(self, name: str, progress: Callable[[str], None]) -> Template:
        progress("step one")
        progress("step two")
        self.by_name[name] = template(name)
        return self.by_name[name]

    async def build_base(self, tenant: TenantId, progress: Callable[[str], None]) -> Template:
        return self._build("base", progress)

    async def build_agent(self, tenant: TenantId, agent: str, progress: Callable[[str], None]) -> Template:
        if agent == "nobody":
            raise InvalidInput("there is no agent 'nobody'", "agents: claude")
        return self._build(agent, progress)

    async def build_image(
        self, tenant: TenantId, name: str, reference: str, progress: Callable[[str], None]
    ) -> Template:
        return self._build(name, progress)

    async def export(self, tenant: TenantId, ref: str) -> AsyncIterator[bytes]:
        await self.get(tenant, ref)
        yield b"archive"


def template(name: str) -> Template:
    return Template(
        TemplateId("00000000000000aa"),
        TENANT,
        name,
        (LayerDigest("sha256:" + "0" * 64),),
        TemplateConfig(),
        2048,
        NOW,
    )


class FakeSecrets:
    def __init__(self) -> None:
        self.values: dict[str, Secret] = {}
        self.forms: dict[str, SecretForm] = {}
        self.rotated: list[tuple[str, bool]] = []

    async def add(
        self,
        tenant: TenantId,
        name: str,
        value: Secret,
        provider: Provider | None,
        base_url: str | None,
        binding: Binding | None,
        form: SecretForm = SecretForm.VALUE,
    ) -> SecretInfo:
        self.values[name], self.forms[name] = value, form
        return self._info(name)

    async def rotate(self, tenant: TenantId, name: str, value: Secret | None) -> SecretInfo:
        if value is not None:
            self.values[name] = value
        self.rotated.append((name, value is None))
        return self._info(name)

    def _info(self, name: str) -> SecretInfo:
        problem = "its refresh token was refused" if name == "codex" else ""
        url = "https://api.example.org"
        return SecretInfo(TENANT, name, Provider.ANTHROPIC, url, NOW, NOW, None, self.forms[name], problem)

    async def list(self, tenant: TenantId) -> Sequence[SecretInfo]:
        return [self._info(name) for name in self.values]

    async def remove(self, tenant: TenantId, name: str) -> None:
        if name not in self.values:
            raise NotFound(f"there is no secret {name!r}", "see `corral secret ls`")
        del self.values[name]


class FakePrices:
    def __init__(self) -> None:
        self.all: list[ModelPrice] = []

    async def set(self, tenant: TenantId, price: ModelPrice) -> None:
        self.all.append(price)

    async def list(self) -> Sequence[ModelPrice]:
        return self.all


class FakeBudgets:
    """Balances of one sandbox and its tenant, as the store makes them."""

    def __init__(self, sandboxes: FakeSandboxes) -> None:
        self._sandboxes = sandboxes
        self.caps: dict[tuple[budget.Scope, budget.Window], int | None] = {}
        self.of: list[TenantId] = []
        self.rates: dict[str | None, budget.Rates] = {}
        self.warned: list[budget.Warned] = []

    def _balances(self, *scopes: budget.Scope) -> list[budget.Balance]:
        tomorrow = datetime(2026, 1, 3, tzinfo=UTC)
        return [
            budget.Balance(scope, window, self._cap(scope, window), 8_500_000, 250_000,
                    default=(scope, window) not in self.caps and (scope, window) == (budget.Scope.SANDBOX, budget.Window.TOTAL),
                    resets_at=tomorrow if window is budget.Window.DAY else None)
            for scope in scopes for window in budget.Window
            if window in (budget.Window.TOTAL, budget.Window.DAY) or (scope, window) in self.caps
        ]  # fmt: skip

    def _cap(self, scope: budget.Scope, window: budget.Window) -> int | None:
        default = 10_000_000 if (scope, window) == (budget.Scope.SANDBOX, budget.Window.TOTAL) else None
        return self.caps.get((scope, window), default)

    async def of_sandbox(self, tenant: TenantId, ref: str) -> list[budget.Balance]:
        self._sandboxes.get(tenant, ref)
        return self._balances(budget.Scope.SANDBOX, budget.Scope.TENANT)

    async def rates_of(self, tenant: TenantId, ref: str | None) -> budget.Rates:
        if ref is not None:
            self._sandboxes.get(tenant, ref)
        return self.rates.get(ref, budget.Rates())

    async def set_rates(
        self, tenant: TenantId, ref: str | None, limits: Mapping[budget.Rate, int | str | None]
    ) -> budget.Rates:
        old = await self.rates_of(tenant, ref)
        self.of.append(tenant)
        given: dict[str, Any] = {
            rate.value: None if limit == "default" else limit for rate, limit in limits.items()
        }
        self.rates[ref] = replace(old, **given)
        return self.rates[ref]

    async def of_tenant(self, tenant: TenantId) -> list[budget.Balance]:
        return self._balances(budget.Scope.TENANT)

    async def set_for_sandbox(
        self, tenant: TenantId, ref: str, window: budget.Window, cap: int | None
    ) -> list[budget.Balance]:
        self.caps[budget.Scope.SANDBOX, window] = cap
        return await self.of_sandbox(tenant, ref)

    async def clear_for_sandbox(
        self, tenant: TenantId, ref: str, window: budget.Window
    ) -> list[budget.Balance]:
        self.caps.pop((budget.Scope.SANDBOX, window), None)
        return await self.of_sandbox(tenant, ref)

    async def set_for_tenant(
        self, tenant: TenantId, window: budget.Window, cap: int | None
    ) -> list[budget.Balance]:
        self.of.append(tenant)
        self.caps[budget.Scope.TENANT, window] = cap
        return await self.of_tenant(tenant)


class FakeModels:
    """Rules of tenants."""

    def __init__(self) -> None:
        self.rules: dict[str, ModelRules] = {}

    async def of(self, tenant: TenantId) -> ModelRules:
        return self.rules.get(tenant, ModelRules())

    async def change(self, tenant: TenantId, rules: ModelRules) -> ModelRules:
        self.rules[tenant] = rules
        return rules


class FakeApprovals:
    """One question of each state, and the answers that were given."""

    def __init__(self) -> None:
        host = bounded(Kind.HOST, "connect to a.com\x1b[2J: docs", {"host": "a.com", "reason": "docs"}, 600)
        push = bounded(Kind.PUSH, "push main", {"refs": "main", "commits": "one\ntwo"}, 600)
        self.all = {
            "1a2b3c4d": self._made("1a2b3c4d", host),
            "5e6f7a8b": replace(self._made("5e6f7a8b", push), status=Status.DENIED, by="me", reason="no"),
        }

    def _made(self, id: str, question: Question) -> Approval:
        box = SandboxId("0" * 16)
        return Approval(
            ApprovalId(id), TENANT, box, "brave-otter", question, NOW, NOW + timedelta(seconds=600)
        )

    async def list(
        self, tenant: TenantId, ref: str | None = None, status: Status | None = None
    ) -> list[Approval]:
        return [item for item in self.all.values() if status in (None, item.status)]

    async def standing(self, tenant: TenantId) -> Sequence[Approval]:
        return [item for item in self.all.values() if item.scope]

    async def get(self, tenant: TenantId, id: str) -> Approval:
        if id not in self.all or tenant != TENANT:
            raise NotFound(f"there is no approval {id!r}", "list them: `corral approvals`")
        return self.all[id]

    async def allow(
        self, tenant: TenantId, id: str, *, scope: Reach | None = None, by: str, reason: str = ""
    ) -> Approval:
        found = await self.get(tenant, id)
        self.all[id] = replace(found, status=Status.ALLOWED, scope=scope or Reach.ONCE, by=by)
        return self.all[id]

    async def deny(self, tenant: TenantId, id: str, *, reason: str = "", by: str) -> Approval:
        self.all[id] = replace(await self.get(tenant, id), status=Status.DENIED, reason=reason, by=by)
        return self.all[id]

    async def follow(self) -> AsyncGenerator[Told, None]:
        for number, item in enumerate(self.all.values(), 1):
            yield ApprovalEvent(number, TENANT, item)


class FakeGrants:
    """The grant of each sandbox, changed as asked."""

    def __init__(self, sandboxes: FakeSandboxes) -> None:
        self._sandboxes = sandboxes
        self.of: dict[str, Grant] = {}
        self.changes: list[dict[str, Any]] = []

    async def show(self, tenant: TenantId, ref: str) -> tuple[Sandbox, Grant]:
        sandbox = self._sandboxes.get(tenant, ref)
        grant = Grant(GrantId("g"), TENANT, sandbox.id, "00", ("anthropic",), NOW)
        return sandbox, self.of.setdefault(sandbox.id, grant)

    async def list(self, tenant: TenantId) -> Sequence[tuple[Sandbox, Grant]]:
        return [await self.show(tenant, sandbox.id) for sandbox in self._sandboxes.list(tenant)]

    async def change(self, tenant: TenantId, ref: str, **changes: Any) -> tuple[Sandbox, Grant]:
        sandbox, grant = await self.show(tenant, ref)
        self.changes.append(changes)
        models = changes.get("models") or grant.models
        self.of[sandbox.id] = replace(grant, models=models)
        return await self.show(tenant, ref)

    async def renew(self, tenant: TenantId, ref: str, **options: Any) -> tuple[Sandbox, Grant]:
        sandbox, grant = await self.show(tenant, ref)
        self.changes.append(options)
        self.of[sandbox.id] = replace(grant, revoked_at=None)
        return await self.show(tenant, ref)

    async def revoke(self, tenant: TenantId, ref: str, secrets: Sequence[str]) -> tuple[Sandbox, Grant]:
        sandbox, grant = await self.show(tenant, ref)
        self.of[sandbox.id] = replace(grant, revoked_at=NOW)
        return await self.show(tenant, ref)


class FakeAudit:
    """Three records, of which one names a sandbox, and a receipt."""

    def __init__(self) -> None:
        self.fault = ""
        self.asked: list[tuple[str | None, datetime | None]] = []

    async def page(
        self, tenant: TenantId, ref: str | None = None, *, since: datetime | None = None, after: int = 0
    ) -> list[AuditEntry]:
        self.asked.append((ref, since))
        box = SandboxId("0" * 16)
        return [
            AuditEntry(n, NOW, TENANT, box if n == 2 else None, "gateway.tls", {"host": f"h{n}\x1b[2J"}, "ab")
            for n in range(after + 1, 4)
        ]

    async def check(self) -> AuditCheck:
        return AuditCheck(3, self.fault)

    async def receipt(self, tenant: TenantId, ref: str) -> Receipt:
        if ref != "gone":
            raise NotFound(f"there is no sandbox {ref!r}", "list yours with `corral ls`")
        work = Work(
            NOW,
            (ChangedFile("a\x1b[31m.py", 3, 1), ChangedFile("b.bin", None, None)),
            (MadeCommit("c" * 40, "agent", "fix it\x07"),),
            40,
            1,
        )
        box = Past(SandboxId("0" * 16), TENANT, "gone", NOW, NOW, "container", "runc", repo="/src", work=work)
        usage = UsageTotal("m", 2, Tokens(10, 20, 30, 40), 1500, assumed=True)
        denied = DeniedSum("dns", "evil.example", "host-not-allowed", 7, NOW)
        pushed = Pushed(NOW, "denied", {"host": "git.example", "refs": "main"})
        approvals = tuple((await FakeApprovals().list(TENANT))[1:])
        return Receipt(box, (usage,), approvals, (pushed,), (denied,), 7, {"tls": 3})


class FakeAgents:
    def __init__(self, processes: FakeProcesses) -> None:
        self._processes = processes
        self.prompts: list[tuple[str | None, str | None]] = []

    async def start(self, tenant: TenantId, ref: str, prompt: str | None, model: str | None) -> ProcessInfo:
        self.prompts.append((prompt, model))
        request = StartRequest(("echo", "done\x1b[31m:", prompt or ""), tag="agent")
        return await self._processes.start(tenant, ref, request)

    async def attach_command(self, tenant: TenantId, ref: str) -> tuple[str, ...]:
        raise Conflict("no agent's terminal is open in this sandbox", "start one")

    def names(self) -> tuple[str, ...]:
        return ("claude", "codex")


class FakeRepos:
    async def diff(self, tenant: TenantId, ref: str) -> AsyncIterator[bytes]:
        yield b"--- a\n+++ b\n+caf"
        yield "é\n".encode()[1:] + b"\n"

    async def pull(self, tenant: TenantId, ref: str, target: str | None) -> dict[str, Any]:
        return {
            "ref": "refs/corral/box",
            "repository": target,
            "findings": [{"kind": "hook", "path": "a\x1bb"}],
        }


@dataclass
class FakeEngine:
    sandboxes: FakeSandboxes
    processes: FakeProcesses
    templates: FakeTemplates
    secrets: FakeSecrets
    prices: FakePrices
    budgets: FakeBudgets
    grants: FakeGrants
    agents: FakeAgents
    repos: FakeRepos
    files: FakeFiles
    approvals: FakeApprovals = field(default_factory=FakeApprovals)
    models: FakeModels = field(default_factory=FakeModels)
    audit: FakeAudit = field(default_factory=FakeAudit)
    api_keys: "FakeKeys" = field(default_factory=lambda: FakeKeys())
    config: dict[str, Any] = field(default_factory=lambda: {"api.listen": "", "egress.networks": []})

    async def files_of(self, tenant: TenantId, ref: str) -> FakeFiles:
        self.sandboxes.get(tenant, ref)
        return self.files

    async def checkpoint(
        self,
        tenant: TenantId,
        ref: str,
        name: str,
        *,
        memory: bool = False,
        redact: bool = False,
        by: str = "",
    ) -> Template:
        self.sandboxes.get(tenant, ref)
        return template(name)

    async def doctor(self, deep: bool) -> Sequence[dict[str, Any]]:
        return [
            {"name": "kernel", "status": "ok", "message": "6.18"},
            {
                "name": "runsc",
                "status": "fail",
                "message": "not found",
                "hint": "run `make setup`",
                "more": 1,
            },
        ]

    async def denials(self, tenant: TenantId, ref: str) -> Sequence[dict[str, Any]]:
        self.sandboxes.get(tenant, ref)
        return [{"at": "2026", "kind": "dns", "host": "evil\x1b[2J.example"}]

    def config_get(self) -> dict[str, Any]:
        return self.config

    async def config_set(self, key: str, value: Any) -> None:
        if key not in self.config:
            raise InvalidInput(f"there is no setting {key!r}", "settings: api.listen")
        self.config[key] = value

    async def webhook_key(self) -> Secret:
        return Secret("whk-0123")

    async def follow_events(self, tenant: TenantId, after: int | None) -> AsyncGenerator[Told, None]:
        if after == 1:  # as a client of approvals asks
            async for approval in self.approvals.follow():
                yield approval
        for warned in self.budgets.warned:
            yield BudgetEvent(1, "box\x1b[2J", warned, NOW)
        async for event in self.sandboxes.events(tenant, after):
            yield event

    @property
    def keys(self) -> "FakeKeys":
        return self.api_keys


class FakeKeys:
    def __init__(self) -> None:
        self.all: list[ApiKeyInfo] = []

    async def create(self, tenant: TenantId, label: str) -> Secret:
        self.all.append(ApiKeyInfo(f"{len(self.all):012x}", label, NOW))
        return Secret(KEY)

    async def list(self, tenant: TenantId) -> Sequence[ApiKeyInfo]:
        return self.all

    async def revoke(self, tenant: TenantId, ref: str) -> ApiKeyInfo:
        for item in self.all:
            if ref in (item.id, item.label):
                self.all.remove(item)
                return item
        raise NotFound(f"there is no API key {ref!r}", "list yours: `corral key ls`")


@pytest.fixture
def engine() -> FakeEngine:
    sandboxes = FakeSandboxes()
    processes = FakeProcesses(sandboxes)
    return FakeEngine(
        sandboxes,
        processes,
        FakeTemplates(),
        FakeSecrets(),
        FakePrices(),
        FakeBudgets(sandboxes),
        FakeGrants(sandboxes),
        FakeAgents(processes),
        FakeRepos(),
        FakeFiles(),
    )


async def _authenticate(request: Request) -> Identity:
    if request.headers.get("authorization", "") == "Bearer wrong":
        raise Unauthenticated("the API key is not valid")
    if request.headers.get("authorization", "") == "Bearer of-acme":
        return Identity(TenantId("acme"), ApiKeyInfo("0a1b2c3d", "ci", NOW))
    return Identity(TENANT)


@pytest.fixture(scope="session")
def one_app() -> Any:
    return create_app(cast(Engine, None), authenticate=_authenticate, names=["corral.example"])


@pytest.fixture
def app(one_app: Any, engine: FakeEngine) -> Any:
    one_app.state.engine = engine
    return one_app


@pytest.fixture
async def http(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:7070") as client:
        yield client


@pytest.fixture(scope="session")
def served(one_app: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The application behind a unix socket, as the daemon serves it."""
    path = tmp_path_factory.mktemp("served") / "api.sock"
    server = uvicorn.Server(uvicorn.Config(one_app, uds=str(path), lifespan="off", log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield Settings(data_dir=path.parent, socket=path, autostart=False)
    server.should_exit = server.force_exit = True  # whoever still follows something
    thread.join()


@pytest.fixture
async def async_client(app: Any, served: Settings) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(where=served) as client:
        yield client


@pytest.fixture
def client(app: Any, served: Settings) -> Iterator[Client]:
    with Client(where=served) as client:
        yield client


@dataclass
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def corral(client: Client, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `corral ARGS` and gives its exit code and output."""

    def invoke(*args: str) -> Ran:
        code = run(list(args), App(client))
        out, err = capfdbinary.readouterr()
        return Ran(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    return invoke
