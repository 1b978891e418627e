"""One end of the link between engine and gateway: frames and file descriptors over a unix stream socket.

Neither asyncio's transports nor uvloop's carry descriptors, so the socket is driven by readiness callbacks.
Messages go out in the order of `send`; descriptors arrive with the first byte of their frame, so they are
there when it is complete.
"""

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corral.errors import CorralError, InvalidInput
from corral.wire import frames, link

_READ = 256 * 1024
_MAX_FDS = 253
_MAX_WAITING_FDS = 2 * _MAX_FDS


@dataclass(slots=True)
class _Piece:
    """Bytes to send, and the descriptors that go with the first of them."""

    data: bytearray
    fds: tuple[int, ...]


class Channel:
    """Sends and receives messages until the other end closes.

    `on_message` is called for each with the descriptors that came with it, which are then the callee's;
    `on_closed` once, after the last message, with what was wrong or None. Descriptors are taken only if
    `accept_fds`.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        limit: int,
        accept_fds: bool,
        on_message: Callable[[link.Message, list[int]], None],
        on_closed: Callable[[CorralError | None], None],
    ) -> None:
        self._sock = sock
        self._sock.settimeout(0)
        self._loop = asyncio.get_running_loop()
        self._deframer = frames.Deframer(limit)
        self._accept_fds = accept_fds
        self._on_message = on_message
        self._on_closed = on_closed
        self._fds: deque[int] = deque()
        self._outgoing: deque[_Piece] = deque()
        self._flushing = False
        self.queued = 0
        """Bytes that the other end has not taken yet."""
        self.closed = False
        self._loop.add_reader(self._sock, self._readable)

    def send(self, message: link.Message, fds: Sequence[int] = ()) -> None:
        """Send a message as soon as the loop is free and the other end reads. `fds` must stay open until
        then; nothing happens on a closed channel.
        """
        if self.closed:
            return
        data = frames.encode(message)
        self.queued += len(data)
        if fds or not self._outgoing or self._outgoing[-1].fds:
            self._outgoing.append(_Piece(bytearray(data), tuple(fds)))
        else:
            # What is said in one turn of the loop leaves in one call.
            self._outgoing[-1].data.extend(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def pause(self) -> None:
        """Read no more for now."""
        if not self.closed:
            self._loop.remove_reader(self._sock)

    def resume(self) -> None:
        """Read again."""
        if not self.closed:
            self._loop.add_reader(self._sock, self._readable)

    def close(self, error: CorralError | None = None) -> None:
        """Close this end. Idempotent."""
        if self.closed:
            return
        if error is None:
            self._flush()
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._outgoing.clear()
        while self._fds:
            os.close(self._fds.popleft())
        self._on_closed(error)

    def _readable(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except (OSError, CorralError) as error:
            self.close(error if isinstance(error, CorralError) else None)
            return
        if not data:
            self.close()
            return
        try:
            for body in self._deframer.feed(data):
                self._dispatch(frames.decode(body))
                if self.closed:
                    return
        except CorralError as error:
            self.close(error)

    def _receive(self) -> bytes:
        if not self._accept_fds:
            # Plain recv: the kernel drops descriptors that nobody asked for.
            return self._sock.recv(_READ)
        space = socket.CMSG_SPACE(_MAX_FDS * 4)
        data, ancillary, flags, _ = self._sock.recvmsg(_READ, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC or len(self._fds) > _MAX_WAITING_FDS:
            raise InvalidInput("the gateway's link carried too many descriptors", "restart the daemon")
        return data

    def _dispatch(self, message: link.Message) -> None:
        wanted = 0
        if self._accept_fds and isinstance(message, link.Attach | link.SetPolicy):
            wanted = len(message.listeners)
        if self._accept_fds and isinstance(message, link.Spool | link.SetJournal):
            wanted = 1
        if wanted > len(self._fds):
            raise InvalidInput("a message came without its descriptors", "restart the daemon")
        self._on_message(message, [self._fds.popleft() for _ in range(wanted)])

    def _flush(self) -> None:
        while self._outgoing and not self.closed:
            piece = self._outgoing[0]
            rights = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", piece.fds))] if piece.fds else []
            )
            try:
                sent = self._sock.sendmsg([piece.data], rights)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError:
                # The reader sees the end of the link too, after what is still to be read.
                self._outgoing.clear()
                break
            self.queued -= sent
            if sent < len(piece.data):
                self._outgoing[0] = _Piece(piece.data[sent:], ())
            else:
                self._outgoing.popleft()
        self._flushing = False
        if not self.closed:
            self._loop.remove_writer(self._sock)
