"""Keeping what a client sends in a file: bounded, and never the last of the disk."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from corral.errors import DiskFull, TooLarge
from corral.rootfs.room import WithRoom


async def receive(target: Path, data: AsyncIterator[bytes], limit: int) -> None:
    """Write all of `data` to the new file `target`. Raises TooLarge above `limit` bytes, DiskFull."""
    left = limit
    try:
        with open(target, "wb") as file:  # noqa: ASYNC230 - opening alone does not block
            kept = WithRoom(file)
            async for chunk in data:
                left -= len(chunk)
                if left < 0:
                    raise TooLarge(f"what is sent has more than {limit >> 30} GiB", "leave something out")
                await asyncio.to_thread(kept.write, chunk)
    except OSError as error:
        raise DiskFull(f"what is sent cannot be kept: {error}") from error
