"""Whether layers still are what was added: read whole when somebody asks, and out of use from then on where they are not.

A layer that the host made is named by its content, and gets its name anew. One that was committed from a sandbox was not
read when it was made. On a btrfs the kernel compares each block that is read with its checksum, so reading it is the
check; elsewhere only what cannot be read at all is found.
"""

from pathlib import Path

from corral.errors import HostError, InvalidInput
from corral.model.ids import LayerDigest
from corral.rootfs.digest import tree_digest
from corral.rootfs.records import TREE, parse_record


def problem_of(layer: LayerDigest, place: Path) -> str:
    """What is wrong with the layer in the directory `place`; empty if nothing is. Blocks for as long as to read it."""
    try:
        record = parse_record(place)
        found = tree_digest(place / TREE)
    except (OSError, HostError, InvalidInput) as error:
        return str(error)
    return "its content is not what it was" if record.content and found.digest != layer else ""


class Marks:
    """The layers that were found damaged, as files in a directory of the store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found = {path.name: path.read_text() for path in folder.iterdir()}

    def set(self, name: str, problem: str) -> None:
        """Note what is wrong with a layer; with an empty text, that nothing is any more."""
        if problem:
            (self._folder / name).write_text(problem)
            self._found[name] = problem
        elif self._found.pop(name, None) is not None:
            (self._folder / name).unlink(missing_ok=True)

    def get(self, name: str) -> str:
        """What is known to be wrong with a layer."""
        return self._found.get(name, "")


def damaged(layer: LayerDigest, problem: str) -> HostError:
    """The refusal to use a damaged layer."""
    return HostError(
        f"the layer {layer} is damaged: {problem}",
        "remove the templates that have it, and their sandboxes, then build them again; `corral doctor --deep` names them",
    )
