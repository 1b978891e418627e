"""What commands share: the client, made on first use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from corral.sdk.client import Client

R = TypeVar("R")


class App:
    """The state of one invocation."""

    def __init__(self, client: "Client | None" = None) -> None:
        self._client = client

    @property
    def client(self) -> "Client":
        """The client of the daemon that the environment names."""
        if self._client is None:
            from corral.sdk.client import Client

            self._client = Client()
            click.get_current_context().call_on_close(self._client.close)
        return self._client


def pass_app(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the App as its first argument."""

    def invoke(*args: Any, **kwargs: Any) -> R:
        root = click.get_current_context().find_root()
        if not isinstance(root.obj, App):
            root.obj = App()
        return command(root.obj, *args, **kwargs)

    invoke.__name__ = command.__name__
    invoke.__doc__ = command.__doc__
    return _with_params(invoke, command)


def _with_params(invoke: Callable[..., R], command: Callable[..., Any]) -> Callable[..., R]:
    """Keep options that were declared below `pass_app`."""
    params = getattr(command, "__click_params__", None)
    if params is not None:
        invoke.__click_params__ = params  # type: ignore[attr-defined]  # click's own convention
    return invoke
