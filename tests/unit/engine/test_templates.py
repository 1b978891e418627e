"""Layers go with the last template that names them, and not while one is being made."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from corral.engine.ports import ImportedImage, Progress
from corral.engine.templates import Templates, config_of
from corral.errors import Conflict, Forbidden, NotFound, UpstreamFailed
from corral.model.build import RegistryLogin
from corral.model.ids import DEFAULT_TENANT, LayerDigest, SandboxId, TenantId
from corral.model.template import Origin, TemplateConfig
from corral.store.store import SqlStore
from corral.testing.fakes import FakeLayers

ONE, TWO = LayerDigest("sha256:" + "1" * 64), LayerDigest("sha256:" + "2" * 64)


class KeptLayers(FakeLayers):
    """A store of layers that holds what was made and not pruned."""

    def __init__(self) -> None:
        super().__init__()
        self.next = ONE
        self.kept: set[LayerDigest] = set()
        self.fetched: list[str] = []

    async def image(
        self, reference: str, progress: Progress, login: RegistryLogin | None = None
    ) -> ImportedImage:
        self.fetched.append(reference)
        self.kept.add(self.next)
        return ImportedImage((self.next,), {}, "", "", "sha256:" + "d" * 64)

    async def prune(self, keep: set[LayerDigest]) -> int:
        self.kept &= keep
        return 0


@pytest.fixture
def layers() -> KeptLayers:
    return KeptLayers()


class _Clock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def templates(layers: KeptLayers, tmp_path: Path) -> AsyncIterator[Templates]:
    async def no_agent(*_: object) -> LayerDigest:
        raise NotImplementedError

    store = await SqlStore.open(f"sqlite:///{tmp_path}/db", tmp_path / "key")
    await store.tenant(DEFAULT_TENANT)
    yield Templates(store, layers, _Clock(), no_agent)
    await store.close()


def silent(_: str) -> None:
    pass


async def test_the_layers_of_a_removed_template_go_at_once(templates: Templates, layers: KeptLayers) -> None:
    await templates.build_image(DEFAULT_TENANT, "mine", "host/image", silent)
    assert layers.kept == {ONE}
    await templates.remove(DEFAULT_TENANT, "mine")
    assert layers.kept == set()


async def test_the_layers_of_a_replaced_template_go_at_once(templates: Templates, layers: KeptLayers) -> None:
    await templates.build_image(DEFAULT_TENANT, "mine", "host/image", silent)
    layers.next = TWO
    await templates.build_image(DEFAULT_TENANT, "mine", "host/image", silent)
    assert layers.kept == {TWO}


def test_an_image_makes_nobody_root() -> None:
    """Only what Corral has exported says that its user may become root."""
    image = ImportedImage((ONE,), {}, "www", "/srv", "sha256:" + "d" * 64)
    assert not config_of(image).sudo
    assert config_of(replace(image, kept=TemplateConfig(sudo=True))).sudo


async def test_nothing_built_takes_the_name_of_a_checkpoint(templates: Templates, layers: KeptLayers) -> None:
    """It holds work that nothing can make again."""
    image = await templates.build_image(DEFAULT_TENANT, "image", "host/image", silent)
    layers.next = TWO
    layers.kept.add(TWO)
    origin = Origin("box", SandboxId("1" * 16))
    mark = await templates.from_layer("mine", image, TWO, image.config, origin, None)
    with pytest.raises(Conflict, match="which would be lost"):
        await templates.build_image(DEFAULT_TENANT, "mine", "host/other", silent)
    assert layers.fetched == ["host/image"]
    with pytest.raises(Conflict, match="which would be lost"):
        await templates.tag(DEFAULT_TENANT, "image", "mine")
    with pytest.raises(Conflict, match="which would be lost"):
        await templates.publish(DEFAULT_TENANT, ("mine",), image.layers, image.config, "build")
    assert mark in await templates.list(DEFAULT_TENANT)
    assert TWO in layers.kept


async def test_nothing_is_kept_of_an_image_that_is_refused(
    templates: Templates, layers: KeptLayers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(tenant: TenantId, held: tuple[LayerDigest, ...], config: TemplateConfig) -> None:
        assert (tenant, held, config.user) == (DEFAULT_TENANT, (ONE,), "root")
        raise Forbidden("the image holds secret mine")

    monkeypatch.setattr(templates, "_check", refuse)
    with pytest.raises(Forbidden):
        await templates.build_image(DEFAULT_TENANT, "mine", "host/image", silent)
    assert (layers.kept, await templates.list(DEFAULT_TENANT)) == (set(), [])


async def test_a_template_gets_all_of_its_names_or_none(templates: Templates, layers: KeptLayers) -> None:
    image = await templates.build_image(DEFAULT_TENANT, "image", "host/image", silent)
    await templates.from_layer("mine", image, TWO, image.config, Origin("box", SandboxId("1" * 16)), None)
    names, before = ("one", "two", "mine"), await templates.list(DEFAULT_TENANT)
    with pytest.raises(Conflict, match="which would be lost"):
        await templates.publish(DEFAULT_TENANT, names, image.layers, image.config, "build")
    with pytest.raises(Conflict, match="which would be lost"):
        await templates.tag(DEFAULT_TENANT, "image", *names)
    assert await templates.list(DEFAULT_TENANT) == before
    with pytest.raises(NotFound):
        await templates.remove(DEFAULT_TENANT, "image", "none")
    assert await templates.list(DEFAULT_TENANT) == before
    made = await templates.publish(DEFAULT_TENANT, names[:2], image.layers, image.config, "build")
    assert made.name == "one"
    assert {item.name for item in await templates.list(DEFAULT_TENANT)} == {"image", *names}


async def test_layers_whose_template_could_not_be_kept_go_at_once(
    templates: Templates, layers: KeptLayers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: LayerDigest) -> int:
        raise UpstreamFailed("no room", "make room")

    monkeypatch.setattr(layers, "size", full)
    with pytest.raises(UpstreamFailed):
        await templates.build_image(DEFAULT_TENANT, "mine", "host/image", silent)
    assert layers.kept == set()


async def test_nothing_goes_while_layers_are_held(templates: Templates, layers: KeptLayers) -> None:
    await templates.build_image(DEFAULT_TENANT, "mine", "host/image", silent)
    async with templates.holding_layers():
        await templates.remove(DEFAULT_TENANT, "mine")
        assert layers.kept == {ONE}
    assert layers.kept == set()


async def test_what_is_made_while_layers_are_removed_stays(templates: Templates, layers: KeptLayers) -> None:
    """A removal that has looked at what is in use does not see a layer whose template comes a moment later."""
    looked, go_on = asyncio.Event(), asyncio.Event()
    prune = layers.prune

    async def slowly(keep: set[LayerDigest]) -> int:
        looked.set()
        await go_on.wait()
        return await prune(keep)

    layers.prune = slowly  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(templates.prune())
        await looked.wait()
        building = tasks.create_task(templates.build_image(DEFAULT_TENANT, "mine", "host/image", silent))
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.set()
    assert layers.kept == set(building.result().layers)
