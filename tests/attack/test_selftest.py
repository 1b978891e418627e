"""`corral self-test`: what a user runs finds nothing here, and would notice a defence that is missing."""

import json
import re
import socket
from typing import TYPE_CHECKING

import pytest

from corral.cli.main import COMMANDS
from corral.testing.attack import selftest
from corral.testing.attack.arena import Arena, Attack, EscapedError, expect, need, open_arena
from corral.testing.attack.selftest import Verdict, run_attacks

if TYPE_CHECKING:
    from tests.attack.conftest import Range

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


def test_no_attack_gets_through(arena: "Range", isolation: str) -> None:
    """G-346."""
    done = arena.daemon.cli("self-test", "--isolation", isolation, "--json", check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [item for item in found if item["verdict"] in ("escaped", "failed")] == []
    assert (done.returncode, len(found)) == (0, len(selftest.ATTACKS))
    assert len([item for item in found if item["verdict"] == "stopped"]) >= 95
    assert arena.client.list_sandboxes({"corral.self-test": "1"}) == []
    assert not [item for item in arena.client.list_secrets() if item.name.startswith("self-test")]


def test_what_gets_through_is_told(arena: "Range") -> None:
    """An attack on a service that may be reached, two that cannot be carried out, and one that finds nothing."""

    def reach(box: Arena) -> str:
        with socket.create_connection(("127.0.0.1", box.trap.tcp_port)):
            box.untouched()
        return "never"

    def fail(box: Arena) -> str:
        raise OSError("broken")

    def lack(box: Arena) -> str:
        need(box.folder is None, "no folder")
        return "never"

    runs = (reach, fail, lack, lambda _: "held")
    made = [Attack(str(number), "G-0", "tried", run) for number, run in enumerate(runs)]
    found = list(run_attacks(arena.client, "container", made))
    ends = [Verdict.ESCAPED, Verdict.FAILED, Verdict.FAILED, Verdict.STOPPED]
    assert [item.verdict for item in found] == ends
    assert "tcp" in found[0].said


def test_a_reachable_sandbox_would_be_noticed(arena: "Range") -> None:
    """The programs notice what answers them: here, a server of the sandbox's own."""
    with open_arena(arena.client, "container") as made:
        code = "import socket; s = socket.socket(); s.bind(('', 7777)); s.listen(); print('up', flush=True); s.accept()"
        server = made.plain.spawn(["python3", "-c", code])
        next(iter(server.output()))
        assert made.net(made.plain, ("tcp", "127.0.0.1", 7777)) == ["ok"]
        with pytest.raises(EscapedError):
            expect(held=False, otherwise="reached")


def test_every_attack_names_a_rule() -> None:
    rule = re.compile(r"(G|RES|FILE)-\d+( to G-\d+)?|design \d+")
    rules = [rule.fullmatch(one) for attack in selftest.ATTACKS for one in attack.rules.split(", ")]
    assert all(rules)
    assert len({attack.name for attack in selftest.ATTACKS}) == len(selftest.ATTACKS) >= 120
    assert "self-test" in COMMANDS
