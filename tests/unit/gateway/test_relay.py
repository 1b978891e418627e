"""What comes before there is a peer."""

from typing import Any

from corral.gateway.relay import BUFFER, Side, join


class Transport:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, _: str) -> None:
        """There is none."""

    def set_write_buffer_limits(self, **_: Any) -> None:
        """Nothing to limit."""

    def pause_reading(self) -> None:
        """What has been read comes all the same."""


def made(*, waits: bool = False) -> tuple[Side, Transport]:
    side, transport = Side(waits=waits), Transport()
    side.connection_made(transport)  # type: ignore[arg-type]
    return side, transport


async def test_what_a_server_says_first_is_not_lost() -> None:
    """G-299."""
    (client, to_client), (upstream, to_server) = made(), made(waits=True)
    upstream.data_received(b"220 ready")
    client.data_received(b"hello")
    join(client, upstream)
    upstream.data_received(b", go on")
    assert (to_client.written, to_server.written) == (b"220 ready, go on", b"hello")


async def test_not_without_end() -> None:
    """G-340."""
    side, transport = made(waits=True)
    side.data_received(b"x" * (BUFFER + 1))
    assert transport.aborted
