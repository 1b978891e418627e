"""Which checkpoints go, and whose disk is whose."""

from datetime import UTC, datetime, timedelta

from corral.model.ids import DEFAULT_TENANT, ImageId, LayerDigest, SandboxId, TemplateId
from corral.model.sandbox import Isolation, Limits
from corral.model.template import MachineState, Origin, Template, TemplateConfig
from corral.policy.retention import Retention, Share, expired, shares

BASE, A, B = (LayerDigest(f"sha256:{letter * 64}") for letter in "0ab")
SIZES = {BASE: 1000, A: 10, B: 5}


def template(
    name: str, *layers: LayerDigest, project: str | None = None, age: int = 0, memory: int = 0
) -> Template:
    state = None
    if memory:
        state = MachineState(ImageId("1" * 16), Isolation.GVISOR, "runsc", Limits(), memory)
    origin = None if project is None else Origin("box", SandboxId("1" * 16), project=project)
    at = datetime(2026, 1, 1, tzinfo=UTC) - timedelta(days=age)
    return Template(
        TemplateId(name), DEFAULT_TENANT, name, layers, TemplateConfig(), 0, at, memory=state, origin=origin
    )


def test_own_and_shared() -> None:
    base, one, two = template("base", BASE), template("one", BASE, A), template("two", BASE, A, B, memory=7)
    assert shares([base, one, two], [base, one, two], SIZES) == {
        "base": Share(0, 1000),
        "one": Share(0, 1010),
        "two": Share(12, 1010),
    }
    assert shares([one], [base, one], SIZES) == {"one": Share(10, 1000)}


def test_a_memory_image_is_counted_as_shared_by_all_names_of_it() -> None:
    one, tag = template("one", A, memory=7), template("tag", A, memory=7)
    assert shares([one, tag], [one, tag], SIZES) == {"one": Share(0, 17), "tag": Share(0, 17)}
    assert shares([one], [one], SIZES) == {"one": Share(17, 0)}


def test_the_newest_of_each_project_stay() -> None:
    mine = [template(f"m{age}", project="mine", age=age) for age in range(4)]
    other = [template("o0", project="other", age=9)]
    plain = [template("base")]
    assert [t.name for t in expired([*plain, *other, *mine], Retention(keep=2), {})] == ["m3", "m2"]
    assert expired([*mine], Retention(), {}) == []
    assert len(expired(mine, Retention(keep=0), {})) == 4


def test_their_size_is_bounded_and_the_newest_stays() -> None:
    mine = [template(f"m{age}", project="", age=age) for age in range(3)]
    owns = {TemplateId("m0"): 50, TemplateId("m1"): 10, TemplateId("m2"): 1}
    assert [t.name for t in expired(mine, Retention(size=60), owns)] == ["m2"]
    assert [t.name for t in expired(mine, Retention(size=5), owns)] == ["m2", "m1"]
