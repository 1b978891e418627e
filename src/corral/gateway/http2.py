"""HTTP/2 connections, of either end: the library's frames and states on a transport, and streams that can be awaited.

Flow control reaches from end to end: what a stream has received is acknowledged once somebody has taken it, and what is
sent waits for the peer's window and for the transport. So memory is bounded by the windows that are given out. Peers that
make work without end (streams reset as fast as they are opened, answers that nobody reads) are cut off (G-108).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import H2Error, ProtocolError
from h2.settings import SettingCodes, Settings

from corral.gateway.audit import TokenBucket
from corral.wire.http2 import Farewell, Fields

STREAMS = 100
STREAM_WINDOW = 256 * 1024
CONNECTION_WINDOW = 1024 * 1024
IDLE = 2 * 3600.0
"""Seconds without a byte from the peer after which a connection is ended."""
UNUSED = 300.0
"""Seconds without a stream, likewise."""
_UNSENT = 1024 * 1024
_CHECK = 60.0
_RESET_RATE, _RESET_BURST = 20.0, 200


class StreamError(Exception):
    """A stream cannot go on: its peer gave it up, or the connection is gone."""


class Stream:
    """One request and its answer."""

    def __init__(
        self, connection: "Connection", number: int, head: Fields = (), *, ended: bool = False
    ) -> None:
        self.number = number
        self.head = head
        """The peer's fields, once they are there."""
        self.ended = ended
        self.trailers: Fields = ()
        self.task: asyncio.Task[None] | None = None
        """What works on it, and is cancelled when the peer gives it up."""
        self.answered = False
        self.failure = ""
        self.moved = asyncio.Event()
        self._connection = connection
        self.read = self.written = 0
        """Bytes of data."""
        self._received = bytearray()
        self._size = 0

    @property
    def bodiless(self) -> bool:
        """Whether the peer has sent its fields and nothing else, and will not."""
        return self.ended and not self._size and not self.trailers

    def receive(self, data: bytes, size: int) -> None:
        """Keep data until it is taken; `size` counts against the window."""
        self._received += data
        self._size += size
        self.read += len(data)
        self.moved.set()

    def take(self) -> tuple[bytes, int]:
        """All that was received, and how much of the window that is."""
        found = bytes(self._received), self._size
        self._received.clear()
        self._size = 0
        return found

    def fail(self, why: str) -> None:
        """End it: the peer gave it up, or is gone."""
        self.failure = self.failure or why
        self.moved.set()
        if self.task is not None:
            self.task.cancel()

    async def started(self) -> Fields:
        """The peer's fields. Raises StreamError."""
        while not self.head:
            await self._wait()
        return self.head

    async def body(self) -> AsyncIterator[bytes]:
        """What the peer sends, as it comes. Raises StreamError."""
        while True:
            data, size = self.take()
            if data:
                yield data
            self._connection.taken(self, size)
            if not self._size:
                if self.ended:
                    return
                await self._wait()

    async def _wait(self) -> None:
        if self.failure:
            raise StreamError(self.failure)
        self.moved.clear()
        await self.moved.wait()

    def answer(self, fields: Fields, *, end: bool = False) -> None:
        """Send fields: of an answer, or trailers. Raises StreamError."""
        self._connection.send_fields(self, fields, end=end)

    async def send(self, data: bytes) -> None:
        """Send data, at the pace of the peer and of the transport. Raises StreamError."""
        view = memoryview(data)
        while view:
            if self.failure:
                raise StreamError(self.failure)
            size = await self._connection.room(self)
            if size <= 0:
                await self._wait()
                continue
            self._connection.send_data(self, bytes(view[:size]))
            self.written += size
            view = view[size:]

    def end(self, trailers: Fields = ()) -> None:
        """Say that nothing follows but these. Raises StreamError."""
        if trailers:
            self._connection.send_fields(self, trailers, end=True)
        else:
            self._connection.send_data(self, b"", end=True)

    def close(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Give it up if it is not over. Idempotent."""
        self._connection.drop(self, code)


class Connection(asyncio.Protocol):
    """An HTTP/2 connection. The server's end gives the requests that come (`requests`), the client's makes them (`open`)."""

    def __init__(self, *, client: bool) -> None:
        self._client = client
        self._h2 = H2Connection(H2Configuration(client_side=client, header_encoding=None))
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        }
        if client:
            values[SettingCodes.ENABLE_PUSH] = 0
        self._h2.local_settings = Settings(client=client, initial_values=values)
        self._farewell = Farewell()
        self._streams: dict[int, Stream] = {}
        self._requests: asyncio.Queue[Stream | None] = asyncio.Queue()
        self._early: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._resets = TokenBucket(_RESET_RATE, _RESET_BURST)
        self._watch: asyncio.TimerHandle | None = None
        self._quiet = self._unused = 0.0
        self._lost = False
        self.transport: asyncio.Transport | None = None

    # -- the transport --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW)
        self._flush()
        self._check()
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:  # its TLS is done, and nobody has been told yet
            self._early.append(data)
            return
        self._quiet = 0.0
        try:
            found = self._h2.receive_data(self._farewell.feed(data) if self._client else data)
            for event in found:
                self._take(event)
        except ProtocolError:
            self._flush()
            self.shut("the peer broke the protocol")
            return
        self._flush()
        if self._farewell.last is not None:
            for stream in [s for n, s in self._streams.items() if n > self._farewell.last]:
                stream.fail("the server takes no more requests")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._writable.set()
        if self._watch is not None:
            self._watch.cancel()
        for stream in list(self._streams.values()):
            stream.fail("the connection is gone")
        self._streams.clear()
        self._requests.put_nowait(None)

    def shut(self, why: str = "the connection was ended", code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """End the connection. Idempotent."""
        for stream in list(self._streams.values()):
            stream.fail(why)
        if self.transport is not None and not self.transport.is_closing():
            with suppress(H2Error):
                self._h2.close_connection(code)
                self._flush()
            self.transport.close()

    def _check(self) -> None:
        """Look now and then whether anybody still uses it."""
        self._quiet += _CHECK
        self._unused = 0.0 if self._streams else self._unused + _CHECK
        if self._quiet > IDLE or self._unused > UNUSED:
            self.shut()
            return
        self._watch = asyncio.get_running_loop().call_later(_CHECK, self._check)

    def _flush(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if data := self._h2.data_to_send():
            self.transport.write(data)
            if self.transport.get_write_buffer_size() > _UNSENT:  # answers to frames that nobody reads
                self.transport.abort()

    # -- what the peer sends --------------------------------------------------------------------------------------

    def _take(self, event: events.Event) -> None:
        match event:
            case events.RequestReceived():
                stream = Stream(self, event.stream_id, event.headers, ended=event.stream_ended is not None)
                self._streams[event.stream_id] = stream
                self._requests.put_nowait(stream)
            case events.ResponseReceived():
                if (known := self._streams.get(event.stream_id)) is not None:
                    known.head, known.ended = event.headers, event.stream_ended is not None
                    known.moved.set()
            case events.DataReceived():
                if (known := self._streams.get(event.stream_id)) is not None:
                    known.receive(event.data, event.flow_controlled_length)
                else:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case events.TrailersReceived():
                if (known := self._streams.get(event.stream_id)) is not None:
                    known.trailers = event.headers
            case events.StreamEnded():
                if (known := self._streams.get(event.stream_id)) is not None:
                    known.ended = True
                    known.moved.set()
            case events.StreamReset():
                self._reset(event.stream_id)
            case events.WindowUpdated() | events.RemoteSettingsChanged():
                for each in self._streams.values():
                    each.moved.set()
            case events.ConnectionTerminated():
                self.shut("the peer ended the connection")
            case _:
                pass

    def _reset(self, number: int) -> None:
        if not self._client and not self._resets.take(asyncio.get_running_loop().time()):
            self.shut("streams were given up too fast", ErrorCodes.ENHANCE_YOUR_CALM)
            return
        if (known := self._streams.pop(number, None)) is not None:
            known.fail("the peer gave the request up")

    async def requests(self) -> AsyncIterator[Stream]:
        """The requests that come, until the connection is gone."""
        while (stream := await self._requests.get()) is not None:
            yield stream

    # -- what is sent ---------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether another request can be made on it."""
        return not self._lost and self._farewell.last is None and not _closing(self.transport)

    async def open(self, fields: Fields, *, end: bool) -> Stream:
        """Make a request; `end` says that it has no body. Waits while the server takes no more. Raises StreamError."""
        while self._h2.open_outbound_streams >= self._h2.remote_settings.max_concurrent_streams:
            oldest = next(iter(self._streams.values()), None)
            if oldest is None or not self.usable:
                raise StreamError("the server takes no more requests")
            oldest.moved.clear()
            await oldest.moved.wait()
        stream = Stream(self, self._h2.get_next_available_stream_id())
        self._streams[stream.number] = stream
        self.send_fields(stream, fields, end=end)
        return stream

    async def room(self, stream: Stream) -> int:
        """How many bytes can be sent on a stream now, once the transport takes any."""
        await self._writable.wait()
        if stream.number not in self._streams:
            raise StreamError(stream.failure or "the request is over")
        try:
            window = self._h2.local_flow_control_window(stream.number)
        except H2Error as error:
            raise StreamError(str(error)) from None
        return min(window, self._h2.max_outbound_frame_size)

    def send_fields(self, stream: Stream, fields: Fields, *, end: bool) -> None:
        """Send a block of fields. Raises StreamError."""
        try:
            self._h2.send_headers(stream.number, list(fields), end_stream=end)
        except H2Error as error:
            raise StreamError(str(error)) from None
        self._flush()

    def send_data(self, stream: Stream, data: bytes, *, end: bool = False) -> None:
        """Send data that there is room for. Raises StreamError."""
        try:
            self._h2.send_data(stream.number, data, end_stream=end)
        except H2Error as error:
            raise StreamError(str(error)) from None
        self._flush()

    def taken(self, stream: Stream, size: int) -> None:
        """Give the peer room for as much as was taken."""
        if size and not self._lost:
            with suppress(H2Error):
                self._h2.acknowledge_received_data(size, stream.number)
                self._flush()

    def drop(self, stream: Stream, code: ErrorCodes) -> None:
        """Forget a stream, telling the peer unless both ends have finished. Idempotent."""
        if self._streams.pop(stream.number, None) is None:
            return
        self.taken(stream, stream.take()[1])
        state = self._h2.streams.get(stream.number)
        if state is not None and not state.closed:
            with suppress(H2Error):
                self._h2.reset_stream(stream.number, code)
        self._flush()
        for waiting in self._streams.values():
            waiting.moved.set()


def _closing(transport: asyncio.Transport | None) -> bool:
    return transport is None or transport.is_closing()
