"""Renewals of setups in the background: one that fails is told, and is not tried with each create."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from corral.engine.plan import CreateRequest
from corral.engine.projects import Projects, _Plan
from corral.engine.templates import Templates
from corral.errors import HostError
from corral.host.tasks import TaskOwner
from corral.model.ids import DEFAULT_TENANT, LayerDigest
from corral.model.project import Setup, SetupStep
from corral.model.template import TemplateConfig
from corral.store.store import SqlStore
from corral.testing.fakes import FakeLayers

FORMER = "starting from the setup as it was; "
MADE = f"{FORMER}a new one is being made"


class _Clock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


class Clean:
    """Finds nothing."""

    async def check_steps(self, *_: object) -> None:
        """Nothing is refused."""


class _Repository(Projects):
    """A setup of one step, whose doing is counted."""

    def __init__(self, templates: Templates, layers: FakeLayers, tasks: TaskOwner) -> None:
        self.files, self.time, self.tried, self.failing = "one", 0.0, 0, False
        self.ended = asyncio.Event()

        async def digest(
            path: str, branch: str | None, patterns: tuple[str, ...], *, required: bool = True
        ) -> str:
            return self.files

        super().__init__(
            layers=layers,
            templates=templates,
            sandboxes=cast(Any, None),
            processes=cast(Any, None),
            driver=cast(Any, None),
            leaks=cast(Any, Clean()),
            tasks=tasks,
            digest=digest,
            strip=cast(Any, None),
            steady=lambda: self.time,
        )

    async def _do(self, *_: object) -> LayerDigest:
        self.tried += 1
        if self.failing:
            raise HostError("npm ci: exit code 1\nno such package")
        return LayerDigest(f"sha256:{self.tried:064}")

    async def _make_quietly(self, plan: _Plan) -> None:
        await super()._make_quietly(plan)
        self.ended.set()

    async def create(self) -> Sequence[str]:
        """What a create is told, once what it began has ended."""
        told: list[str] = []
        setup = Setup("app", (SetupStep("npm ci", ("lock",)),), serve_stale=True)
        await self.complete(
            DEFAULT_TENANT,
            CreateRequest(template="mine", repo="/app", setup=setup, progress=told.append),
        )
        if told == [MADE]:
            await self.ended.wait()
            self.ended.clear()
        return told


@pytest.fixture
async def repository(tmp_path: Path) -> AsyncIterator[_Repository]:
    async def no_agent(*_: object) -> LayerDigest:
        raise NotImplementedError

    store = await SqlStore.open(f"sqlite:///{tmp_path}/db", tmp_path / "key")
    await store.tenant(DEFAULT_TENANT)
    layers = FakeLayers()
    templates = Templates(store, layers, _Clock(), no_agent)
    await templates.publish(DEFAULT_TENANT, ("mine",), (layers.BASE,), TemplateConfig(), "a build")
    async with TaskOwner() as tasks:
        found = _Repository(templates, layers, tasks)
        await found.create()
        found.failing, found.files = True, "two"
        yield found
    await store.close()


async def test_a_renewal_that_failed_is_told_and_waits_longer_each_time(repository: _Repository) -> None:
    assert await repository.create() == [MADE]
    assert repository.tried == 2
    for number, minutes in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):
        times = "once" if number == 1 else f"{number} times"
        told = await repository.create()
        assert told == [
            f"{FORMER}a new one failed {times}, and is tried again in {minutes} min at the earliest: "
            "npm ci: exit code 1 no such package"
        ]
        repository.time += minutes * 60 - 1
        await repository.create()
        assert repository.tried == number + 1
        repository.time += 1
        assert await repository.create() == [MADE]
        assert repository.tried == number + 2


async def test_other_files_are_tried_at_once_and_a_success_ends_it(repository: _Repository) -> None:
    await repository.create()
    repository.files = "three"
    assert await repository.create() == [MADE]
    assert repository.tried == 3
    repository.failing, repository.time = False, 60.0
    assert await repository.create() == [MADE]
    assert await repository.create() == []
    assert repository.tried == 4
