"""Operations on the files of sandboxes, on what they may do, and on what happens to them by itself."""

import io
import tarfile
from typing import Any

from tests.faults.machine import TINY
from tests.faults.operations import (
    BOX,
    KEPT,
    MADE,
    POOL,
    RUN,
    STOP,
    Operation,
    guarded,
    pooled,
    running,
    state_of,
    stopped,
)
from tests.traces import wait_for

from corral import Client
from corral.model.budget import Scope, Window
from corral.model.lifecycle import State

SECRET, KEY, ASKED = "cut-secret", "cut-key", "asked.example.com"
LARGE = b"large" * (1 << 20)
_HOME, _TREE = "/home/user", "/home/user/tree"


# -- files --------------------------------------------------------------------------------------------------------


def _tree() -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name in ("one", "two"):
            entry = tarfile.TarInfo(name)
            entry.size = 1 << 16
            archive.addfile(entry, io.BytesIO(bytes(1 << 16)))
    return held.getvalue()


def _files(client: Client) -> dict[str, int]:
    """Sizes of the files in its home, but for those of the image. What takes the place of another has a hidden name for a
    moment, of which nothing is left. An archive is unpacked file by file."""
    wait_for(lambda: not _hidden(client), "a hidden file is left")
    found = {entry.name: entry.size for entry in client.list_files(BOX, _HOME) if entry.path != _TREE}
    return {name: size for name, size in found.items() if not name.startswith(".")}


def _hidden(client: Client) -> list[str]:
    return [item.name for item in client.list_files(BOX, _HOME, depth=2) if item.name.startswith(".corral-")]


def _upload(client: Client) -> None:
    client.write_archive(BOX, _TREE, _tree())


_FILES = (
    lambda c: c.write_file(BOX, KEPT, "kept"),
    lambda c: c.write_file(BOX, f"{_HOME}/large", LARGE),
    lambda c: c.move_file(BOX, f"{_HOME}/large", f"{_HOME}/moved"),
    lambda c: b"".join(c.stream_file(BOX, f"{_HOME}/moved")),
    lambda c: c.remove_file(BOX, f"{_HOME}/moved"),
)
_LEFT, _MOVED = {"kept": 4}, {"kept": 4, "moved": len(LARGE)}
_SEEN = (_LEFT, _LEFT, {"kept": 4, "large": len(LARGE)}, _MOVED, _MOVED, _LEFT)


# -- pools and time -----------------------------------------------------------------------------------------------


def _pool_of(client: Client, text: str) -> None:
    client.build_template_from(MADE, dockerfile=f"FROM {TINY}\nCOPY <<EOF /made\n{text}\nEOF\n")


def _pooled_of_made(client: Client) -> None:
    _pool_of(client, "former")
    client.set_pool(MADE, 1)
    wait_for(lambda: client.list_pools()[0].ready == 1, "the pool is not filled")


def _replace_pooled(client: Client) -> None:
    _pool_of(client, "new")
    wait_for(lambda: client.list_pools()[0].ready == 1, "the pool is not filled again")


def _from_pool(client: Client) -> str:
    wait_for(lambda: client.list_pools()[0].ready == 1, "the pool is not filled")
    box = client.create_sandbox(MADE)
    return client.read_file(box.id, "/made").strip()


def until(state: State | None) -> Any:
    """An act that waits for a state."""
    return lambda client: wait_for(lambda: state_of(client) is state, f"it is not {state}")


def let_pass(client: Client) -> None:
    """Let its time to live pass."""
    client.set_ttl(BOX, 1)
    until(None)(client)


def has_ended(client: Client) -> None:
    """What was to end by now does that by itself, also after a restart."""
    wait_for(
        lambda: state_of(client) is None or client.get_sandbox(BOX).ttl is None,
        "its time passed, and it is there",
    )


# -- rules --------------------------------------------------------------------------------------------------------


def _egress(client: Client) -> list[str]:
    return sorted(f"{'not ' * rule.deny}{rule.rule}" for rule in client.get_egress(BOX))


def _with_secret(client: Client) -> None:
    client.put_secret(SECRET, "value-of-a-secret", "openai")
    running(client, secrets=[SECRET])


def _grant(client: Client) -> tuple[object, ...]:
    grant = client.grant(BOX)
    return grant.state, grant.models, grant.former_until is not None


def _ask(client: Client) -> None:
    client.start_process(BOX, ["corral-ask", "host", ASKED, "to read"])
    wait_for(lambda: client.list_approvals(BOX, status="pending"), "nothing was asked")


def _approve(client: Client) -> None:
    client.approve(client.list_approvals(BOX, status="pending")[0].id, "sandbox")


def _deny(client: Client) -> None:
    client.deny(client.list_approvals(BOX, status="pending")[0].id)


def _answers(client: Client) -> tuple[list[str], bool]:
    """How its questions ended, and whether it may reach what it asked for."""
    status = [str(item.status) for item in client.list_approvals(BOX)]
    return status, client.check_egress(BOX, f"https://{ASKED}/").allowed


def _bounds(client: Client) -> tuple[object, ...]:
    accounts = {(item.scope, item.window): item.cap for item in client.budget(BOX).accounts}
    return accounts[Scope.SANDBOX, Window.TOTAL], client.rates(BOX).calls, client.tenant_rates().calls


def _secrets(client: Client) -> tuple[list[str], int]:
    """Where its secret goes, and how many keys of the API there are."""
    urls = [item.base_url for item in client.list_secrets() if item.name == SECRET]
    return urls, len([item for item in client.list_keys() if item.label == KEY])


_OPENAI, _OWN = "https://api.openai.com", "https://models.example.org"
RULE_OPERATIONS = {
    "files of a running one": Operation(running, (*_FILES, _upload), RUN, RUN, _files, (*_SEEN, _LEFT)),
    "files in gVisor": Operation(guarded, _FILES, RUN, RUN, _files, _SEEN),
    "files of a stopped one": Operation(stopped, _FILES, STOP, STOP, _files, _SEEN),
    "remove a pool": Operation(
        pooled, (lambda c: c.remove_pool(POOL),), look=lambda c: len(c.list_pools()), seen=(1, 0)
    ),
    "replace a pool's template": Operation(
        _pooled_of_made, (_replace_pooled,), look=_from_pool, seen=("former", "new")
    ),
    "time passes": Operation(running, (let_pass,), RUN, None, has_ended, (None, None)),
    "pause of an idle one": Operation(
        lambda c: running(c, idle_pause=1), (until(State.PAUSED),), RUN, State.PAUSED
    ),
    "stop of an idle one": Operation(lambda c: running(c, idle_stop=1), (until(STOP),), RUN, STOP),
    "egress": Operation(
        running,
        (
            lambda c: c.change_egress(BOX, allow=["one.example.org"]),
            lambda c: c.change_egress(BOX, deny=["two.example.org"]),
            lambda c: c.change_egress(BOX, remove=["one.example.org"]),
        ),
        RUN,
        RUN,
        _egress,
        ([], ["one.example.org"], ["not two.example.org", "one.example.org"], ["not two.example.org"]),
    ),
    "grants": Operation(
        _with_secret,
        (
            lambda c: c.change_grant(BOX, models=["gpt-*"]),
            lambda c: c.renew_grant(BOX),
            lambda c: c.revoke_grant(BOX),
        ),
        RUN,
        RUN,
        _grant,
        (
            ("good", ["*"], False),
            ("good", ["gpt-*"], False),
            ("good", ["gpt-*"], True),
            ("revoked", ["gpt-*"], False),
        ),
    ),
    "approvals": Operation(
        running,
        (_ask, _approve),
        RUN,
        RUN,
        _answers,
        (([], False), (["withdrawn"], False), (["allowed"], True)),
    ),
    "approvals that are denied": Operation(
        running,
        (_ask, _deny),
        RUN,
        RUN,
        _answers,
        (([], False), (["withdrawn"], False), (["denied"], False)),
    ),
    "budgets": Operation(
        running,
        (
            lambda c: c.set_budget(BOX, 5_000_000),
            lambda c: c.set_rates(BOX, {"calls": 3}),
            lambda c: c.set_tenant_rates({"calls": 4}),
        ),
        RUN,
        RUN,
        _bounds,
        ((25_000_000, None, None), (5_000_000, None, None), (5_000_000, 3, None), (5_000_000, 3, 4)),
    ),
    "secrets and keys": Operation(
        running,
        (
            lambda c: c.put_secret(SECRET, "value-of-a-secret", "openai"),
            lambda c: c.rotate_secret(SECRET, "another-value"),
            lambda c: c.put_secret(SECRET, "value-of-a-secret", "openai", _OWN),
            lambda c: c.remove_secret(SECRET),
            lambda c: c.create_key(KEY),
            lambda c: c.revoke_key(KEY),
        ),
        RUN,
        RUN,
        _secrets,
        (([], 0), ([_OPENAI], 0), ([_OPENAI], 0), ([_OWN], 0), ([], 0), ([], 1), ([], 0)),
    ),
}
