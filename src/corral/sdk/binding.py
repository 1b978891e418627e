"""Binding operations to methods: the same operation becomes a method of the synchronous and of the asynchronous class.

An owner says what comes first in an operation's arguments (nothing for a client, the sandbox's id for a sandbox, and so
on), so that `box.pause()` is `pause_sandbox(box.id)`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from corral.sdk.operations import AsyncTransport, Operation, SyncTransport

P = ParamSpec("P")
S = TypeVar("S")
A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])


class OfClient(Protocol):
    """Owns a synchronous transport."""

    @property
    def transport(self) -> SyncTransport:
        """Where requests go."""


class OfAsyncClient(Protocol):
    """Owns an asynchronous transport."""

    @property
    def transport(self) -> AsyncTransport:
        """Where requests go."""


class OfSandbox(OfClient, Protocol):
    """Belongs to a sandbox."""

    @property
    def id(self) -> str:
        """The sandbox's id."""


class OfAsyncSandbox(OfAsyncClient, Protocol):
    """Belongs to a sandbox."""

    @property
    def id(self) -> str:
        """The sandbox's id."""


class OfProcess(OfClient, Protocol):
    """Belongs to a process in a sandbox."""

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""

    @property
    def id(self) -> int:
        """The process's id."""


class OfAsyncProcess(OfAsyncClient, Protocol):
    """Belongs to a process in a sandbox."""

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""

    @property
    def id(self) -> int:
        """The process's id."""


def client(build: Callable[P, Operation[S, A]]) -> Callable[Concatenate[OfClient, P], S]:
    """A method of a client."""

    def method(self: OfClient, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return build(*args, **kwargs).run(self.transport)

    return _documented(method, build, 0)


def async_client(build: Callable[P, Operation[S, A]]) -> Callable[Concatenate[OfAsyncClient, P], A]:
    """A method of an asynchronous client."""

    def method(self: OfAsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> A:
        return build(*args, **kwargs).run_async(self.transport)

    return _documented(method, build, 0)


def sandbox(build: Callable[Concatenate[str, P], Operation[S, A]]) -> Callable[Concatenate[OfSandbox, P], S]:
    """A method of a sandbox."""

    def method(self: OfSandbox, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return build(self.id, *args, **kwargs).run(self.transport)

    return _documented(method, build, 1)


def async_sandbox(
    build: Callable[Concatenate[str, P], Operation[S, A]],
) -> Callable[Concatenate[OfAsyncSandbox, P], A]:
    """A method of an asynchronous sandbox."""

    def method(self: OfAsyncSandbox, /, *args: P.args, **kwargs: P.kwargs) -> A:
        return build(self.id, *args, **kwargs).run_async(self.transport)

    return _documented(method, build, 1)


def process(
    build: Callable[Concatenate[str, int, P], Operation[S, A]],
) -> Callable[Concatenate[OfProcess, P], S]:
    """A method of a process."""

    def method(self: OfProcess, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return build(self.sandbox_id, self.id, *args, **kwargs).run(self.transport)

    return _documented(method, build, 2)


def async_process(
    build: Callable[Concatenate[str, int, P], Operation[S, A]],
) -> Callable[Concatenate[OfAsyncProcess, P], A]:
    """A method of an asynchronous process."""

    def method(self: OfAsyncProcess, /, *args: P.args, **kwargs: P.kwargs) -> A:
        return build(self.sandbox_id, self.id, *args, **kwargs).run_async(self.transport)

    return _documented(method, build, 2)


def _documented(method: F, build: Callable[..., Any], supplied: int) -> F:
    """`method` with the name, text and signature of `build`, whose first `supplied` arguments its owner gives."""
    functools.update_wrapper(method, build)
    del method.__wrapped__  # type: ignore[attr-defined]  # set by update_wrapper; would hide the signature
    signature = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    rest = list(signature.parameters.values())[supplied:]
    method.__signature__ = signature.replace(parameters=[own, *rest])  # type: ignore[attr-defined]
    return method
