"""What `df` says, and what `prune` gives back."""

from typing import Any, cast

import pytest
from tests.conftest import Daemon

from corral import Client, Sandbox

pytestmark = pytest.mark.root
MIB = 1 << 20


def test_checkpoints_are_shown_bounded_and_given_back(daemon: Daemon, client: Client) -> None:
    box = Sandbox.create(client=client, name="box")
    names = [f"mark{number}" for number in range(4)]
    try:
        for number, name in enumerate(names):
            box.exec(f"head -c {4 * MIB} /dev/urandom > /home/user/file{number}; sync", check=True)
            client.checkpoint(box.id, name)
        uses = {item.name: item for item in client.disk().uses}
        assert uses["mark0"].kind == "checkpoint"
        assert uses["mark0"].own >= 4 * MIB
        assert uses["mark3"].own >= uses["mark0"].own
        assert uses["mark0"].shared == uses["base"].shared > 100 * MIB
        space = client.disk()
        assert 0 < space.free < space.total

        told = cast(dict[str, Any], daemon.cli_json("prune", "--dry-run", "--keep", "1"))
        assert {item["name"] for item in told["removed"]} & set(names) == set(names[:3])
        assert set(names) <= {item.name for item in client.list_templates()}
        done = client.prune(keep=2)
        assert {item.name for item in done.removed} & set(names) == set(names[:2])
        assert done.freed >= 8 * MIB
        assert {item.name for item in client.list_templates()} & set(names) == set(names[2:])

        client.set_pool("mark2", 1)
        client.set_config("checkpoints.keep", "1")
        client.checkpoint(box.id, "mark4")
        told = cast(dict[str, Any], daemon.cli_json("prune"))
        left = {item.name for item in client.list_templates()} & {*names, "mark4"}
        assert left == {"mark2", "mark4"}
        assert "OWN" in daemon.cli("df").stdout
    finally:
        client.set_config("checkpoints.keep", "none")
        for name in [*names, "mark4"]:
            daemon.cli("template", "rm", "-f", name)
