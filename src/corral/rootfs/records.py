"""What the store notes beside each layer: a small file in the layer's directory, next to the tree itself.

Owners on disk. A layer that the host made holds plain ids. One that was committed from a sandbox holds that
tenant's shifted ids, untouched: shifting them back would rewrite every inode, clear setuid bits and file
capabilities, and turn a snapshot of five milliseconds into a copy. The record says which range it is, and a
mount maps it: an identity where the reader's range is the same.
"""

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from corral.errors import HostError

RECORD = "layer.json"
TREE = "upper"


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """`uid_base`: the host id that stands for root in the layer, 0 for plain ids. `size` in bytes, as good
    as known.

    `content`: whether the digest is of the content; that of a committed layer only identifies it, since to
    read 50,000 files takes a hundred times as long as to snapshot them. `top`: no inode number of the layer is
    higher (see `seeds`); 0 where the file system keeps them apart by itself.
    """

    uid_base: int
    size: int
    content: bool
    top: int = 0


def write_record(folder: Path, record: LayerRecord) -> None:
    """Note it in the layer directory `folder`."""
    (folder / RECORD).write_text(json.dumps(asdict(record)) + "\n")


@functools.lru_cache(maxsize=4096)
def read_record(folder: Path) -> LayerRecord:
    """The record of the layer directory `folder`; a layer never changes. Raises HostError if it has none."""
    return parse_record(folder)


def parse_record(folder: Path) -> LayerRecord:
    """The same, read anew."""
    try:
        return LayerRecord(**json.loads((folder / RECORD).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise HostError(
            f"the layer {folder.name} is damaged: {error}", "remove its template and build it again"
        ) from error
