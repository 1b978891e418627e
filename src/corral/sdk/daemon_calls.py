"""Requests about the daemon itself: its keys, settings and host."""

from collections.abc import Sequence
from typing import Any

from corral.protocol import catalog
from corral.sdk.operations import Call, Request, build, parse, reply
from corral.sdk.requests import get, post, url


def create_key(label: str) -> Call[str]:
    """A new key for the TCP interface; it is shown once."""
    return Call(
        post(url("keys"), build(catalog.CreateKey, label=label)), lambda body: parse(catalog.ApiKey, body).key
    )


def list_keys() -> Call[list[catalog.ApiKeyInfo]]:
    """What may be shown of the tenant's keys for the TCP interface."""
    return Call(get(url("keys")), lambda body: parse(catalog.ApiKeyList, body).keys)


def revoke_key(ref: str) -> Call[catalog.ApiKeyInfo]:
    """Refuse a key, by id or by a label that only one has, from the next request on."""
    return Call(post(url("keys", ref), method="DELETE"), reply(catalog.ApiKeyInfo))


def get_config() -> Call[dict[str, Any]]:
    """All settings of the daemon."""
    return Call(get(url("config")), _config)


def set_config(key: str, value: str | Sequence[str]) -> Call[dict[str, Any]]:
    """Change a setting; all settings after it."""
    body = build(catalog.SetConfig, value=value if isinstance(value, str) else list(value))
    return Call(post(url("config", key), body, "PUT"), _config)


def doctor(*, deep: bool = False) -> Call[list[catalog.Check]]:
    """What the host can do, what will not work, and what to do about it. `deep`: all layers are read and compared with what
    they were, which takes as long; those that are damaged are not used any more.
    """
    request = Request("GET", url("doctor", deep="true"), timeout=None) if deep else get(url("doctor"))
    return Call(request, lambda body: parse(catalog.Doctor, body).checks)


def host() -> Call[catalog.HostInfo]:
    """What the host can carry and carries, who waits for room, and what one's own sandboxes use."""
    return Call(get(url("host")), reply(catalog.HostInfo))


def health() -> Call[catalog.Health]:
    """Answers once the daemon can do its work."""
    return Call(get(url("health")), reply(catalog.Health))


def _config(body: bytes) -> dict[str, Any]:
    return parse(catalog.Config, body).values
