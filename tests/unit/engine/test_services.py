"""What a template starts: how long it is waited for, at each start and in its build."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.engine.building import Builder, Tally
from corral.engine.processes import Processes, RunResult, StartRequest
from corral.engine.services import Services
from corral.model.build import BuildRequest, Line, Ready, Recipe, Stage, Start
from corral.model.ids import DEFAULT_TENANT, LayerDigest, ProcessId
from corral.model.process import Exit, ProcessInfo
from corral.model.sandbox import Sandbox
from corral.model.service import Service, services_of
from corral.model.template import TemplateConfig

SANDBOX = cast(Sandbox, SimpleNamespace(id="1" * 16, spec=SimpleNamespace(tenant=DEFAULT_TENANT)))


class _Programs:
    """Processes of which the one that was started runs on, and what is run succeeds at once."""

    def __init__(self) -> None:
        self.tries: list[StartRequest] = []

    async def start(self, *_: object) -> ProcessInfo:
        return ProcessInfo(ProcessId(1), cast(Any, None), datetime.now(UTC))

    async def run(self, tenant: str, ref: str, request: StartRequest, limit: int) -> RunResult:
        self.tries.append(request)
        return RunResult(
            ProcessInfo(ProcessId(2), cast(Any, None), datetime.now(UTC), Exit(0)), b"", b"", False
        )


@pytest.mark.parametrize(
    ("services", "limit"),
    [
        (services_of(("serve",), ("sleep", "60"), 600.0), 600.0),
        (services_of(("serve",), ("check",)), 30.0),
        ((Service("db", ("serve",), ("check",), patience=10),), 10.0),
    ],
)
async def test_how_long_one_try_may_take(services: tuple[Service, ...], limit: float) -> None:
    programs = _Programs()
    await Services(cast(Processes, programs)).start(SANDBOX, services, None)
    assert [request.timeout for request in programs.tries] == [limit]


@pytest.mark.parametrize(("ready", "waits"), [((), True), ((Line(Ready(("check",))),), False)])
async def test_a_build_gives_time_to_what_nothing_tells_is_ready(
    ready: tuple[Line, ...], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    template = SimpleNamespace(id="0" * 16, layers=(LayerDigest("sha256:1"),), config=TemplateConfig())

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def create(*_: object) -> Sandbox:
        return SANDBOX

    async def same(*_: object) -> object:
        return template

    async def nothing(*_: object) -> None:
        pass

    @contextlib.asynccontextmanager
    async def within(*_: object) -> AsyncIterator[object]:
        yield template

    monkeypatch.setattr(asyncio, "sleep", sleep)
    parts = SimpleNamespace(
        templates=SimpleNamespace(holding_layers=within, hidden=within, build_base=same, publish=same),
        sandboxes=SimpleNamespace(create=create, remove=nothing),
        leaks=SimpleNamespace(check_settings=nothing),
    )
    recipe = Recipe((Stage("base", (Line(Start(("serve",))), *ready)),))
    request = BuildRequest("t", recipe, settle=20.0)
    await Builder.build(
        cast(Builder, parts), DEFAULT_TENANT, "b" * 16, request, Tally(), lambda step, text, output: None
    )
    assert slept == ([20.0] if waits else [])
