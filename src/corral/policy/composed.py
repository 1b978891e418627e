"""The services of a compose file, as a sandbox can have them: there is no container engine in one. No I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

MAX_SERVICES = 20
_MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Packaged:
    """A server that Debian has: its packages, what starts it as the sandbox's user, the TCP port at which it listens."""

    packages: str
    run: str
    port: int


@dataclass(frozen=True, slots=True)
class Composed:
    """A service's name and image (one line each; "" where it is built), and what does the same in a sandbox, if that is known."""

    name: str
    image: str
    packaged: Packaged | None


_POSTGRES = Packaged(
    "postgresql", 'exec sudo pg_ctlcluster "$(ls /etc/postgresql)" main start --foreground', 5432
)
_MARIADB = Packaged(
    "mariadb-server", "sudo install -d -o mysql /run/mysqld && exec sudo mariadbd --user=mysql", 3306
)
PACKAGED: Mapping[str, Packaged] = MappingProxyType(
    {
        "postgres": _POSTGRES,
        "postgresql": _POSTGRES,
        "redis": Packaged("redis-server", "exec redis-server --dir /tmp", 6379),
        "mysql": _MARIADB,
        "mariadb": _MARIADB,
        "memcached": Packaged("memcached", "exec memcached", 11211),
        "rabbitmq": Packaged("rabbitmq-server", "exec sudo rabbitmq-server", 5672),
    }
)
"""By the last word of an image's name."""


def composed(text: str) -> list[Composed]:
    """The first `MAX_SERVICES` services of a compose file; none if it cannot be read."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict):
        return []
    return [_service(str(name), service) for name, service in list(services.items())[:MAX_SERVICES]]


def _service(name: str, service: Any) -> Composed:
    image = service.get("image") if isinstance(service, dict) else None
    image = _one_line(image) if isinstance(image, str) else ""
    server = re.split(r"[:@]", image.rsplit("/", 1)[-1])[0]
    return Composed(_one_line(name), image, PACKAGED.get(server))


def _one_line(text: str) -> str:
    return re.sub(r"[^\w./:@${}-]", "", text)[:_MAX_TEXT]
