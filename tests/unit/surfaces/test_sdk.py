"""The SDK over the API: both clients, errors, streams that break."""

import asyncio
import base64
import inspect
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import make_certificate

import corral as package
from corral.errors import (
    CommandFailed,
    Conflict,
    CorralError,
    DaemonUnreachable,
    InvalidInput,
    NotFound,
    Timeout,
    UpstreamFailed,
)
from corral.model.process import Stream
from corral.protocol.base import Done
from corral.sdk.async_sandbox import AsyncFiles, AsyncProcess, AsyncSandbox
from corral.sdk.client import AsyncClient, Client
from corral.sdk.operations import Event, LongCall, Request, reply
from corral.sdk.process_calls import RECONNECT_PAUSES, Follower
from corral.sdk.results import CommandResult
from corral.sdk.sandbox import Files, Process, Sandbox
from corral.sdk.settings import Settings, settings


def test_a_sandbox_is_made_used_and_killed(client: Client, engine: Any) -> None:
    lines: list[str] = []
    with Sandbox.create("base", client=client, name="box", env={"A": "1"}, progress=lines.append) as box:
        assert box.state == "running"
        assert box.exec("echo hello 'a  b'").stdout == "hello a  b\n"
        assert box.exec(["echo", "$HOME"]).stdout == "$HOME\n"
        assert box.exec("cat", input="given").stdout == "given"
        assert box.exec("err oops").stderr == "oops\n"
        assert box.exec("fail 7").exit_code == 7
        assert box.exec("big 100", output_limit=10) == CommandResult(0, bytes(10), b"", truncated=True)
        assert box.pause().state == "paused"
        assert box.resume().state == "running"
        assert box.set_ttl(60).info.ttl == 60
        assert box.stats().memory == 1024
        assert box.usage().cost == 1500
        assert box.set_budget(20_000_000).accounts[0].cap == 20_000_000
        assert box.set_budget("default").accounts[0].default
        assert box.budget().accounts[0].warning == 80
    assert "from a thread" in lines
    assert engine.sandboxes.by_id == {}
    assert engine.sandboxes.requests[0].env == {"A": "1"}


def test_a_sandbox_that_is_connected_to_is_kept(client: Client, engine: Any) -> None:
    Sandbox.create(client=client, name="box")
    with Sandbox.connect("box", client=client) as box:
        assert box.name == "box"
    assert [item.name for item in Sandbox.list(client=client)] == ["box"]
    assert Sandbox.list({"a": "b"}, client=client) == []


def test_check_raises_for_commands_that_fail(client: Client) -> None:
    box = Sandbox.create(client=client)
    with pytest.raises(CommandFailed) as failed:
        box.exec("fail 3", check=True)
    assert failed.value.exit_status == 3
    assert failed.value.hint
    with pytest.raises(Timeout):
        CommandResult(137, b"", b"", reason="timeout").check()


def test_errors_of_the_api_are_the_sdks(client: Client) -> None:
    with pytest.raises(NotFound) as error:
        Sandbox.connect("absent", client=client)
    assert error.value.hint == "list what exists: `corral ls`"
    box = Sandbox.create(client=client, name="box")
    with pytest.raises(Conflict):
        box.resume()
    with pytest.raises(InvalidInput):
        client.create_sandbox(name="No Good")
    with pytest.raises(InvalidInput):
        box.exec([])
    with pytest.raises(InvalidInput):
        client.build_template("agent", agent="nobody")


def test_a_background_process(client: Client, engine: Any) -> None:
    box = Sandbox.create(client=client)
    process = box.spawn("cat", stdin=True, tag="mine")
    process.write(b"one ")
    process.write(iter([b"t", b"wo"]))
    process.close_stdin()
    again = box.process(process.id)
    assert [piece.text for piece in again.output()] == ["one two"]
    assert again.exit_code == 0
    assert process.wait().stdout == "one two"
    assert box.processes()[0].tag == "mine"
    hanging = box.spawn(["hang"], terminal=(30, 100))
    hanging.resize(40, 120)
    hanging.kill()
    assert hanging.wait() == CommandResult(137, b"", b"", signal=9)
    assert (engine.processes.all[2].sizes[0].rows, engine.processes.all[2].signals) == (40, [9])


def test_output_goes_on_where_a_connection_broke(client: Client, engine: Any) -> None:
    box = Sandbox.create(client=client)
    process = box.spawn("big 5000")
    engine.processes.cut_after = 2
    pieces = list(process.output())
    assert sum(len(piece.data) for piece in pieces) == 5000
    assert [piece.offset for piece in pieces] == [0, 1024, 2048, 3072, 4096]
    assert process.exit_code == 0


class Events:
    """A transport, sync and async, on which long work gives its result before the stream ends, or breaks."""

    def __init__(self, end: DaemonUnreachable | None) -> None:
        self.end = end
        self.read = False

    def events(self, request: Request) -> Iterator[Event]:
        yield Event("result", '{"ok": true}')
        self.read = True
        if self.end is not None:
            raise self.end


class AsyncEvents(Events):
    async def events(self, request: Request) -> AsyncIterator[Event]:  # type: ignore[override]
        for event in super().events(request):
            yield event


@pytest.mark.parametrize("end", [None, DaemonUnreachable("broke off")])
async def test_long_work_is_read_to_its_end_so_that_the_next_call_finds_a_connection(
    end: DaemonUnreachable | None,
) -> None:
    call = LongCall(Request("POST", "/v1/x"), reply(Done))
    transport, asynchronous = Events(end), AsyncEvents(end)
    assert call.run(transport).ok  # type: ignore[arg-type]
    assert (await call.run_async(asynchronous)).ok  # type: ignore[arg-type]
    assert transport.read
    assert asynchronous.read


def test_a_follower_gives_up_after_a_while() -> None:
    follower = Follower("box", 1)
    error = DaemonUnreachable("gone")
    pauses = len(RECONNECT_PAUSES)
    assert all(follower.pause(error) > 0 for _ in range(pauses))
    with pytest.raises(DaemonUnreachable):
        follower.pause(error)
    assert follower.offsets == {Stream.STDOUT: 0, Stream.STDERR: 0}


def test_files(client: Client, engine: Any) -> None:
    files = Sandbox.create(client=client).files
    assert files.write("/home/user/a b", "text é", mode=0o600).mode == 0o600
    assert files.read("/home/user/a b") == "text é"
    assert files.write("/home/user/\udcff", b"\xff").os_path == "/home/user/\udcff"
    assert files.read_bytes("/home/user/\udcff") == b"\xff"
    assert [entry.name for entry in files.list("/home/user")] == ["a b", "\udcff"]
    assert b"".join(files.stream("/home/user/a b")) == "text é".encode()
    assert files.mkdir("/srv") is True
    assert files.move("/home/user/a b", "/srv/c").path == "/srv/c"
    assert files.stat("/srv/c").kind == "file"
    files.remove("/srv/c")
    assert [change.os_path for change in files.watch("/srv")] == ["/srv/bad-\udcff"]


def test_catalog(client: Client, engine: Any) -> None:
    assert client.build_template("image", name="deb", image="debian:12").name == "deb"
    assert [item.name for item in client.list_templates()] == ["base", "deb"]
    client.remove_template("deb")
    box = Sandbox.create(client=client)
    assert client.checkpoint(box.id, "ready").name == "ready"
    assert client.put_secret("anthropic", "sk-canary-123").name == "anthropic"
    assert engine.secrets.values["anthropic"].reveal() == "sk-canary-123"
    client.remove_secret("anthropic")
    assert client.set_tenant_budget(7, daily=True, tenant="acme").accounts[1].cap == 7
    assert [account.cap for account in client.tenant_budget().accounts] == [None, 7]
    client.set_price("local", "*", input=1, output=2, cache_read=3, cache_write=4)
    assert client.list_prices()[0].output == 2
    assert client.set_config("egress.networks", ["10.0.0.0/8"])["egress.networks"] == ["10.0.0.0/8"]
    assert client.list_agents() == ["claude", "codex"]
    assert client.doctor()[1].model_dump()["more"] == 1
    assert client.health().status == "ok"
    assert b"".join(client.diff(box.id)).startswith(b"--- a")
    assert client.pull(box.id, "/repo")["repository"] == "/repo"
    assert [event.state for event in client.events(0, wait=False)] == ["running"]


async def test_the_asynchronous_client_does_the_same(async_client: AsyncClient, engine: Any) -> None:
    async with await AsyncSandbox.create(client=async_client, name="box") as box:
        assert (await box.exec("echo hello", check=True)).stdout == "hello\n"
        process = await box.spawn("cat", stdin=True)
        await process.write(b"x")
        await process.close_stdin()
        assert [piece.text async for piece in process.output()] == ["x"]
        assert (await process.wait()).exit_code == 0
        await box.files.write("/home/user/a", iter([b"1", b"2"]))
        assert await box.files.read("/home/user/a") == "12"
        assert [e.name for e in await box.files.list("/home/user")] == ["a"]
        engine.processes.cut_after = 1
        big = await box.spawn("big 3000")
        assert len((await big.wait()).stdout_bytes) == 3000
        with pytest.raises(CommandFailed):
            await box.exec("fail 1", check=True)
    assert engine.sandboxes.by_id == {}
    assert await AsyncSandbox.list(client=async_client) == []
    with pytest.raises(NotFound):
        await AsyncSandbox.connect("box", client=async_client)


@pytest.mark.parametrize(
    ("one", "other"),
    [(Client, AsyncClient), (Sandbox, AsyncSandbox), (Process, AsyncProcess), (Files, AsyncFiles)],
)
def test_both_flavours_have_the_same_methods_with_the_same_arguments(one: type, other: type) -> None:
    def surface(cls: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(cls, callable)
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in methods
            if not name.startswith("_")
        }

    asynchronous = surface(other)
    if other is AsyncSandbox:
        del asynchronous["close"]  # its client belongs to an event loop, so it is the sandbox's own
    assert surface(one) == asynchronous
    for name in surface(one):
        assert getattr(one, name).__doc__, name
        assert getattr(other, name).__doc__, name


def test_every_route_has_an_operation_in_the_client(app: Any) -> None:
    routes = {op["operationId"] for path in app.openapi()["paths"].values() for op in path.values()}
    renamed = {
        "read_file": "stream_file",
        "get_context": "has_context",
        "get_stats": "stats",
        "get_usage": "usage",
        "get_budget": "budget",
        "get_tenant_budget": "tenant_budget",
        "get_denials": "denials",
        "follow_events": "events",
        "get_diff": "diff",
        "make_checkpoint": "checkpoint",
        "get_agent_terminal": "agent_terminal",
        "get_webhook_key": "webhook_key",
        "get_receipt": "receipt",
        "get_disk": "disk",
        "prune_disk": "prune",
        "get_grant": "grant",
        "get_models": "models",
        "get_rates": "rates",
        "get_tenant_rates": "tenant_rates",
    }
    for route in routes:
        assert hasattr(Client, renamed.get(route, route)), route


def test_public_names_are_there_on_first_use() -> None:
    assert package.Sandbox is Sandbox
    assert package.AsyncClient is AsyncClient
    assert "CommandResult" in dir(package)
    with pytest.raises(AttributeError):
        package.nothing  # noqa: B018  the access is the test


Answer = Callable[[BaseHTTPRequestHandler], tuple[int, bytes] | None]


@contextmanager
def answering(answer: Answer, key: str = "", tls: ssl.SSLContext | None = None) -> Iterator[Settings]:
    """Where something answers that is no daemon. None: it ends the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            found = answer(self)
            if found is None:
                self.close_connection = True
                return
            self.send_response(found[0])
            self.send_header("Content-Length", str(len(found[1])))
            self.end_headers()
            self.wfile.write(found[1])

        do_GET = do_POST = _answer  # noqa: N815  as BaseHTTPRequestHandler has them

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever).start()
        try:
            scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
            yield settings(f"{scheme}://{host}:{server.server_port}", key, environ={})
        finally:
            server.shutdown()


HEALTHY = b'{"status": "ok", "version": "1"}'


async def both(where: Settings, ask: str, *args: object) -> list[object]:
    """What each client says, or raises."""
    found: list[object] = []
    try:
        with Client(where=where) as client:
            found.append(await asyncio.to_thread(getattr(client, ask), *args))
    except CorralError as error:
        found.append(error)
    try:
        async with AsyncClient(where=where) as other:
            found.append(await getattr(other, ask)(*args))
    except CorralError as error:
        found.append(error)
    return found


async def test_answers_that_are_none_of_ours_are_told() -> None:
    with answering(lambda asked: (502 if "health" in asked.path else 200, b"<html>proxy</html>")) as where:
        for error in await both(where, "health"):
            assert isinstance(error, UpstreamFailed)
            assert "HTTP 502" in error.message
        for error in await both(where, "list_sandboxes"):
            assert isinstance(error, UpstreamFailed)
            assert "not understood" in error.message


async def test_only_gets_are_sent_again() -> None:
    seen: list[str] = []

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes] | None:
        seen.append(asked.command)
        return None if len(seen) % 3 else (200, HEALTHY)

    with answering(answer) as where:
        assert [found.version for found in await both(where, "health")] == ["1", "1"]  # type: ignore[attr-defined]
        assert seen == ["GET"] * 6
        seen.clear()
        for error in await both(where, "pause_sandbox", "box"):
            assert isinstance(error, DaemonUnreachable)
        assert seen == ["POST"] * 2


async def test_the_key_goes_into_a_header_only() -> None:
    seen: list[str | None] = []

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        seen.append(asked.headers["authorization"])
        assert "canary" not in asked.path
        return 200, HEALTHY

    with answering(answer, "sk-canary") as where:
        assert "canary" not in repr(where)
        await both(where, "health")
    assert seen == ["Bearer sk-canary"] * 2


async def test_where_nobody_listens_is_told(tmp_path: Path) -> None:
    remote = settings("http://127.0.0.1:9", environ={})
    for where, hint in (
        (remote, "CORRAL_URL"),
        (Settings(tmp_path, tmp_path / "Api.sock", autostart=False), ""),
    ):
        for error in await both(where, "health"):
            assert isinstance(error, DaemonUnreachable)
            assert "no daemon answers at" in error.message
            assert hint in error.hint


async def test_only_a_certificate_that_this_machine_trusts_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        asked.append(request.headers["authorization"])
        return 200, HEALTHY

    context, authority = make_certificate(tmp_path, ["localhost"])
    with answering(answer, "sk-canary", context) as where:
        for error in await both(where, "health"):
            assert isinstance(error, DaemonUnreachable)
            assert "SSL_CERT_FILE" in error.hint
        assert asked == []
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        assert [found.version for found in await both(where, "health")] == ["1", "1"]  # type: ignore[attr-defined]


async def test_an_idle_connection_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon ends it after a while: a request may be on its way just then, and may not be sent twice."""
    ports: list[int] = []

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        ports.append(asked.client_address[1])
        return 200, HEALTHY

    with answering(answer) as where, Client(where=where) as client:
        client.health()
        client.health()
        assert len({*ports}) == 1
        monkeypatch.setattr("corral.sdk.transport.KEPT_SECONDS", 0.0)
        client.health()
    assert len({*ports}) == 2


def test_a_client_that_nobody_closes_says_nothing(app: Any, served: Settings) -> None:
    code = f"""
import asyncio
from corral import AsyncClient
from corral.sdk.settings import Settings
async def ask():
    print(await AsyncClient(where=Settings({str(served.data_dir)!r}, {str(served.socket)!r})).list_sandboxes())
asyncio.run(ask())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_many_threads_are_served_at_once_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    all_there = threading.Barrier(50)

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        all_there.wait(30)
        return 200, HEALTHY

    with answering(answer) as where, Client(where=where) as client, ThreadPoolExecutor(50) as pool:
        versions = [asked.result().version for asked in [pool.submit(client.health) for _ in range(50)]]
    assert versions == ["1"] * 50
    assert caplog.records == []


def test_the_environments_proxy_is_used_for_a_daemon_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        asked.append((request.path, request.headers["proxy-authorization"]))
        return 200, HEALTHY

    with answering(answer) as proxy:
        place = proxy.url.removeprefix("http://")
        monkeypatch.setenv("no_proxy", "near.invalid")
        for named in (place, f"http://me:a%40b@{place}"):
            monkeypatch.setenv("http_proxy", named)
            with Client("http://far.invalid:7070", "sk") as client:
                assert client.health().version == "1"
        with Client("http://near.invalid:7070", "sk") as client, pytest.raises(DaemonUnreachable):
            client.health()
    url, credentials = "http://far.invalid:7070/v1/health", base64.b64encode(b"me:a@b").decode()
    assert asked == [(url, None), (url, f"Basic {credentials}")]
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(InvalidInput, match="proxy"):
        Client("http://far.invalid:7070", "sk")


def test_a_source_that_fails_in_the_middle_is_told_as_it_is() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        raise PermissionError("not this one")

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes] | None:
        return None

    with answering(answer) as where, Client(where=where) as client, pytest.raises(PermissionError):
        client.import_template("made", pieces())


@pytest.mark.parametrize("url", ["ftp://x", "localhost:7070", "http://", "http://a:b"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        settings(environ={"CORRAL_URL": url})


def test_the_socket_depends_on_the_data_directory() -> None:
    one, other = settings(environ={}), settings(environ={"CORRAL_DATA_DIR": "/tmp/other"})
    assert one.local
    assert one.socket.name == "api.sock"
    assert one.socket.parent.parent == other.socket.parent.parent
    assert one.socket != other.socket
    assert len(str(other.socket)) < 100
