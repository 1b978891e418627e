"""A daemon that listens on TCP, with keys of two tenants; and how a tenant is rid of what it has."""

import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corral import Client
from corral.store.keys import Keys, load_key

if TYPE_CHECKING:
    from tests.conftest import Daemon

OTHER = "acme"


@dataclass(frozen=True)
class Remote:
    """Where it listens, the key of the tenant that is there from the start, and that of another one."""

    daemon: "Daemon"
    url: str
    key: str
    other: str

    def client(self, key: str) -> Client:
        """A client with that key."""
        return Client(self.url, key)


def remove_all(client: Client) -> None:
    """Remove all pools, sandboxes and volumes of its tenant."""
    for pool in client.list_pools():
        client.remove_pool(pool.template, pool.isolation)
    for sandbox in client.list_sandboxes():
        client.remove_sandbox(sandbox.id)
    for volume in client.list_volumes():
        client.remove_volume(volume.id)


@contextmanager
def listening(daemon: "Daemon") -> Iterator[Remote]:
    """`daemon` on a port of this host for as long as that is held. The other tenant begins with nothing and leaves nothing,
    whatever a test that failed, or a run that was killed, had made for it.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    key = str(json.loads(daemon.cli("key", "create", "test", "--json").stdout)["key"])
    daemon.cli("config", "set", "api.listen", address)
    daemon.stop()
    daemon.start()
    remote = Remote(daemon, f"http://{address}", key, _add_key(daemon))
    try:
        with remote.client(remote.other) as client:
            remove_all(client)
            yield remote
            remove_all(client)
    finally:
        daemon.cli("config", "set", "api.listen", "")
        daemon.stop()
        with closing(sqlite3.connect(daemon.data / "corral.db", timeout=30)) as database, database:
            database.execute("DELETE FROM api_keys WHERE label = 'test'")
        daemon.start()


def _add_key(daemon: "Daemon") -> str:
    """A key of another tenant, which only an operator with the installation's key can make."""
    master = load_key(daemon.data / "key")
    assert master is not None
    keys = Keys(master)
    key = keys.new_api_key().reveal()
    with closing(sqlite3.connect(daemon.data / "corral.db", timeout=30)) as database, database:
        database.execute(
            "INSERT INTO api_keys (key_hash, tenant, label, created_at) SELECT ?, ?, 'test', created_at FROM api_keys LIMIT 1",
            (keys.api_key_hash(key), OTHER),
        )
    return key
