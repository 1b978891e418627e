"""Binding operations to methods: the same operation becomes a method of the synchronous and of the asynchronous class.

An owner says what comes first in an operation's arguments (nothing for a client, the sandbox's id for a sandbox, and so
on), so that `box.pause()` is `pause_sandbox(box.id)`.

A method is made, and the module of its operation loaded, when it is first looked at: a program that runs one command does
not wait for the shapes of all that the API can do.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from corral.sdk.operations import AsyncTransport, Operation, SyncTransport

P = ParamSpec("P")
S = TypeVar("S")
A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])


class Later:
    """Stands for a module of operations that is not loaded yet, and its attributes for the operations."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> "_Operation":
        return _Operation(self._module, name)


@dataclass(frozen=True, slots=True)
class _Operation:
    module: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.load()(*args, **kwargs)

    def load(self) -> Callable[..., Any]:
        build: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return build


class _Method:
    """Becomes the method when it is first asked for."""

    def __init__(self, operation: _Operation, bind: Callable[[Any], Any]) -> None:
        self._operation = operation
        self._bind = bind

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        method = self._bind(self._operation.load())
        setattr(self._owner, self._name, method)
        return method.__get__(instance, owner)


def _lazily(bind: F) -> F:
    """The binder, for what stands for an operation too."""

    @functools.wraps(bind)
    def binder(build: Any) -> Any:
        return _Method(build, bind) if isinstance(build, _Operation) else bind(build)

    return cast(F, binder)


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


@_lazily
def client(build: Callable[P, Operation[S, A]]) -> Callable[Concatenate[OfClient, P], S]:
    """A method of a client."""

    def method(self: OfClient, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return build(*args, **kwargs).run(self.transport)

    return _documented(method, build, 0)


@_lazily
def async_client(build: Callable[P, Operation[S, A]]) -> Callable[Concatenate[OfAsyncClient, P], A]:
    """A method of an asynchronous client."""

    def method(self: OfAsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> A:
        return build(*args, **kwargs).run_async(self.transport)

    return _documented(method, build, 0)


@_lazily
def sandbox(build: Callable[Concatenate[str, P], Operation[S, A]]) -> Callable[Concatenate[OfSandbox, P], S]:
    """A method of a sandbox."""

    def method(self: OfSandbox, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return build(self.id, *args, **kwargs).run(self.transport)

    return _documented(method, build, 1)


@_lazily
def async_sandbox(
    build: Callable[Concatenate[str, P], Operation[S, A]],
) -> Callable[Concatenate[OfAsyncSandbox, P], A]:
    """A method of an asynchronous sandbox."""

    def method(self: OfAsyncSandbox, /, *args: P.args, **kwargs: P.kwargs) -> A:
        return build(self.id, *args, **kwargs).run_async(self.transport)

    return _documented(method, build, 1)


@_lazily
def process(
    build: Callable[Concatenate[str, int, P], Operation[S, A]],
) -> Callable[Concatenate[OfProcess, P], S]:
    """A method of a process."""

    def method(self: OfProcess, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return build(self.sandbox_id, self.id, *args, **kwargs).run(self.transport)

    return _documented(method, build, 2)


@_lazily
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
