"""Checkpoints of what is awkward: odd trees, trees that change, databases in the middle of a write, full disks."""

from pathlib import Path

import pytest
from tests.conftest import Daemon

from corral import Client, Sandbox
from corral.errors import Conflict, HostError, InvalidInput, NotFound
from corral.host import btrfs
from corral.rootfs.subvolumes import BtrfsSubvolumes, PlainSubvolumes

pytestmark = pytest.mark.root
TREE = (Path(__file__).parents[1] / "attack" / "guest" / "tree.py").read_text()
ISOLATIONS = ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)]

# Each transaction moves money between two rows and counts itself; what is committed was printed after.
BANK = """
import sqlite3, sys
db = sqlite3.connect("/home/user/bank.db", isolation_level=None)
db.execute(f"PRAGMA journal_mode={sys.argv[1]}")
db.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, money INTEGER, pad BLOB)")
db.execute("INSERT OR IGNORE INTO account VALUES (1, 1000, x''), (2, 1000, x''), (3, 0, x'')")
while True:
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE account SET money = money - 1, pad = randomblob(20000) WHERE id = 1")
    db.execute("UPDATE account SET money = money + 1, pad = randomblob(20000) WHERE id = 2")
    db.execute("UPDATE account SET money = money + 1 WHERE id = 3")
    db.execute("COMMIT")
    count = db.execute("SELECT money FROM account WHERE id = 3").fetchone()[0]
    with open("/home/user/counted", "a") as told:
        told.write(f"{count}\\n")
"""
AUDIT = """
import sqlite3
db = sqlite3.connect("/home/user/bank.db")
check = db.execute("PRAGMA integrity_check").fetchone()[0]
one, two, count = (row[0] for row in db.execute("SELECT money FROM account ORDER BY id"))
told = open("/home/user/counted").read().split("\\n")[:-1]
print(check, one + two, count - int(told[-1] if told else 0))
"""


def removed(daemon: Daemon, *templates: str) -> None:
    for name in templates:
        daemon.cli("template", "rm", "-f", name)


def test_an_odd_tree_comes_out_as_it_went_in(daemon: Daemon, client: Client) -> None:
    box = Sandbox.create(client=client, name="odd")
    box.files.write("/tmp/tree.py", TREE.encode())
    box.exec(["python3", "/tmp/tree.py", "make"], user="root", check=True)
    before = box.exec(["python3", "/tmp/tree.py", "tell"], user="root", check=True).stdout
    assert '"sparse stays sparse": true' in before
    try:
        client.checkpoint(box.id, "odd")
        client.checkpoint(Sandbox.create("odd", client=client).id, "odder")  # over a layer of its own kind
        for template in ("odd", "odder"):
            copy = Sandbox.create(template, client=client)
            assert copy.exec(["python3", "/tmp/tree.py", "tell"], user="root", check=True).stdout == before
            copy.kill()
    finally:
        removed(daemon, "odd", "odder")


@pytest.mark.parametrize("journal", ["wal", "delete"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_database_is_caught_as_a_power_cut_would(
    daemon: Daemon, client: Client, isolation: str, journal: str
) -> None:
    """Whatever it has told to be committed is in the copy, and it is whole."""
    box = Sandbox.create(client=client, isolation=isolation)
    box.spawn(["python3", "-c", BANK, journal])
    box.exec("until [ $(wc -l < /home/user/counted) -gt 20 ]; do sleep 0.05; done", check=True)
    try:
        for _ in range(3):
            client.checkpoint(box.id, "bank")
            copy = Sandbox.create("bank", client=client, isolation=isolation)
            check, sum_, ahead = copy.exec(["python3", "-c", AUDIT], check=True).stdout.split()
            assert (check, sum_) == ("ok", "2000")
            assert int(ahead) in (0, 1)
            copy.kill()
    finally:
        removed(daemon, "bank")


def test_a_tree_that_changes_meanwhile_is_caught_at_one_moment(daemon: Daemon, client: Client) -> None:
    box = Sandbox.create(client=client)
    # Two names always lead to the same number, whichever moment is looked at, but for one rename.
    box.spawn(
        "mkdir t; i=0; while :; do i=$((i+1)); mkdir t/$i; echo $i > t/$i/n; ln -sfn $i t/new; mv -T t/new t/last;"
        " rm -rf t/$((i-3)); done"
    )
    box.exec("until [ -e t/last ]; do sleep 0.02; done", check=True)
    try:
        for _ in range(5):
            client.checkpoint(box.id, "moving")
            copy = Sandbox.create("moving", client=client)
            shown = copy.exec(
                "readlink t/last; cat t/last/n; ls t | grep -v -e last -e new | wc -l", check=True
            )
            last, number, count = shown.stdout.split()
            assert last == number
            assert 1 <= int(count) <= 5
            copy.kill()
    finally:
        removed(daemon, "moving")


def test_one_whose_disk_is_full_can_be_kept_and_forked(daemon: Daemon, client: Client) -> None:
    box = Sandbox.create(client=client, name="full", limits={"disk": 32 << 20})
    box.exec("head -c 100M /dev/urandom > /home/user/file; sync", timeout=60)
    try:
        client.checkpoint(box.id, "full")
        fork = box.fork()[0]
        for copy in (fork, Sandbox.create("full", client=client)):
            assert copy.exec("echo more > /home/user/more", check=True).exit_code == 0
    finally:
        removed(daemon, "full")


@pytest.mark.parametrize(
    ("name", "error"), [("base", Conflict), ("No Such", InvalidInput), ("x" * 200, InvalidInput)]
)
def test_bad_names_are_refused_before_anything_stands_still(
    client: Client, name: str, error: type[Exception]
) -> None:
    box = Sandbox.create(client=client)
    with pytest.raises(error):
        client.checkpoint(box.id, name)
    with pytest.raises(NotFound):
        client.checkpoint("nobody", "mine")
    assert box.exec(["true"]).exit_code == 0


def test_a_checkpoint_takes_the_place_of_one_of_its_name(daemon: Daemon, client: Client) -> None:
    box = Sandbox.create(client=client)
    try:
        first = client.checkpoint(box.id, "mine")
        user = Sandbox.create("mine", client=client)
        assert client.checkpoint(box.id, "mine").id != first.id
        assert user.stop().start().exec(["true"]).exit_code == 0
    finally:
        removed(daemon, "mine")


def test_a_damaged_layer_is_refused_by_name(daemon: Daemon, client: Client) -> None:
    layer = client.checkpoint(Sandbox.create(client=client).id, "mine").layers[-1].removeprefix("sha256:")
    volumes = daemon.data / "store"
    (BtrfsSubvolumes() if btrfs.is_subvolume(volumes / "layers" / layer) else PlainSubvolumes()).remove(
        volumes / "layers" / layer
    )
    try:
        with pytest.raises(HostError) as refused:
            Sandbox.create("mine", client=client)
        assert layer in refused.value.message
    finally:
        removed(daemon, "mine")
