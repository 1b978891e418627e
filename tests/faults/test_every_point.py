"""The crash contract, step by step: the daemon is killed before each thing that it does on the host.

`pointed.py` numbers the steps of an operation; a rehearsal tells how many there are. By default each operation is cut at a
few of them, drawn with a seed; `CORRAL_POINTS=all` (`make test-all`) cuts each operation at every one, and `CORRAL_POINTS=3/40`
at every 40th from the third on, so that all can be cut in forty runs. After each cut the daemon starts again as it is, or is
killed once more at a step of that; and then: the operation is done or undone, done if it was answered; what ran on goes on;
what was there is usable; and once the test's objects are removed, nothing is left of anything.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.faults.host_operations import HOST_OPERATIONS
from tests.faults.machine import TINY, build_tiny
from tests.faults.operations import OPERATIONS
from tests.faults.rule_operations import RULE_OPERATIONS
from tests.faults.scene import PointedDaemon, Scene
from tests.faults.template_operations import IMAGE, PLACE, TEMPLATE_OPERATIONS, furnish
from tests.system.test_oci_images import Registry, archive
from tests.system.test_oci_images import registry as registry

pytestmark = [
    pytest.mark.root,
    # Clients whose daemon is killed under them leave their connections to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(36_000 if os.environ.get("CORRAL_POINTS") else 600),
]

POINTS = os.environ.get("CORRAL_POINTS", "1")
SEED = os.environ.get("CORRAL_KILL_SEED", "1")
ALL = {**OPERATIONS, **TEMPLATE_OPERATIONS, **RULE_OPERATIONS, **HOST_OPERATIONS}
TWICE = ("create", "checkpoint", "suspend")
"""Operations after whose cut the next start is cut, too; where all points are wanted, all operations are."""


@pytest.fixture(scope="module")
def scene(
    shared_daemon: Daemon, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    shared_daemon.remove_all()
    with shared_daemon.client() as client:
        build_tiny(client, tmp_path_factory.mktemp("tiny"))
    shared_daemon.stop()
    daemon = PointedDaemon(shared_daemon.data)
    daemon.start()
    try:
        furnish()
        IMAGE.write_text(registry.push("made", [archive(("made", b"image"))]))
        found = Scene(daemon, ALL)
        found.keep()
        yield found
    finally:
        if daemon.process is not None:
            daemon.stop()
        Path(daemon.orders).unlink(missing_ok=True)
        shutil.rmtree(PLACE, ignore_errors=True)
        shared_daemon.start()
        shared_daemon.remove_all()
        with shared_daemon.client() as client:
            client.remove_template(TINY)


def _drawn(seed: str, total: int) -> Sequence[int]:
    every = range(1, total + 1)
    match POINTS.split("/"):
        case ["all"]:
            return every
        case [first, step]:
            return every[int(first) - 1 :: int(step)]
    return random.Random(seed).sample(every, min(int(POINTS), total))


def _at_each(points: Sequence[int], cut: Callable[[int], None], told: str) -> None:
    for point in points:
        try:
            cut(point)
        except BaseException as error:
            error.add_note(f"{told} at point {point} (CORRAL_KILL_SEED={SEED})")
            raise


@pytest.mark.parametrize("name", ALL)
def test_a_cut_at_any_step_leaves_the_operation_done_or_undone(scene: Scene, name: str) -> None:
    """LIFE-, G-337: nothing leaks, nothing is lost, nothing is half done."""
    total = scene.points(name)
    _at_each(
        _drawn(f"{SEED} {name}", total), lambda point: scene.cut(name, point), f"{name}, of {total}, cut"
    )


@pytest.mark.parametrize("name", ALL if POINTS == "all" else TWICE)
def test_a_cut_at_any_step_of_the_next_start_leaves_it_done_or_undone_too(scene: Scene, name: str) -> None:
    """LIFE-: what makes good a cut can be cut itself."""
    point = random.Random(f"first {SEED} {name}").randint(1, scene.points(name))
    if name not in scene.starts:
        scene.cut(name, point)
    total = scene.starts[name]
    drawn = _drawn(f"second {SEED} {name}", total)
    told = f"{name}, cut at point {point}, and its next start, of {total},"
    _at_each(drawn, lambda second: scene.cut(name, point, second), told)


@pytest.mark.parametrize("name", ["create", "start", "claim from a pool", "fork", "wake", "remove"])
def test_a_gateway_that_ends_at_any_step_leaves_the_operation_done_or_undone(scene: Scene, name: str) -> None:
    """Of those operations that tell it something. The sandbox has its network afterwards, at the next gateway."""
    total = scene.points(name)
    drawn = _drawn(f"gateway {SEED} {name}", total)
    _at_each(drawn, lambda point: scene.cut_gateway(name, point), f"{name}, of {total}, the gateway ended")


def test_there_are_more_than_a_thousand_points(scene: Scene) -> None:
    assert sum(scene.points(name) for name in OPERATIONS) >= 1000
