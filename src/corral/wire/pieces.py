"""How a stream is fed to a program in a sandbox that must know whether it is whole."""

from collections.abc import AsyncIterator


async def pieces(data: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Each piece after its length, and an empty one at the end: the input also ends where a client or the daemon does."""
    async for chunk in data:
        if chunk:
            yield len(chunk).to_bytes(4, "big") + chunk
    yield bytes(4)
