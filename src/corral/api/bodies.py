"""Raw bodies: bytes streamed in and out without being kept."""

from collections.abc import AsyncGenerator, AsyncIterator

from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect, Request

from corral.errors import InvalidInput

BINARY_REQUEST = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
"""OpenAPI's description of a raw request body."""


async def body_of(request: Request) -> AsyncIterator[bytes]:
    """The request's body, as it comes. A body that breaks off raises, and is never taken for a whole one."""
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise InvalidInput("the request's body broke off", "send it again") from None


async def streamed(chunks: AsyncIterator[bytes], media_type: str) -> Response:
    """Respond with bytes once the first are there: what fails before still gets a status of its own; what fails later
    cuts the connection."""
    first = await anext(chunks, b"")

    async def all_chunks() -> AsyncGenerator[bytes, None]:
        yield first
        async for chunk in chunks:
            yield chunk

    return StreamingResponse(all_chunks(), media_type=media_type, headers={"cache-control": "no-store"})
