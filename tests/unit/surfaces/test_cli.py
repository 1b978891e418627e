"""The CLI over the API: commands, output, exit codes."""

import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from corral.cli import terminal
from corral.cli.execute import split_own
from corral.cli.main import COMMANDS, Commands, cli
from corral.cli.output import clean
from corral.cli.values import Duration, Size, variables
from corral.errors import CorralError, InvalidInput, all_errors
from corral.model.budget import Scope, Warned, Window
from corral.model.grants import Alias, ModelRules
from corral.model.ids import DEFAULT_TENANT, ImageId, SandboxId
from corral.model.process import OWN_TAG
from corral.model.route import EgressProxy, Route
from corral.model.sandbox import Isolation, Limits
from corral.model.secrets import Secret
from corral.model.template import MachineState
from corral.sdk.client import Client

VALUED, FLAGS = {"-u", "--user", "-e", "--env"}, {"-i", "-t", "--tty"}


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts bytes on standard input, as a pipe that stays open where `keep_open` is set."""
    saved = os.dup(0)
    open_ends: list[int] = []
    files: list[io.TextIOWrapper] = []

    def feed(data: bytes, *, keep_open: bool = False) -> None:
        reading, writing = os.pipe()
        os.write(writing, data)
        if keep_open:
            open_ends.append(writing)
        else:
            os.close(writing)
        os.dup2(reading, 0)
        os.close(reading)
        files.append(io.TextIOWrapper(os.fdopen(os.dup(0), "rb")))
        monkeypatch.setattr("sys.stdin", files[-1])

    yield feed
    for file in files:
        file.close()
    for fd in open_ends:
        os.close(fd)
    os.dup2(saved, 0)
    os.close(saved)


def walk(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    if not isinstance(group, click.Group):
        yield path, group
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from walk(command, (*path, name))


ALL = dict(walk(cli))
CLASSES: list[type[CorralError]] = sorted(all_errors().values(), key=lambda cls: cls.code)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_teaches_with_an_example(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help, path
    assert command.epilog, path
    assert f"corral {path[0]}" in command.epilog
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, (path, param.name)


def test_the_table_of_commands_names_what_is_there(corral: Any) -> None:
    assert isinstance(cli, Commands)
    shown = corral("--help")
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in shown.out
        assert len(summary) < 60


NO_RESULT = {"serve", "e2b run", "shell", "attach", "logs", "diff", "push", "files cat", "files write", "files mkdir", "files mv",
             "files rm", "price set", "daemon start", "daemon stop", "daemon logs"}  # fmt: skip


def test_every_list_and_result_has_json() -> None:
    without = {
        " ".join(path) for path, cmd in ALL.items() if not any(p.name == "as_json" for p in cmd.params)
    }
    assert without == NO_RESULT


# -- sandboxes -------------------------------------------------------------------------------------------------------


def test_create_prints_the_name_and_progress_beside(corral: Any, engine: Any) -> None:
    ran = corral("create", "--name", "box", "--memory", "2G", "--ttl", "1h", "-l", "job=4", "-e", "A=1",
                 "--allow", "example.org", "--isolation", "gvisor", "--repo", ".", "--branch", "auto")  # fmt: skip
    assert (ran.code, ran.out) == (0, "box\n")
    assert "unpacking\\x1b[2J" in ran.err
    request = engine.sandboxes.requests[0]
    assert request.limits.memory == 2 * 1024**3
    assert request.limits.pids == 2048
    assert (request.ttl, request.labels, request.env) == (3600, {"job": "4"}, {"A": "1"})
    assert (request.allow, request.branch, request.repo) == (("example.org",), "auto", str(Path.cwd()))


def test_create_several_at_once(corral: Any) -> None:
    made = json.loads(corral("create", "-n", "5", "--name", "box", "--json").out)
    assert sorted(item["name"] for item in made) == [f"box-{number}" for number in range(1, 6)]
    again = corral("create", "-n", "6", "--name", "box")
    assert (again.code, again.out) == (5, "box-6\n")
    assert "5 of 6 were not made" in again.err
    assert "is taken" in again.err


def test_ls_show_and_json(corral: Any) -> None:
    corral("create", "--name", "box", "--env", "A=1")
    lines = corral("ls").out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "TEMPLATE", "ISOLATION", "AGENT", "AGE"]
    assert lines[1].split()[:4] == ["box", "running", "base", "container"]
    assert corral("ls", "-q").out == "box\n"
    assert corral("ls", "-l", "a=b", "-q").out == ""
    assert json.loads(corral("ls", "--json").out)[0]["name"] == "box"
    shown = corral("show", "box").out
    assert re.search(r"^memory +1\.0 KiB of 4\.0 GiB$", shown, re.M)
    assert json.loads(corral("show", "box", "--json").out)["stats"]["pids"] == 3


def test_changes_of_several_go_on_after_a_failure(corral: Any) -> None:
    corral("create", "--name", "box")
    ran = corral("pause", "absent", "box")
    assert (ran.code, ran.out) == (4, "box\n")
    assert "there is no sandbox 'absent'" in ran.err
    assert json.loads(corral("resume", "box", "--json").out)["state"] == "running"
    assert corral("stop", "--grace", "0", "box").code == 0
    assert corral("start", "box").code == 0
    assert json.loads(corral("ttl", "box", "2h", "--json").out)["ttl"] == 7200
    assert json.loads(corral("ttl", "box", "never", "--json").out)["ttl"] is None
    assert corral("rm", "box").code == 0
    assert corral("rm", "box").code == 4


# -- exec ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def box(corral: Any) -> str:
    corral("create", "--name", "box")
    return "box"


@pytest.mark.parametrize(
    ("args", "read"),
    [
        ("box ls", ["--", "box", "ls"]),
        ("box -- ls -u x", ["--", "box", "ls", "-u", "x"]),
        ("-u root box -- ls", ["-u", "root", "--", "box", "ls"]),
        ("box -u root -- ls", ["-u", "root", "--", "box", "ls"]),
        ("box -u root ls -t", ["-u", "root", "--", "box", "ls", "-t"]),
        ("-it box sh", ["-it", "--", "box", "sh"]),
        ("-itu root box sh", ["-itu", "root", "--", "box", "sh"]),
        ("-uroot box sh", ["-uroot", "--", "box", "sh"]),
        ("--user=root box sh -c x", ["--user=root", "--", "box", "sh", "-c", "x"]),
        ("--user root box -- -x", ["--user", "root", "--", "box", "-x"]),
        ("-- box -x -- y", ["--", "box", "-x", "--", "y"]),
        ("box -- a -- b", ["--", "box", "a", "--", "b"]),
        ("box", ["--", "box"]),
        ("-u", ["-u", "--"]),
        ("", ["--"]),
    ],
)
def test_own_options_end_where_the_command_begins_proc23(args: str, read: list[str]) -> None:
    assert split_own(args.split(), VALUED, FLAGS) == read


def test_exec_passes_arguments_unchanged_and_ends_with_the_commands_code_proc23(
    corral: Any, engine: Any, box: str
) -> None:
    ran = corral(
        "exec",
        "-u",
        "root",
        "-w",
        "/srv",
        "-e",
        "A=1",
        "--timeout",
        "5m",
        box,
        "--",
        "echo",
        "a  b",
        "--json",
        "-e",
    )
    assert (ran.code, ran.out, ran.err) == (0, "a  b --json -e\n", "")
    spec = engine.processes.all[1].info.spec
    assert (spec.user, spec.cwd, spec.env, spec.timeout, spec.terminal) == (
        "root",
        "/srv",
        {"A": "1"},
        300,
        None,
    )
    assert corral("exec", box, "fail", "7").code == 7
    err = corral("exec", box, "--", "err", "oops")
    assert (err.out, err.err) == ("", "oops\n")


def test_exec_without_i_has_its_input_at_the_end_proc5(
    corral: Any, engine: Any, box: str, stdin: Any
) -> None:
    stdin(b"never read", keep_open=True)
    assert corral("exec", box, "cat") == corral("exec", box, "cat")
    assert engine.processes.all[1].info.spec.stdin is False


def test_exec_with_i_passes_a_pipe_whole_proc6(corral: Any, engine: Any, box: str, stdin: Any) -> None:
    stdin(b"\0\xff" * 20_000)
    assert corral("exec", "-i", box, "--", "cat").code == 0
    assert bytes(engine.processes.all[1].stdin) == b"\0\xff" * 20_000


def test_exec_ends_with_the_command_though_its_input_stays_open_proc5(
    corral: Any, box: str, stdin: Any
) -> None:
    stdin(b"", keep_open=True)
    assert corral("exec", "-i", box, "--", "echo", "done").out == "done\n"


def test_exec_detached_and_json(corral: Any, engine: Any, box: str) -> None:
    assert corral("exec", "--detach", "--tag", "t", box, "--", "hang").out == "1\n"
    assert engine.processes.all[1].info.exit is None
    ran = corral("exec", "--json", box, "--", "fail", "3")
    assert ran.code == 3
    assert json.loads(ran.out)["exit_code"] == 3
    listed = corral("ps", box).out.splitlines()
    assert listed[1].split() == ["1", "running", "user", listed[1].split()[3], "t", "hang"]
    assert json.loads(corral("ps", box, "--json").out)[1]["exit"]["code"] == 3


def test_exec_that_cannot_be(corral: Any, box: str, stdin: Any) -> None:
    stdin(b"")
    assert corral("exec", box).code == 2
    assert "needs a terminal" in corral("exec", "-it", box, "--", "sh").err
    assert corral("exec", "--json", "-i", box, "--", "cat").code == 2
    assert corral("exec", "--wrong", box, "--", "cat").code == 2
    missing = corral("exec", "absent", "--", "cat")
    assert (missing.code, missing.err) == (
        4,
        "error: there is no sandbox 'absent'\nhint: list what exists: `corral ls`\n",
    )


def test_attach_without_a_terminal_open_says_what_to_do(corral: Any, box: str) -> None:
    ran = corral("attach", box)
    assert (ran.code, ran.err) == (5, "error: no agent's terminal is open in this sandbox\nhint: start one\n")


@pytest.mark.parametrize(
    ("term", "given"),
    [
        ("xterm-ghostty", "xterm-ghostty"),
        ("weird-9000", "xterm-256color"),
        ("", "xterm-256color"),
        ("tmux", "tmux"),
    ],
)
def test_terminals_that_images_do_not_know_are_replaced_proc19(
    monkeypatch: pytest.MonkeyPatch, term: str, given: str
) -> None:
    monkeypatch.setenv("TERM", term)
    assert terminal.environment()["TERM"] == given


def test_the_size_of_a_terminal_is_never_zero_proc1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((0, 0)))
    assert terminal.size() == (24, 80)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((132, 43)))
    assert terminal.size() == (43, 132)


# -- an agent's work -------------------------------------------------------------------------------------------------


def test_run_follows_the_agent_and_sums_up(corral: Any, engine: Any) -> None:
    ran = corral(
        "run", "claude", "do it\n'now' \"please\"", "--repo", "https://example.org/x.git", "--model", "m"
    )
    assert ran.code == 0
    assert ran.out == "done\x1b[31m: do it\n'now' \"please\"\n"
    assert "brave-otter-1: done; 100 tokens, $0.0015" in ran.err
    assert "corral diff brave-otter-1" in ran.err
    assert engine.agents.prompts == [("do it\n'now' \"please\"", "m")]
    assert engine.sandboxes.requests[0].agent == "claude"


def test_run_detached_json_and_removed(corral: Any, engine: Any, stdin: Any) -> None:
    assert corral("run", "claude", "x", "--detach", "--name", "one").out == "one\n"
    result = json.loads(corral("run", "claude", "x", "--rm", "--json").out)
    assert (result["exit"]["code"], result["usage"]["cost"]) == (0, 1500)
    assert [item.spec.name for item in engine.sandboxes.by_id.values()] == ["one"]
    stdin(b"from a file")
    assert corral("run", "claude", "-", "--detach").code == 0
    assert engine.agents.prompts[-1] == ("from a file", None)
    assert corral("run", "claude", "--json").code == 2


def test_logs(corral: Any, box: str) -> None:
    assert corral("logs", box).code == 4
    corral("exec", box, "--", "echo", "first")
    assert corral("logs", box, "1").out == "first\n"
    corral("exec", "--detach", "--tag", "agent", box, "--", "echo", "second")
    assert corral("logs", "-f", box).out == "second\n"
    corral("exec", "--detach", box, "--", "hang")
    assert corral("logs", box, "3").out == ""


def test_diff_pull_usage_denials_events(corral: Any, box: str) -> None:
    assert corral("diff", box).out.startswith("--- a\n+++ b\n")
    pulled = corral("pull", box, "--into", "x").out
    assert f"repository  {Path.cwd() / 'x'}" in pulled
    assert "kind: hook, path: a\\x1bb" in pulled
    usage = corral("usage", box).out
    assert "~$0.0015" in usage
    assert "\x1b" not in usage
    assert "host=evil\\x1b[2J.example" in corral("denials", box).out
    events = corral("events").out
    assert "box  running  (why\\x1b[0m)" in events
    assert json.loads(corral("events", "--json").out)["state"] == "running"


# -- files -----------------------------------------------------------------------------------------------------------


def test_cp_both_ways(corral: Any, engine: Any, box: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\0\xff")
    assert corral("cp", str(tmp_path / "f"), "box:").code == 0
    assert engine.files.content["/home/user/f"] == b"\0\xff"
    assert corral("cp", str(tmp_path / "f"), "box:/srv/g").code == 0
    assert corral("cp", "box:/srv/g", str(tmp_path)).code == 0
    assert (tmp_path / "g").read_bytes() == b"\0\xff"
    engine.files.dirs.add("/srv")
    engine.files.links["/srv/bad"] = "/etc/passwd"
    ran = corral("cp", "box:/srv", str(tmp_path / "copy"))
    assert ran.code == 1
    assert "left out: srv/bad: its link leads out of the tree" in ran.err
    assert (tmp_path / "copy/g").exists()


def test_cp_from_and_to_the_standard_streams(
    corral: Any, engine: Any, box: str, stdin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stdin(b"said\n")
    assert corral("cp", "-", "box:/srv/said").code == 0
    assert engine.files.content["/srv/said"] == b"said\n"
    ran = corral("cp", "box:/srv/said", "-")
    assert (ran.code, ran.out) == (0, "said\n")
    assert not (tmp_path / "-").exists()
    assert corral("cp", "box:/srv/said", "./-").code == 0
    assert (tmp_path / "-").read_bytes() == b"said\n"
    assert corral("cp", "--json", "box:/srv/said", "-").code == 2
    engine.files.dirs.add("/srv")
    for target in ("box:", "box:/srv", "box:/srv/"):
        assert corral("cp", "-", target).code == 2
    assert corral("cp", "box:/absent", "-").code == 4


def test_cp_of_a_directory_goes_as_an_archive(corral: Any, engine: Any, box: str, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("x")
    assert corral("cp", str(tmp_path / "d"), "box:/home/user").code == 0
    process = engine.processes.all[1]
    assert process.info.spec.argv == ("/run/corral/init", "unpack", "/home/user")
    assert b"d/f" in process.stdin


def test_cp_that_cannot_be(corral: Any, box: str, tmp_path: Path) -> None:
    assert corral("cp", "a", "b").code == 2
    assert corral("cp", "box:/a", "box:/b").code == 2
    assert corral("cp", str(tmp_path / "absent"), "box:/x").code == 4
    assert corral("cp", "box:/absent", str(tmp_path / "x")).code == 4
    assert not (tmp_path / "x").exists()


def test_files(corral: Any, engine: Any, box: str, stdin: Any) -> None:
    stdin(b"\xffraw")
    assert corral("files", "write", box, "a").code == 0
    assert engine.files.content["/home/user/a"] == b"\xffraw"
    assert corral("files", "mkdir", box, "/srv").code == 0
    assert corral("files", "mv", box, "a", "/srv/b\x1b").code == 0
    listed = corral("files", "ls", box, "/srv").out
    assert "-0644  1000:1000  4" in listed
    assert "/srv/b\\x1b" in listed
    assert json.loads(corral("files", "stat", box, "/srv/b\x1b", "--json").out)["size"] == 4
    assert json.loads(corral("files", "watch", box, "/srv", "--json").out)["kind"] == "create"
    assert corral("files", "rm", box, "/srv/b\x1b").code == 0
    assert corral("files", "cat", box, "/srv/b").code == 4


# -- catalog ---------------------------------------------------------------------------------------------------------


def test_templates(corral: Any, box: str) -> None:
    built = corral("template", "build", "claude")
    assert (built.code, built.out) == (0, "claude\n")
    assert "step two" in built.err
    assert corral("template", "build", "--image", "debian:12", "--name", "deb").out == "deb\n"
    assert corral("template", "build", "--image", "debian:12").code == 2
    assert [item["name"] for item in json.loads(corral("template", "ls", "--json").out)] == [
        "base",
        "claude",
        "deb",
    ]
    assert "2.0 KiB" in corral("template", "show", "deb").out
    assert corral("template", "rm", "deb").code == 0
    assert corral("checkpoint", box, "ready").out == "ready\n"


def test_an_export_says_what_no_image_can_hold(corral: Any, engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    assert "saved processes" not in corral("template", "export", "base", str(path)).err
    assert path.read_bytes() == b"archive"
    memory = MachineState(ImageId("1" * 16), Isolation.GVISOR, "runsc", Limits(), 4096)
    engine.templates.by_name["base"] = replace(engine.templates.by_name["base"], memory=memory)
    told = corral("template", "export", "base", str(path), "--json")
    assert "base has saved processes" in told.err
    assert json.loads(told.out)["path"] == str(path)


def test_a_certificate_is_a_file_as_others_have_it(corral: Any, engine: Any, tmp_path: Path) -> None:
    """Of several lines, which no other secret may have."""
    file = tmp_path / "client.pem"
    file.touch(0o600)
    file.write_text("one\ntwo\n")
    options = ("--host", "api.bank.example", "--mode", "certificate", "--from-file", str(file))
    assert corral("secret", "add", "bank", *options).code == 0
    assert json.loads(engine.secrets.values["bank"].reveal()) == {"pem": "one\ntwo"}


def test_a_secret_comes_from_stdin_or_a_variable_and_is_never_shown(
    corral: Any, engine: Any, stdin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(b"  sk-canary-1\n")
    ran = corral("secret", "add", "anthropic", "--json")
    assert engine.secrets.values["anthropic"].reveal() == "sk-canary-1"
    monkeypatch.setenv("MY_KEY", "sk-canary-2")
    more = corral("secret", "add", "openai", "--from-env", "MY_KEY")
    assert engine.secrets.values["openai"].reveal() == "sk-canary-2"
    shown = ran.out + ran.err + more.out + more.err + corral("secret", "ls").out
    assert "canary" not in shown
    assert corral("secret", "add", "x", "--from-env", "ABSENT").code == 2
    assert corral("secret", "rm", "openai").code == 0
    assert not any(
        param.name in ("value", "key")
        for path, cmd in ALL.items()
        if path[0] == "secret"
        for param in cmd.params
    )


def test_a_secret_comes_from_a_private_file_a_command_or_a_login(
    corral: Any, engine: Any, stdin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-40, G-162."""
    file = tmp_path / "key"
    file.write_text("sk-canary-1\n")
    file.chmod(0o644)
    assert "chmod 600" in corral("secret", "add", "openai", "--from-file", str(file)).err
    file.chmod(0o600)
    (tmp_path / "link").symlink_to(file)
    for bad in (tmp_path / "link", tmp_path, tmp_path / "absent", "/dev/zero"):
        assert corral("secret", "add", "openai", "--from-file", str(bad)).code == 2
    assert engine.secrets.values == {}
    assert corral("secret", "add", "openai", "--from-file", str(file)).code == 0
    assert corral("secret", "add", "github", "--command", "gh auth 'token x'").code == 0
    assert engine.secrets.values["github"].reveal() == '["gh", "auth", "token x"]'
    for words in (
        ("--command", ""),
        ("--command", "'"),
        ("--command", "x", "--from-file", str(file)),
        ("--login", "codex"),
    ):
        stdin(b"not json")
        assert corral("secret", "add", "openai", *words).code == 2
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    (tmp_path / "codex").mkdir()
    for directory in ("codex", "mine"):
        login = tmp_path / directory / "auth.json"
        login.parent.mkdir(exist_ok=True)
        login.write_text('{ "tokens":\n {} }')
        login.chmod(0o600)
        ran = corral("secret", "add", "codex", "--login", "codex", "--from-file", str(login))
        assert ran.code == (2 if directory == "codex" else 0), ran.err
    assert engine.secrets.values["codex"].reveal() == '{"tokens":{}}'
    assert "codex cannot be used: its refresh token was refused" in corral("secret", "ls").err
    assert corral("secret", "rotate", "github").code == 0
    stdin(b"sk-canary-3")
    assert corral("secret", "rotate", "openai").code == 0
    assert engine.secrets.rotated == [("github", True), ("openai", False)]


def test_a_secret_that_is_refused_is_not_repeated(corral: Any, stdin: Any) -> None:
    stdin(b"canary\x01canary")
    ran = corral("secret", "add", "anthropic")
    assert ran.code == 2
    assert "canary" not in ran.err


def test_prices_config_keys(corral: Any, engine: Any) -> None:
    assert corral("price", "set", "local", "*", "--input", "0.25", "--output", "10").code == 0
    price = engine.prices.all[0]
    assert (price.input, price.output, price.cache_read, price.cache_write) == (
        250_000,
        10_000_000,
        250_000,
        250_000,
    )
    assert corral("price", "set", "local", "*", "--input", "cheap", "--output", "1").code == 2
    assert "0.25" in corral("price", "ls").out
    assert corral("config", "set", "api.listen", "127.0.0.1:1").out == "127.0.0.1:1\n"
    assert corral("config", "get", "api.listen").out == "127.0.0.1:1\n"
    assert corral("config", "get", "absent").code == 2
    assert json.loads(corral("config", "get", "--json").out)["egress.networks"] == []
    assert corral("key", "create", "laptop").out.startswith("sk-")


def test_doctor_fails_where_a_check_does(corral: Any) -> None:
    ran = corral("doctor")
    assert ran.code == 6
    assert "runsc: run `make setup`" in ran.out
    assert json.loads(corral("doctor", "--json").out)[1]["more"] == 1


# -- errors and values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_ends_with_its_own_code(
    corral: Any, engine: Any, monkeypatch: pytest.MonkeyPatch, cls: type[CorralError]
) -> None:
    def refuse(*_: object) -> None:
        raise cls("what\x1b[2J happened", "what to do")

    monkeypatch.setattr(engine.sandboxes, "get", refuse)
    ran = corral("show", "box", "--json")
    assert (ran.code, ran.out) == (cls.exit_code, "")
    assert ran.err == "error: what\\x1b[2J happened\nhint: what to do\n"


def test_a_defect_is_told_as_one(corral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.cli.output.json", None)
    ran = corral("ls", "--json")
    assert ran.code == 70
    assert "CORRAL_DEBUG=1" in ran.err


def test_wrong_usage_is_told_with_where_to_look(corral: Any) -> None:
    ran = corral("create", "--memory", "lots")
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert "hint: see `corral create --help`" in ran.err
    assert corral("nothing").code == 2


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("512M", 512 << 20), ("1.5g", 3 << 29), ("4GiB", 4 << 30), ("2kb", 2048)]
)
def test_sizes(text: str, value: int) -> None:
    assert Size().convert(text, None, None) == value


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("0.5", 0.5), ("30m", 1800), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text: str, value: float) -> None:
    assert Duration().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["", "-1", "1 hour", "1e9", "M"])
def test_values_that_are_none(text: str) -> None:
    for kind in (Size(), Duration()):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "own")
    assert variables(["A=1", "B=", "C=x=y", "MINE"]) == {"A": "1", "B": "", "C": "x=y", "MINE": "own"}
    with pytest.raises(InvalidInput):
        variables(["ABSENT"])


@pytest.mark.parametrize(
    ("text", "lines", "shown"),
    [
        ("\x1b]0;title\x07", False, "\\x1b]0;title\\x07"),
        ("a\nb\tc", False, "a\\nb\\tc"),
        ("a\r\nb\tc\rd", True, "a\nb\tc\\rd"),
        ("\x9b2J\u202eevil\u2069", True, "\\x9b2J\\u202eevil\\u2069"),
        ("ünïcode 🐂", False, "ünïcode 🐂"),
        ("\udcff", False, "?"),
    ],
)
def test_guest_text_cannot_drive_a_terminal(text: str, lines: bool, shown: str) -> None:
    assert clean(text, lines=lines) == shown


def test_rm_force_passes_over_what_does_not_exist(corral: Any, box: str) -> None:
    assert corral("rm", "absent").code == 4
    assert corral("rm", "-f", "absent", box).out == f"{box}\n"
    assert corral("template", "rm", "-f", "absent").code == 0
    assert corral("secret", "rm", "-f", "absent").code == 0
    assert corral("files", "rm", "-f", "absent", "/x").code == 4


def test_what_cannot_be_meant_is_refused_with_the_way_out(corral: Any) -> None:
    assert "at least one second" in corral("create", "--ttl", "0").err
    assert "https://" in corral("create", "--repo", "git@example.org:a/b.git").err


def test_a_setting_for_the_next_start_says_so(corral: Any) -> None:
    assert "next start" in corral("config", "set", "api.listen", "127.0.0.1:7070").err


def test_show_names_the_template(corral: Any, box: str) -> None:
    assert re.search(r"^template +base$", corral("show", box).out, re.MULTILINE)


def test_ps_shows_steps_of_corrals_own_work_when_asked(corral: Any, engine: Any, box: str) -> None:
    corral("exec", "--detach", box, "--", "hang")
    own = engine.processes.all[1]
    own.info = replace(own.info, spec=replace(own.info.spec, tag=OWN_TAG))
    corral("exec", "--detach", box, "--", "hang")
    assert [line.split()[0] for line in corral("ps", box).out.splitlines()] == ["ID", "2"]
    assert [line.split()[0] for line in corral("ps", "-a", box).out.splitlines()] == ["ID", "1", "2"]


def test_warnings_of_budgets_are_shown(corral: Any, engine: Any) -> None:
    id = SandboxId("0" * 16)
    engine.budgets.warned = [
        Warned(Scope.SANDBOX, Window.TOTAL, 80, 10_000_000, 8_500_000, DEFAULT_TENANT, id),
        Warned(Scope.TENANT, Window.DAY, 50, 20_000_000, 10_000_000, DEFAULT_TENANT, id),
    ]
    at = "2026-01-02T03:04:05+00:00"
    assert corral("budget", "warnings").out.splitlines() == [
        f"{at}  80 % of the budget of box\\x1b[2J in all: $8.50 of $10.00",
        f"{at}  50 % of the budget of the tenant, by box\\x1b[2J today: $10.00 of $20.00",
    ]
    assert json.loads(corral("budget", "warnings", "--json").out.splitlines()[0])["percent"] == 80


def test_budgets_are_shown_and_set(corral: Any, engine: Any) -> None:
    assert corral("create", "--name", "box", "--budget", "0.50").code == 0
    assert engine.sandboxes.requests[-1].budget == 500_000
    shown = corral("budget", "show", "box").out
    assert re.search(
        r"^sandbox +in all +\$10.00 \(default\) +\$8.50 +\$0.25 +\$1.25 +-$", shown, re.MULTILINE
    )
    assert "80 % or more of the sandbox's budget is spent" in shown
    assert corral("budget", "set", "box", "50").code == 0
    assert corral("budget", "set", "box", "5", "--daily").code == 0
    assert corral("budget", "set", "--tenant", "none", "--of", "acme").code == 0
    assert engine.budgets.caps == {
        (Scope.SANDBOX, Window.TOTAL): 50_000_000,
        (Scope.SANDBOX, Window.DAY): 5_000_000,
        (Scope.TENANT, Window.TOTAL): None,
    }
    assert engine.budgets.of == ["acme"]
    assert "$8.50 of $50.00, $8.50 of $5.00 today" in corral("usage", "box").err
    assert re.search(r"^budget +\$8.50 of \$50.00", corral("show", "box").out, re.MULTILINE)
    assert json.loads(corral("budget", "set", "box", "default", "--json").out)["accounts"][0]["default"]
    assert len(json.loads(corral("budget", "show", "--tenant", "--json").out)["accounts"]) == 2


@pytest.mark.parametrize(
    "words",
    [("set", "box"), ("set", "box", "much"), ("set", "box", "-1"), ("set", "--tenant", "default"),
     ("set", "box", "1", "--of", "acme"), ("show",), ("show", "box", "--tenant"), ("set", "--tenant", "box", "1")],
)  # fmt: skip
def test_a_budget_that_is_none_is_refused(corral: Any, words: tuple[str, ...]) -> None:
    corral("create", "--name", "box")
    ran = corral("budget", *words)
    assert ran.code == 2
    assert "hint: " in ran.err


# -- approvals ------------------------------------------------------------------------------------------------------


def test_questions_are_listed_shown_and_answered(corral: Any) -> None:
    listed = corral("approvals")
    assert "1a2b3c4d" in listed.out
    assert "5e6f7a8b" not in listed.out
    assert "\x1b" not in listed.out
    everything = corral("approvals", "--all", "--json")
    assert [item["id"] for item in json.loads(everything.out)] == ["1a2b3c4d", "5e6f7a8b"]
    shown = corral("approvals", "5e6f7a8b")
    assert "commits:\n      one\n      two" in shown.out
    assert "denied by me: no" in shown.out
    yes = corral("approve", "1a2b3c4d", "--for", "always", "--json")
    assert (json.loads(yes.out)["status"], json.loads(yes.out)["scope"]) == ("allowed", "always")
    assert json.loads(yes.out)["by"].endswith("by the unix socket")
    assert [item["id"] for item in json.loads(corral("approvals", "--standing", "--json").out)] == [
        "1a2b3c4d"
    ]
    assert corral("approvals", "--standing", "--all").code == 2
    no = corral("deny", "1a2b3c4d", "--reason", "not this one")
    assert (no.code, "may not" in no.err) == (0, True)
    assert corral("approve", "ffffffff").code == 4
    assert corral("approvals", "--webhook-key").out == "whk-0123\n"
    assert corral("approvals", "1a2b3c4d", "--wait").code == 2


def test_followers_of_approvals_hear_of_them(client: Client) -> None:
    found = client.follow_approvals(1, wait=False)
    assert [item.id for item in found] == ["1a2b3c4d", "5e6f7a8b"]


def test_a_proxys_login_is_read_from_a_private_file(corral: Any, engine: Any, tmp_path: Path) -> None:
    held = tmp_path / "proxy"
    held.write_text("socks5://me:canary@proxy.test:1080\n")
    held.chmod(0o600)
    assert corral("create", "--name", "box", "--dns", "9.9.9.9", "--proxy", str(held)).code == 0
    proxy = EgressProxy("proxy.test", 1080, "me", Secret("canary"))
    assert engine.sandboxes.requests[-1].route == Route(proxy=proxy, resolvers=("9.9.9.9",))
    held.chmod(0o644)
    for given in (
        str(held),
        "socks5://me:canary@proxy.test:1080",
        "socks5://127.0.0.1:1",
        "socks5://10.0.0.1:1",
        "http://a:1",
    ):
        refused = corral("create", "--proxy", given)
        assert refused.code != 0
        assert "canary" not in refused.out + refused.err
    assert corral("create", "--dns", "10.0.0.1").code != 0


def test_grants_are_shown_changed_and_revoked(corral: Any, engine: Any) -> None:
    made = corral(
        "create",
        "--name",
        "box",
        "--models",
        "claude-haiku-*,gpt-5-mini",
        "--alias",
        "opus=haiku",
        "--expires",
        "8h",
    )
    assert made.code == 0
    request = engine.sandboxes.requests[-1]
    assert request.models == ModelRules(("claude-haiku-*", "gpt-5-mini"), (Alias("opus", "haiku"),))
    assert request.expires == 8 * 3600
    assert re.search(
        r"^box +good +anthropic +all +example.org:443, example.org:80 +never$",
        corral("grant", "ls").out,
        re.MULTILINE,
    )
    assert corral("grant", "set", "box", "--models", "gpt-5", "--alias", "a=b").code == 0
    assert corral("grant", "set", "box", "--no-alias", "--expires", "never").code == 0
    first, second = engine.grants.changes
    assert first["models"] == ModelRules(("gpt-5",), (Alias("a", "b"),))
    assert (second["models"], second["endless"]) == (ModelRules(("gpt-5",)), True)
    assert corral("grant", "revoke", "box").out == "box\n"
    assert re.search(r"^state +revoked$", corral("grant", "show", "box").out, re.MULTILINE)
    assert json.loads(corral("grant", "renew", "box", "--overlap", "0", "--json").out)["state"] == "good"
    assert engine.grants.changes[-1] == {"expires": None, "overlap": 0}


@pytest.mark.parametrize(
    "words",
    [("set", "box"), ("set", "box", "--models", "a b"), ("set", "box", "--alias", "x"), ("set", "box", "--expires", "soon"),
     ("renew", "box", "--overlap", "99d"), ("show", "nobody")],
)  # fmt: skip
def test_a_grant_that_is_none_is_refused(corral: Any, words: tuple[str, ...]) -> None:
    corral("create", "--name", "box")
    ran = corral("grant", *words)
    assert ran.code != 0
    assert "hint: " in ran.err


# -- records --------------------------------------------------------------------------------------------------------


def test_records_are_shown_exported_and_checked(corral: Any, engine: Any) -> None:
    shown = corral("audit")
    assert [line.split()[0] for line in shown.out.splitlines()] == ["1", "2", "3"]
    lines = corral("audit", "box", "--since", "2026-01-02T03:04", "--json").out.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [1, 2, 3]
    assert engine.audit.asked[-1] == ("box", datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    corral("audit", "--since", "2h")
    ago = datetime.now(UTC) - engine.audit.asked[-1][1]
    assert timedelta(hours=2) <= ago < timedelta(hours=3)
    assert (corral("audit", "--verify").code, corral("audit", "--since", "soon").code) == (0, 2)
    engine.audit.fault = "record 4 was altered"
    broken = corral("audit", "--verify")
    assert (broken.code, "record 4 was altered" in broken.out) == (1, True)
    assert json.loads(corral("audit", "--verify", "--json").out)["fault"]
    assert corral("audit", "box", "--verify").code == 2


def test_a_receipt_tells_all_that_was_done(corral: Any) -> None:
    told = corral("receipt", "gone").out
    for part in (
        "40 files, +3 -1", "b.bin  binary", "10 more files", "cccccccccccc  agent: fix it", "denied  host=git.example",
        "model calls: 2, 100 tokens", "push main", "7 x  dns  evil.example", "3 tls",
    ):  # fmt: skip
        assert part in told, part
    assert "\x1b" not in told
    assert json.loads(corral("receipt", "gone", "--json").out)["cost"] == 1500
    assert corral("receipt", "box").code == 4


def test_models_of_a_tenant_are_shown_and_set(corral: Any, engine: Any) -> None:
    assert corral("models", "set", "claude-*,gpt-5", "o3", "--alias", "opus=haiku", "--of", "acme").code == 0
    assert engine.models.rules["acme"] == ModelRules(("claude-*", "gpt-5", "o3"), (Alias("opus", "haiku"),))
    assert corral("models", "set", "--no-alias", "--of", "acme").code == 0
    assert engine.models.rules["acme"] == ModelRules(("claude-*", "gpt-5", "o3"))
    assert json.loads(corral("models", "show", "--json").out) == {"models": ["*"], "aliases": {}}
    assert corral("models", "set", "--of", "acme").code == 2
    assert corral("models", "set", "bad name").code == 2


def test_rates_are_shown_and_set(corral: Any, engine: Any) -> None:
    corral("create", "--name", "box")
    shown = corral("rate", "set", "box", "--requests", "60", "--tokens", "100000").out
    assert re.search(r"^tokens a minute +100,000$", shown, re.MULTILINE)
    assert re.search(r"^model calls at a time +no limit$", shown, re.MULTILINE)
    changed = json.loads(corral("rate", "set", "box", "--requests", "none", "--json").out)
    assert changed == {"requests": None, "tokens": 100_000, "calls": None}
    assert corral("rate", "set", "--tenant", "--calls", "9", "--of", "acme").code == 0
    assert engine.budgets.of[-1] == "acme"
    assert "9" in corral("rate", "show", "--tenant").out
    assert corral("budget", "set", "box", "2", "--per", "hour").code == 0
    assert re.search(r"^sandbox +an hour +\$2.00", corral("budget", "show", "box").out, re.MULTILINE)


@pytest.mark.parametrize(
    "words",
    [("rate", "set", "box"), ("rate", "set", "box", "--calls", "-1"), ("rate", "set", "box", "--calls", "0"), ("rate", "show"),
     ("rate", "set", "box", "--tenant", "--calls", "1"), ("budget", "set", "box", "1", "--daily", "--per", "hour")],
)  # fmt: skip
def test_a_rate_that_is_none_is_refused(corral: Any, words: tuple[str, ...]) -> None:
    corral("create", "--name", "box")
    ran = corral(*words)
    assert ran.code == 2
    assert "hint: " in ran.err


def test_api_keys_are_listed_and_revoked(corral: Any, engine: Any) -> None:
    corral("key", "create", "laptop")
    shown = corral("key", "ls").out
    assert re.search(r"^laptop +000000000000 ", shown, re.MULTILINE)
    assert "sk-canary" not in shown
    assert corral("key", "revoke", "laptop").out == "laptop\n"
    assert corral("key", "revoke", "laptop").code != 0
    assert json.loads(corral("key", "ls", "--json").out) == []
