"""Volumes over fakes: what a failure or a crash leaves, who may remove one, and what counts as disk."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest
from tests.unit.engine.test_sandboxes import OTHER, World, world

from corral.engine.plan import CreateRequest
from corral.engine.sandboxes import Sandboxes
from corral.errors import (
    Conflict,
    CorralError,
    DiskFull,
    HostError,
    InvalidInput,
    NoCapacity,
    NotFound,
    Unsupported,
)
from corral.model.capacity import Resource
from corral.model.ids import DEFAULT_TENANT, TenantId, VolumeId
from corral.model.pool import interchangeable
from corral.model.sandbox import GIB, MIB, Limits
from corral.model.volume import VolumeMount, VolumeWish

__all__ = ["world"]
WISH = VolumeWish("data", "/data")
SMALL = Limits(disk=GIB)


@pytest.fixture
async def engine(world: World) -> Sandboxes:
    await world.store.tenant(OTHER)
    return world.engine()


def wanting(*wishes: VolumeWish, name: str = "box") -> CreateRequest:
    return CreateRequest(name=name, volumes=wishes, limits=SMALL)


async def test_a_sandbox_gets_the_volume_that_it_names(world: World, engine: Sandboxes) -> None:
    volume = await world.volumes.create(DEFAULT_TENANT, "data", 64 * MIB)
    assert world.volume_disk.sizes == {volume.id: 64 * MIB}
    made = await engine.create(DEFAULT_TENANT, wanting(WISH, VolumeWish(volume.id, "/ro", read_only=True)))
    assert made.spec.volumes == (
        VolumeMount(volume.id, "data", "/data"),
        VolumeMount(volume.id, "data", "/ro", read_only=True),
    )
    assert world.volumes.users(volume.id) == ["box"]


async def test_a_volume_that_is_mounted_stays_whatever_the_state(world: World, engine: Sandboxes) -> None:
    volume = await world.volumes.create(DEFAULT_TENANT, "data")
    made = await engine.create(DEFAULT_TENANT, wanting(WISH))
    with pytest.raises(Conflict, match="box"):
        await world.volumes.remove(DEFAULT_TENANT, "data")
    await engine.stop(DEFAULT_TENANT, "box")
    with pytest.raises(Conflict, match="box"):
        await world.volumes.remove(DEFAULT_TENANT, volume.id)
    assert world.volumes.list(DEFAULT_TENANT) == [volume]
    await engine.remove(DEFAULT_TENANT, made.id)
    await world.volumes.remove(DEFAULT_TENANT, "data")
    assert (world.volume_disk.sizes, await world.store.volumes()) == ({}, [])


async def test_a_name_is_taken_once_and_only_for_its_tenant(world: World, engine: Sandboxes) -> None:
    mine = await world.volumes.create(DEFAULT_TENANT, "data")
    with pytest.raises(Conflict):
        await world.volumes.create(DEFAULT_TENANT, "data")
    theirs = await world.volumes.create(OTHER, "data")
    assert world.volumes.get(OTHER, "data") == theirs
    for attempt in (
        lambda: world.volumes.get(OTHER, mine.id),
        lambda: world.volumes.resolve(OTHER, [VolumeWish(mine.id, "/data")]),
    ):
        with pytest.raises(NotFound):
            attempt()
    with pytest.raises(NotFound):
        await world.volumes.remove(OTHER, mine.id)


@pytest.mark.parametrize("size", [0, 1, 16 * MIB - 1, 2**60])
async def test_sizes_that_no_volume_has(world: World, engine: Sandboxes, size: int) -> None:
    with pytest.raises(InvalidInput):
        await world.volumes.create(DEFAULT_TENANT, "data", size)
    assert await world.store.volumes() == []


async def test_a_create_that_fails_leaves_nothing_and_frees_the_name(world: World, engine: Sandboxes) -> None:
    world.volume_disk.fail_at = {"create"}
    with pytest.raises(HostError):
        await world.volumes.create(DEFAULT_TENANT, "data")
    assert (world.volume_disk.sizes, await world.store.volumes()) == ({}, [])
    world.volume_disk.fail_at = set()
    await world.volumes.create(DEFAULT_TENANT, "data")


async def test_a_removal_that_fails_can_be_tried_again(world: World, engine: Sandboxes) -> None:
    await world.volumes.create(DEFAULT_TENANT, "data")
    world.volume_disk.fail_at = {"remove"}
    with pytest.raises(HostError):
        await world.volumes.remove(DEFAULT_TENANT, "data")
    assert world.volumes.list(DEFAULT_TENANT) == []  # it can be half gone
    with pytest.raises(NotFound):
        await engine.create(DEFAULT_TENANT, wanting(WISH))
    world.volume_disk.fail_at = set()
    await world.volumes.remove(DEFAULT_TENANT, "data")
    assert (world.volume_disk.sizes, await world.store.volumes()) == ({}, [])


async def test_what_a_crash_leaves_is_removed_and_what_is_ready_stays(
    world: World, engine: Sandboxes
) -> None:
    kept = await world.volumes.create(DEFAULT_TENANT, "kept")
    half = replace(kept, id=VolumeId("1" * 16), name="half", ready=False)
    await world.store.put_volume(half)
    world.volume_disk.sizes |= {half.id: 1, VolumeId("2" * 16): 1}
    world.engine()
    await world.volumes.recover()
    assert world.volumes.list(DEFAULT_TENANT) == [kept]
    assert (set(world.volume_disk.sizes), await world.store.volumes()) == ({kept.id}, [kept])


async def test_a_create_that_meets_a_removal_fails_and_leaves_nothing(
    world: World, engine: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume goes between the moment that the create found it and the one when its row is there."""
    await world.volumes.create(DEFAULT_TENANT, "data")
    add = world.registry.add

    async def slowly(*args: object) -> None:
        await world.volumes.remove(DEFAULT_TENANT, "data")
        await add(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(world.registry, "add", slowly)
    with pytest.raises(NotFound):
        await engine.create(DEFAULT_TENANT, wanting(WISH))
    assert (engine.list(DEFAULT_TENANT), world.driver.state) == ([], {})


async def test_creates_and_removals_in_any_order_agree(world: World, engine: Sandboxes) -> None:
    for number in range(20):
        await world.volumes.create(DEFAULT_TENANT, "data", 16 * MIB)
        failed: list[type[CorralError]] = []

        async def outcome(act: Awaitable[object], failed: list[type[CorralError]] = failed) -> None:
            try:
                await act
            except CorralError as error:
                failed.append(type(error))

        async with asyncio.TaskGroup() as group:
            group.create_task(outcome(engine.create(DEFAULT_TENANT, wanting(WISH, name=f"box-{number}"))))
            group.create_task(outcome(world.volumes.remove(DEFAULT_TENANT, "data")))
        assert failed in ([NotFound], [Conflict])
        if failed == [Conflict]:
            await engine.remove(DEFAULT_TENANT, f"box-{number}")
            await world.volumes.remove(DEFAULT_TENANT, "data")


async def test_a_removal_waits_for_sandboxes_on_their_way_out(world: World, engine: Sandboxes) -> None:
    await world.volumes.create(DEFAULT_TENANT, "data")
    made = await engine.create(DEFAULT_TENANT, wanting(WISH))
    await engine.begin_removal(DEFAULT_TENANT, made.id)
    await world.volumes.remove(DEFAULT_TENANT, "data")
    assert world.volumes.list(DEFAULT_TENANT) == []


async def test_a_volume_counts_as_disk_before_it_is_filled(world: World, engine: Sandboxes) -> None:
    world.rules = replace(world.rules, overcommit={Resource.DISK: 1.0})
    world.machine.total[Resource.DISK] = world.machine.free[Resource.DISK] = 100.0 * GIB
    volume = await world.volumes.create(DEFAULT_TENANT, "data", 90 * GIB)
    with pytest.raises(DiskFull, match=r"volume more needs 20.0 GiB"):
        await world.volumes.create(DEFAULT_TENANT, "more", 20 * GIB)
    with pytest.raises(DiskFull, match=r"needs 20.0 GiB of disk, 9.5 GiB free"):
        await engine.create(DEFAULT_TENANT, CreateRequest(limits=Limits(disk=20 * GIB)))
    world.machine.free[Resource.DISK] -= 80 * GIB  # it is filled: what it has taken is not counted twice
    world.volume_disk.used = 80 * GIB
    await world.volumes.measure()
    shown = await engine.admission.overview()
    line = next(line for line in shown.lines if line.resource is Resource.DISK)
    assert (line.promised, line.expected) == (90 * GIB, 90 * GIB)
    assert line.free == pytest.approx((100 - 90 - 0.5) * GIB)
    assert shown.holdings == []
    await world.volumes.remove(DEFAULT_TENANT, volume.id)
    world.machine.free[Resource.DISK] += 80 * GIB
    await engine.create(DEFAULT_TENANT, CreateRequest(limits=Limits(disk=20 * GIB)))


async def test_bounds_of_a_tenants_sandboxes_are_none_of_volumes(
    world: World, engine: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.rules = replace(world.rules, tenant_sandboxes=1, tenant_memory=GIB)
    await engine.create(DEFAULT_TENANT, CreateRequest(limits=Limits(memory=GIB)))
    await world.volumes.create(DEFAULT_TENANT, "data")
    monkeypatch.setattr("corral.engine.volumes.MAX_VOLUMES", 1)
    with pytest.raises(NoCapacity):
        await world.volumes.create(DEFAULT_TENANT, "more")
    await world.volumes.create(OTHER, "data")


async def test_a_spare_is_not_taken_by_who_wants_a_volume(world: World, engine: Sandboxes) -> None:
    await world.volumes.create(DEFAULT_TENANT, "data")
    plain = await engine.create(DEFAULT_TENANT, wanting(name="one"))
    other = await engine.create(DEFAULT_TENANT, wanting(WISH, name="two"))
    assert interchangeable(plain.spec, plain.spec)
    assert not interchangeable(plain.spec, other.spec)


async def test_forks_mount_what_the_first_one_does(world: World, engine: Sandboxes) -> None:
    await world.volumes.create(DEFAULT_TENANT, "data")
    made = await engine.create(DEFAULT_TENANT, wanting(WISH))
    forked = await world.checkpoints.fork(DEFAULT_TENANT, "box", 2)
    assert [box.spec.volumes for box in forked.sandboxes] == [made.spec.volumes] * 2


async def test_no_checkpoint_keeps_the_memory_of_what_uses_a_volume(world: World, engine: Sandboxes) -> None:
    await world.volumes.create(DEFAULT_TENANT, "data")
    await engine.create(DEFAULT_TENANT, wanting(WISH))
    with pytest.raises(Unsupported, match="volumes"):
        await world.checkpoints.make(DEFAULT_TENANT, "box", "mark", memory=True)
    await world.checkpoints.make(DEFAULT_TENANT, "box", "mark")
    again = await engine.create(DEFAULT_TENANT, CreateRequest(template="mark"))
    assert again.spec.volumes == ()


async def test_volumes_are_found_again_with_the_sandboxes_that_mount_them(
    world: World, engine: Sandboxes
) -> None:
    volume = await world.volumes.create(DEFAULT_TENANT, "data")
    await engine.create(DEFAULT_TENANT, wanting(WISH))
    again = world.engine()
    await world.volumes.recover()
    await again.recover()
    assert world.volumes.list(TenantId("default")) == [volume]
    with pytest.raises(Conflict):
        await world.volumes.remove(DEFAULT_TENANT, "data")
