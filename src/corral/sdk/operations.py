"""What a client can do, without I/O: each operation is a request and how to read its answer.

An operation runs on either transport: `Operation[S, A]` gives an `S` on the synchronous one and an `A` on the other. The
public classes only bind operations to methods, so both have the same ones.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from corral.errors import CorralError, DaemonUnreachable, InvalidInput, UpstreamFailed, all_errors
from corral.protocol.base import Error, ProgressLine

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
SyncT = TypeVar("SyncT", covariant=True)
AsyncT = TypeVar("AsyncT", covariant=True)

Content = bytes | Iterable[bytes] | AsyncIterable[bytes]
OnProgress = Callable[[str], None]

QUICK_SECONDS = 60.0
"""How long an answer may stay away, where the daemon does no long work; also the longest silence of a stream."""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. `path` includes the query; `timeout` is the longest wait for the next bytes, None for no end."""

    method: str
    path: str
    body: Content | None = None
    json: bool = False
    accept: str = "application/json"
    timeout: float | None = QUICK_SECONDS

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again after it failed half-way."""
        return self.method == "GET"


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event."""

    name: str
    data: str


class SyncTransport(Protocol):
    """Sends requests. Raises CorralErrors only."""

    def fetch(self, request: Request) -> bytes:
        """The body of a successful answer."""

    def events(self, request: Request) -> Generator[Event, None, None]:
        """The events of a successful answer; DaemonUnreachable if the connection breaks."""

    def chunks(self, request: Request) -> Iterator[bytes]:
        """The body of a successful answer, as it comes."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class AsyncTransport(Protocol):
    """Sends requests. Raises CorralErrors only."""

    async def fetch(self, request: Request) -> bytes:
        """The body of a successful answer."""

    def events(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of a successful answer; DaemonUnreachable if the connection breaks."""

    def chunks(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a successful answer, as it comes."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class Operation(ABC, Generic[SyncT, AsyncT]):
    """Something to do."""

    @abstractmethod
    def run(self, transport: SyncTransport) -> SyncT:
        """Do it."""

    @abstractmethod
    def run_async(self, transport: AsyncTransport) -> AsyncT:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Call(Operation[T, Coroutine[Any, Any, T]], Generic[T]):
    """One request, one answer."""

    request: Request
    decode: Callable[[bytes], T]

    def run(self, transport: SyncTransport) -> T:
        """The decoded answer."""
        return self.decode(transport.fetch(self.request))

    async def run_async(self, transport: AsyncTransport) -> T:
        """The decoded answer."""
        return self.decode(await transport.fetch(self.request))


@dataclass(frozen=True, slots=True)
class Download(Operation[Iterator[bytes], AsyncIterator[bytes]]):
    """One request, a body as it comes."""

    request: Request

    def run(self, transport: SyncTransport) -> Iterator[bytes]:
        """Chunks."""
        return transport.chunks(self.request)

    def run_async(self, transport: AsyncTransport) -> AsyncIterator[bytes]:
        """Chunks."""
        return transport.chunks(self.request)


@dataclass(frozen=True, slots=True)
class Follow(Operation[Iterator[T], AsyncIterator[T]], Generic[T]):
    """One request, a stream of events: those that `decode` gives a value for."""

    request: Request
    decode: Callable[[Event], T | None]

    def run(self, transport: SyncTransport) -> Iterator[T]:
        """Values as they come."""
        with closing(transport.events(self.request)) as events:
            for event in events:
                raise_error_event(event)
                if (value := self.decode(event)) is not None:
                    yield value

    async def run_async(self, transport: AsyncTransport) -> AsyncIterator[T]:
        """Values as they come."""
        async with aclosing(transport.events(self.request)) as events:
            async for event in events:
                raise_error_event(event)
                if (value := self.decode(event)) is not None:
                    yield value


@dataclass(frozen=True, slots=True)
class LongCall(Operation[T, Coroutine[Any, Any, T]], Generic[T]):
    """Work that tells its progress before it gives its result."""

    request: Request
    decode: Callable[[bytes], T]
    progress: OnProgress | None = None

    def run(self, transport: SyncTransport) -> T:
        """The result."""
        with closing(transport.events(self.request)) as events:
            for event in events:
                if (found := self._take(event)) is not None:
                    # Up to the end, so that the connection can be used again.
                    with suppress(DaemonUnreachable):
                        for _ in events:
                            pass
                    return found
        raise _broken_off()

    async def run_async(self, transport: AsyncTransport) -> T:
        """The result."""
        async with aclosing(transport.events(self.request)) as events:
            async for event in events:
                if (found := self._take(event)) is not None:
                    with suppress(DaemonUnreachable):
                        async for _ in events:
                            pass
                    return found
        raise _broken_off()

    def _take(self, event: Event) -> T | None:
        raise_error_event(event)
        if event.name == "progress" and self.progress is not None:
            self.progress(parse(ProgressLine, event.data).message)
        return self.decode(event.data.encode()) if event.name == "result" else None


def raise_error_event(event: Event) -> None:
    """Raise what an event `error` tells."""
    if event.name == "error":
        raise error_of(parse(Error, event.data))


def error_of(body: Error) -> CorralError:
    """The error that a body tells, in its own class where this version knows it."""
    return all_errors().get(body.code, CorralError)(body.message, body.hint)


def failure(status: int, body: bytes) -> CorralError:
    """The error of an answer that is none."""
    try:
        return error_of(Error.model_validate_json(body))
    except ValidationError:
        return UpstreamFailed(
            f"the answer (HTTP {status}) is not one of a Corral daemon",
            "check CORRAL_URL and what is between",
        )


def parse(model: type[M], text: str | bytes) -> M:
    """A reply of the daemon. Raises UpstreamFailed if it is not one."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise UpstreamFailed(
            f"the daemon's answer is not understood: {error.errors()[0]['msg']}",
            "use the same version of Corral on both sides: `corral --version`",
        ) from None


def reply(model: type[M]) -> Callable[[bytes], M]:
    """A decoder of one model."""
    return lambda body: parse(model, body)


def build(model: type[M], /, **values: Any) -> M:
    """A request's body. Raises InvalidInput for what the API would refuse anyway."""
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{place}: {first['msg']}", "correct this value and try again") from None


def encode(body: BaseModel, **secrets: str) -> bytes:
    """The JSON of a request's body, without what was not given. `secrets` are fields that the body's shape writes out for
    nobody.
    """
    if not secrets:
        return body.model_dump_json(exclude_unset=True).encode()
    return json.dumps({**body.model_dump(mode="json", exclude_unset=True), **secrets}).encode()


def _broken_off() -> CorralError:
    return UpstreamFailed("the daemon ended its answer before the result", "look at `corral daemon logs`")
