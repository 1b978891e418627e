"""A model API that answers at once and costs little, so that what is measured is what stands before it.

The scripted model server of `corral.testing` does more and would be the bottleneck. This one gives one canned answer of
the Messages API: as JSON, or, where the request asks for a stream, as `EVENTS` server-sent events.

`python -m bench.upstream` prints its port once it listens, and ends with its standard input.
"""

import asyncio
import json
import sys
from typing import cast

import uvloop

EVENTS = 200
_MODEL = "claude-sonnet-4-5"
_TEXT = "a word and another one, until it is three kilobytes " * 58
_USAGE = {"input_tokens": 500, "output_tokens": 700}


def _json_answer() -> bytes:
    body = json.dumps(
        {
            "id": "msg_1", "type": "message", "role": "assistant", "model": _MODEL, "usage": _USAGE,
            "content": [{"type": "text", "text": _TEXT}], "stop_reason": "end_turn", "stop_sequence": None,
        }
    ).encode()  # fmt: skip
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunk(event: str, data: object) -> bytes:
    text = f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()
    return f"{len(text):x}\r\n".encode() + text + b"\r\n"


def _stream_answer() -> list[bytes]:
    """The head, then the events, each a chunk of its own."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": _MODEL, "content": []}
    delta = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "a word "},
    }
    return [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        _chunk("message_start", {"type": "message_start", "message": {**message, "usage": _USAGE}}),
        *[_chunk("content_block_delta", delta)] * (EVENTS - 3),
        _chunk("message_delta", {"type": "message_delta", "delta": {}, "usage": _USAGE}),
        _chunk("message_stop", {"type": "message_stop"}) + b"0\r\n\r\n",
    ]


_JSON = _json_answer()
_STREAM = _stream_answer()


class _Server(asyncio.Protocol):
    """One connection: requests with a content-length, one after the other."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own class is no subclass of it.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or b"0")
            if len(self._received) < end + 4 + size:
                return
            body = bytes(self._received[end + 4 : end + 4 + size])
            del self._received[: end + 4 + size]
            self._answer(streamed=b'"stream":true' in body)

    def _answer(self, *, streamed: bool) -> None:
        if streamed:
            self._send(0)
        elif self._transport is not None:
            self._transport.write(_JSON)

    def _send(self, number: int) -> None:
        """One event in each turn of the loop, so that they leave in many packets, as a model's do."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(_STREAM[number])
        if number + 1 < len(_STREAM):
            asyncio.get_running_loop().call_soon(self._send, number + 1)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Server, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve())
