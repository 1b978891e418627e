"""OCI image layouts on this machine: archives written as directories, and directories sent as archives."""

import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from corral.errors import Conflict, InvalidInput, NotFound, UpstreamFailed
from corral.sdk.contexts import Context
from corral.sdk.trees import CHUNK, Reader, file_chunks

_MEMBER = re.compile(r"oci-layout|index\.json|manifest\.json|blobs/sha256/[0-9a-f]{64}")


def write_archive(chunks: Iterable[bytes], target: Path) -> int:
    """Write an archive to the file `target` once it is whole; its bytes. Raises Conflict where it cannot be written."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            size = sum(file.write(chunk) for chunk in chunks)
        part.replace(target)
    except OSError as error:
        raise Conflict(f"{target} cannot be written: {error.strerror}", "choose another place") from error
    finally:
        part.unlink(missing_ok=True)
    return size


def write_layout(chunks: Iterable[bytes], target: Path) -> int:
    """Write an archive's parts to the directory `target`, which must be empty or absent; their bytes."""
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise Conflict(f"{target} is not empty", "give an empty directory")
    total = 0
    try:
        with tarfile.open(fileobj=Reader(chunks), mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if not _MEMBER.fullmatch(member.name) or content is None:
                    raise UpstreamFailed(
                        f"the archive holds {member.name[:80]!r}", "use the same version on both sides"
                    )
                place = target / member.name
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    while data := content.read(CHUNK):
                        total += file.write(data)
    except tarfile.TarError as error:
        raise UpstreamFailed(f"the daemon's archive is not valid: {error}") from error
    except OSError as error:
        raise Conflict(f"{target} cannot be written: {error.strerror}", "choose another place") from error
    return total


def read_image(source: Path) -> Iterator[bytes]:
    """An image's archive: the file as it is, or the directory of a layout as a tar. Raises NotFound, InvalidInput."""
    if source.is_dir():
        if not (source / "index.json").is_file():
            raise InvalidInput(f"{source} is no OCI image layout", "it has an index.json at its top")
        return Context(source).archive()
    if not source.is_file():
        raise NotFound(f"{source} is neither a file nor a directory", "see its path")
    return file_chunks(source)
