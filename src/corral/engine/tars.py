"""Small archives that the engine makes itself, to be copied from like a build's context."""

import io
import tarfile
from collections.abc import AsyncIterator, Sequence

from corral.errors import UpstreamFailed
from corral.model.build import InlineFile


async def once(data: bytes) -> AsyncIterator[bytes]:
    """Bytes as a stream of one piece."""
    yield data


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def tar_of(files: Sequence[InlineFile]) -> bytes:
    """Files of a recipe as an archive."""
    buffer = io.BytesIO()
    for file in files:
        data = file.content.encode("utf-8", "surrogateescape")
        buffer.write(_header(file.name, len(data)) + data + bytes(-len(data) % 512))
    return buffer.getvalue() + bytes(1024)


async def tar_stream(name: str, size: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """One file as an archive; padded or cut to the size that was announced."""
    yield _header(name, size)
    left = size
    async for chunk in chunks:
        piece = chunk[:left]
        left -= len(piece)
        yield piece
    if left:
        raise UpstreamFailed("the file changed while it was read", "build again")
    yield bytes(-size % 512) + bytes(1024)
