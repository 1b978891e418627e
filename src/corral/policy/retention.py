"""Which checkpoints are kept, and what disk belongs to whom."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from corral.model.ids import ImageId, LayerDigest, TemplateId
from corral.model.template import Template


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept of the checkpoints of one project: the `keep` newest ones, and of those no more than fit into `size`
    bytes together. None is no bound."""

    keep: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes of disk: `own` would come back with it, `shared` belong to others, too."""

    own: int
    shared: int


def shares(
    templates: Sequence[Template], used: Iterable[Template], sizes: Mapping[LayerDigest, int]
) -> dict[TemplateId, Share]:
    """What each of `templates` takes. `used`: all that are offered, or that sandboxes run on; `sizes` of their layers. A
    memory image is for templates alone, and shared by those that are one under several names."""
    holders = Counter(layer for template in used for layer in template.layers)
    images = Counter(template.memory.image for template in templates if template.memory is not None)
    found = {}
    for template in templates:
        own = sum(sizes.get(layer, 0) for layer in template.layers if holders[layer] <= 1)
        every = sum(sizes.get(layer, 0) for layer in template.layers)
        if template.memory is not None:
            every += template.memory.size
            own += template.memory.size if images[template.memory.image] <= 1 else 0
        found[template.id] = Share(own, every - own)
    return found


def released(
    gone: Sequence[Template],
    offered: Iterable[Template],
    running: Set[TemplateId],
    sizes: Mapping[LayerDigest, int],
) -> int:
    """The bytes that come back when all of `gone` are removed: layers that nobody holds then, and their memory images. More
    than the sum of what is each one's own, where they share. `offered`: all templates, with those of sandboxes; `running`:
    what sandboxes run on, which keeps its layers."""
    offered, ids = list(offered), {template.id for template in gone}
    held = {layer for template in offered if template.id not in ids - running for layer in template.layers}
    free = {layer for template in gone for layer in template.layers} - held
    images = _images(gone)
    for image in _images(template for template in offered if template.id not in ids):
        images.pop(image, None)
    return sum(sizes.get(layer, 0) for layer in free) + sum(images.values())


def expired(
    checkpoints: Sequence[Template],
    rules: Retention,
    used: Iterable[Template],
    sizes: Mapping[LayerDigest, int],
) -> list[Template]:
    """Checkpoints that are beyond what is kept of their project, oldest first. `used` and `sizes` as for `shares`."""
    gone: list[Template] = []
    by_project: dict[str, list[Template]] = {}
    for template in checkpoints:
        if template.origin is not None:
            by_project.setdefault(template.origin.project, []).append(template)
    used = list(used)
    for members in by_project.values():
        ids = {template.id for template in members}
        others = {layer for template in used if template.id not in ids for layer in template.layers}
        newest_first = sorted(members, key=lambda template: template.created_at, reverse=True)
        gone += _beyond(newest_first, rules, others, sizes)
    return sorted(gone, key=lambda template: template.created_at)


def _beyond(
    newest_first: Sequence[Template],
    rules: Retention,
    others: Set[LayerDigest],
    sizes: Mapping[LayerDigest, int],
) -> Iterator[Template]:
    """Those of one project that are not kept. A layer counts once, for the newest that has it, and not where `others` have
    it, too: so what is kept together is bounded, and one that adds nothing to it stays, since its removal would give
    nothing back."""
    counted, images = set(others), set[ImageId]()
    total, full = 0, False
    for place, template in enumerate(newest_first):
        more = set(template.layers) - counted
        memory = {image: size for image, size in _images([template]).items() if image not in images}
        added = sum(sizes.get(layer, 0) for layer in more) + sum(memory.values())
        full = full or (rules.size is not None and total + added > rules.size)
        too_many = rules.keep is not None and place >= rules.keep
        # The newest one is kept, however large it is.
        if too_many or (place > 0 and full and added > 0):
            yield template
        else:
            counted |= more
            images |= memory.keys()
            total += added


def _images(templates: Iterable[Template]) -> dict[ImageId, int]:
    """Their memory images, and the bytes of each."""
    return {
        template.memory.image: template.memory.size for template in templates if template.memory is not None
    }
