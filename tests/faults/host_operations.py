"""Operations on what the host keeps for all sandboxes, on what happens without being asked for, and on what leaves it."""

import subprocess

from tests.faults.machine import TINY
from tests.faults.operations import (
    BOX,
    KEPT,
    MADE,
    RUN,
    Operation,
    guarded,
    is_made,
    nothing,
    running,
    stopped,
)
from tests.faults.rule_operations import SECRET, has_ended, let_pass, until
from tests.faults.template_operations import REPO, SETUP, build, checkpoints, repo_of, two_checkpoints
from tests.traces import wait_for

from corral import Client
from corral.model.lifecycle import State

MODEL = "model-of-its-own"
RENEWED = {**SETUP, "steps": [{"run": "mkdir ignored; cat one one > ignored/two"}]}
_PULLED = f"refs/corral/{BOX}"


# -- settings of tenants and of the host ----------------------------------------------------------------------------


def _with_key(client: Client) -> None:
    client.put_secret(SECRET, "value-of-a-secret", "openai", "https://models.example.org")


def _price(client: Client, dollars: int) -> None:
    client.set_price(SECRET, MODEL, input=dollars, output=dollars, cache_read=0, cache_write=0)


def _host(client: Client) -> tuple[object, ...]:
    """What is set for all: the price of a model, rules for models, the tenant's budget, a setting."""
    prices = {item.model: item.input for item in client.list_prices()}
    caps = {str(item.window): item.cap for item in client.tenant_budget().accounts}
    return prices.get(MODEL), client.models().models, caps["total"], client.get_config()["idle.pause"]


def reset(client: Client) -> None:
    """Put back what is set for all. A price has no end: that of a secret that is gone stays."""
    _with_key(client)
    _price(client, 1)
    client.remove_secret(SECRET)
    client.set_models(["*"])
    client.set_tenant_budget(None)
    for key, value in (("idle.pause", "0"), ("checkpoints.keep", "none"), ("audit.keep", "none")):
        client.set_config(key, value)


# -- what happens by itself ------------------------------------------------------------------------------------------


def _first(client: Client) -> int:
    return next(iter(client.read_audit())).sequence


def _archive(client: Client) -> None:
    """All but the last record are of two days ago here: see `pointed`."""
    former = _first(client)
    client.set_config("audit.keep", "1")
    wait_for(lambda: _first(client) > former, "no record was moved")


def _resting(client: Client) -> None:
    running(client, idle_pause=1, idle_stop=4)
    until(State.PAUSED)(client)


def _keeping_one(client: Client) -> None:
    two_checkpoints(client)
    client.set_config("checkpoints.keep", "1")


def _one_more(client: Client) -> None:
    client.checkpoint(BOX, "cut-third")
    wait_for(lambda: checkpoints(client) == ["cut-third"], "the others stay")


def _set_up(client: Client) -> None:
    client.create_sandbox(name="first", repo=str(REPO), branch="auto", setup=SETUP)
    client.remove_sandbox("first")


def _setup_template(client: Client) -> list[str]:
    return [item.id for item in client.list_templates() if item.name.startswith("setup-cut-")]


def _renew(client: Client) -> None:
    former = _setup_template(client)
    client.create_sandbox(name=BOX, repo=str(REPO), branch="auto", setup=RENEWED)
    wait_for(lambda: _setup_template(client) != former, "its setup was not renewed")


# -- what comes out --------------------------------------------------------------------------------------------------


def _saved(client: Client) -> None:
    guarded(client)
    client.checkpoint(BOX, MADE, memory=True)


def _worked(client: Client) -> None:
    _git("update-ref", "-d", _PULLED)
    client.create_sandbox(name=BOX, repo=str(REPO), branch="auto")
    client.write_file(BOX, KEPT, "kept")
    where = client.get_sandbox(BOX).workdir
    done = client.exec_command(BOX, "echo two > two; git add two; git commit -qm two", cwd=where)
    assert done.exit_code == 0, done.stderr


def _git(*command: str) -> str:
    return subprocess.run(["git", "-C", REPO, *command], check=True, capture_output=True, text=True).stdout


def _pulled(_: Client) -> str:
    """The last commit that was brought out, and whether the repository is sound."""
    _git("fsck", "--strict")
    return _git("for-each-ref", "--format=%(subject)", _PULLED).strip()


def _learning(client: Client) -> bool:
    try:
        client.lock_egress(BOX, dry_run=True)
    except Exception:  # noqa: BLE001 - it says what it refuses, which is looked at elsewhere
        return False
    return True


# -- steps -----------------------------------------------------------------------------------------------------------


def _built(client: Client) -> None:
    build(client, "new")


def _give_up(client: Client) -> None:
    begun = client.start_build(MADE, dockerfile=f"FROM {TINY}\nRUN sleep 60\n")
    wait_for(lambda: len(client.list_sandboxes()) > 0, "its step does not run")
    client.cancel_build(begun.id)


HOST_OPERATIONS = {
    "settings for all": Operation(
        _with_key,
        (
            lambda c: _price(c, 2),
            lambda c: c.set_models(["gpt-*"]),
            lambda c: c.set_tenant_budget(7_000_000),
            lambda c: c.set_config("idle.pause", "3600"),
        ),
        look=_host,
        seen=(
            (1, ["*"], None, 0.0),
            (2, ["*"], None, 0.0),
            (2, ["gpt-*"], None, 0.0),
            (2, ["gpt-*"], 7_000_000, 0.0),
            (2, ["gpt-*"], 7_000_000, 3600.0),
        ),
    ),
    "move audit records": Operation(
        running, (_archive,), RUN, RUN, lambda c: c.check_audit().fault, ("", "")
    ),
    "stop of a paused one": Operation(_resting, (until(State.STOPPED),), State.PAUSED, State.STOPPED),
    "time of a stopped one passes": Operation(
        stopped, (let_pass,), State.STOPPED, None, has_ended, (None, None)
    ),
    "retention": Operation(_keeping_one, (_one_more,), RUN, RUN),
    "renew a setup": Operation(_set_up, (_renew,), None, RUN, repo_of, (None, "one\noneoneone")),
    "export a checkpoint with memory": Operation(
        _saved, (lambda c: b"".join(c.export_template(MADE)),), RUN, RUN, is_made, (True, True)
    ),
    "pull commits": Operation(_worked, (lambda c: c.pull(BOX),), RUN, RUN, _pulled, ("", "two")),
    "learn and lock": Operation(
        running,
        (lambda c: c.learn_egress(BOX), lambda c: c.lock_egress(BOX)),
        RUN,
        RUN,
        _learning,
        (False, True, False),
    ),
    "processes": Operation(
        running,
        (
            lambda c: c.start_process(BOX, ["sleep", "1000"]),
            lambda c: c.signal_process(BOX, 1, 15),
        ),
        RUN,
        RUN,
    ),
    "forget steps": Operation(_built, (lambda c: c.forget_steps(),), look=is_made, seen=(True, True)),
    "give up a build": Operation(nothing, (_give_up,), look=is_made, seen=(False, False)),
}
