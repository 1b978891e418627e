"""Which checkpoints go, and whose disk is whose."""

from datetime import UTC, datetime, timedelta

from corral.model.ids import DEFAULT_TENANT, ImageId, LayerDigest, SandboxId, TemplateId
from corral.model.sandbox import Isolation, Limits
from corral.model.template import MachineState, Origin, Template, TemplateConfig
from corral.policy.retention import Retention, Share, expired, released, shares

BASE, A, B, C, D = (LayerDigest(f"sha256:{letter * 64}") for letter in "0abcd")
SIZES = {BASE: 1000, A: 10, B: 5, C: 1000, D: 1}


def template(
    name: str,
    *layers: LayerDigest,
    project: str | None = None,
    age: int = 0,
    memory: int = 0,
    image: str = "1",
) -> Template:
    state = None
    if memory:
        state = MachineState(ImageId(image * 16), Isolation.GVISOR, "runsc", Limits(), memory)
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
    every = [*plain, *other, *mine]
    assert [t.name for t in expired(every, Retention(keep=2), every, {})] == ["m3", "m2"]
    assert expired(mine, Retention(), every, {}) == []
    assert len(expired(mine, Retention(keep=0), every, {})) == 4


def test_their_size_is_bounded_and_the_newest_stays() -> None:
    mine = [
        template("m0", BASE, project="", memory=50),
        template("m1", BASE, A, project="", age=1),
        template("m2", BASE, project="", age=2, memory=1, image="2"),
    ]
    used = [template("base", BASE), *mine]
    assert [t.name for t in expired(mine, Retention(size=60), used, SIZES)] == ["m2"]
    assert [t.name for t in expired(mine, Retention(size=5), used, SIZES)] == ["m2", "m1"]


def test_layers_that_checkpoints_of_one_project_share_count_once() -> None:
    base = template("base", BASE)
    chain = [
        template("c3", BASE, A, B, project="p"),
        template("c2", BASE, A, project="p", age=1),
        template("c1", BASE, A, project="p", age=2),
    ]
    former = [
        template("d2", BASE, C, D, project="p", age=3),
        template("d1", BASE, C, project="p", age=4),
    ]
    mine = [*chain, *former]
    assert sum(share.own for share in shares(former, [base, *mine], SIZES).values()) == 1
    for size, gone in ((1016, []), (1015, ["d1", "d2"]), (15, ["d1", "d2"])):
        assert [t.name for t in expired(mine, Retention(size=size), [base, *mine], SIZES)] == gone
    # It would give nothing back to remove what the newest one stands on.
    assert expired(chain, Retention(size=1), [base, *chain], SIZES) == []
    # What others have, too, is not theirs.
    assert expired(mine, Retention(size=16), [base, *mine, template("tag", BASE, C)], SIZES) == []


def test_what_all_that_go_have_alone_comes_back() -> None:
    base, one, two = template("base", BASE), template("one", BASE, C), template("two", BASE, C, D, memory=7)
    offered = [base, one, two]
    assert released([one, two], offered, set(), SIZES) == 1000 + 1 + 7
    assert released([one], offered, set(), SIZES) == 0
    assert released([one, two], offered, {one.id}, SIZES) == 1 + 7  # a sandbox runs on it
    assert released([], offered, set(), SIZES) == 0
    tag = template("tag", BASE, memory=7)
    assert released([two], [*offered, tag], set(), SIZES) == 1  # its memory has another name
    assert released([two, tag], [*offered, tag], set(), SIZES) == 1 + 7
