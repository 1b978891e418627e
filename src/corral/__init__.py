"""Corral: coding agents in isolated sandboxes on hardware you own."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from corral.errors import CorralError as CorralError
    from corral.sdk.async_sandbox import AsyncSandbox as AsyncSandbox
    from corral.sdk.client import AsyncClient as AsyncClient
    from corral.sdk.client import Client as Client
    from corral.sdk.results import CommandResult as CommandResult
    from corral.sdk.sandbox import Sandbox as Sandbox
    from corral.sdk.template import Template as Template

_EXPORTS = {
    "AsyncClient": "corral.sdk.client",
    "AsyncSandbox": "corral.sdk.async_sandbox",
    "Client": "corral.sdk.client",
    "CommandResult": "corral.sdk.results",
    "CorralError": "corral.errors",
    "Sandbox": "corral.sdk.sandbox",
    "Template": "corral.sdk.template",
}


def __getattr__(name: str) -> Any:
    """The SDK's public names, loaded on first use so that `import corral` stays cheap."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_EXPORTS]
