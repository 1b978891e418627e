"""Which checkpoints are kept, and what disk belongs to whom."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from corral.model.ids import LayerDigest, TemplateId
from corral.model.template import Template


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept of the checkpoints of one project: the `keep` newest ones, and of those no more than fit into `size`
    bytes. None is no bound."""

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


def expired(
    checkpoints: Sequence[Template], rules: Retention, owns: Mapping[TemplateId, int]
) -> list[Template]:
    """Checkpoints that are beyond what is kept of their project, oldest first. `owns`: bytes of each one's own."""
    gone: list[Template] = []
    by_project: dict[str, list[Template]] = {}
    for template in checkpoints:
        if template.origin is not None:
            by_project.setdefault(template.origin.project, []).append(template)
    for members in by_project.values():
        total = 0
        newest_first = sorted(members, key=lambda template: template.created_at, reverse=True)
        for place, template in enumerate(newest_first):
            total += owns.get(template.id, 0)
            too_many = rules.keep is not None and place >= rules.keep
            # The newest one is kept, however large it is.
            if too_many or (place > 0 and rules.size is not None and total > rules.size):
                gone.append(template)
    return sorted(gone, key=lambda template: template.created_at)
