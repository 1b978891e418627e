"""What it takes to see an attack succeed: a defence, as text of `src` that is put out of the way."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Edit:
    """In `file`, below `src/corral`, `old` stands once; `new` takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Removal:
    """A defence, taken away by `edits`: several where one stands behind another. `attacks` then succeed, by their names;
    each with a part of what it says of that, so that it is known to have succeeded by this way and no other.
    """

    defence: str
    attacks: Mapping[str, str]
    edits: tuple[Edit, ...]


def remove(removal: Removal, source: Path) -> None:
    """Take the defence out of a copy of `src`. Raises ValueError for an edit whose text does not stand there once."""
    for edit in removal.edits:
        path = source / "corral" / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(
                f"{removal.defence}: stands {text.count(edit.old)} times in {edit.file}: {edit.old!r}"
            )
        path.write_text(text.replace(edit.old, edit.new))
