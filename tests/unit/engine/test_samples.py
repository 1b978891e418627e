"""Samples of what sandboxes use."""

from datetime import UTC, datetime, timedelta

from corral.engine.samples import KEPT, Samples
from corral.errors import Conflict
from corral.model.ids import SandboxId
from corral.model.sandbox import Stats

ONE, TWO = SandboxId("1" * 16), SandboxId("2" * 16)


class _World:
    """Sandboxes that use a byte more each time that they are looked at."""

    def __init__(self) -> None:
        self.there = [ONE, TWO]
        self.seconds = 0

    async def stats(self, sandbox: SandboxId) -> Stats:
        self.seconds += 1
        if sandbox == TWO:
            raise Conflict("it just ended")
        return Stats(memory=self.seconds, cpu_usec=self.seconds)

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)


async def test_the_last_samples_of_each_are_kept_until_it_is_gone() -> None:
    world = _World()
    samples = Samples(lambda: world.there, lambda sandbox: sandbox in world.there, world.stats, world)
    for _ in range(KEPT + 5):
        await samples.take()
    found = samples.of(ONE)
    assert len(found) == KEPT
    assert [item.at for item in found] == sorted(item.at for item in found)
    assert found[-1].memory == world.seconds - 1  # the other one's was taken, and failed, after it
    assert samples.of(TWO) == []
    world.there = []
    await samples.take()
    assert samples.of(ONE) == []
