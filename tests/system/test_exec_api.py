"""Commands in a real sandbox, by API and CLI: exit codes, input, output, terminals, and processes that are left running."""

import hashlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.traces import wait_for

from corral import Client, Sandbox
from corral.errors import Conflict, CorralError, InvalidInput, NotFound, Timeout, TooLarge

pytestmark = pytest.mark.root

MIB = 1024 * 1024
ENDS = [
    ("true", 0, 0, ""),
    ("exit 7", 7, 0, ""),
    ("exit 255", 255, 0, ""),
    ("nonsense-that-is-no-program", 127, 0, ""),
    ("/etc/passwd", 126, 0, ""),
    ("kill -TERM $$", 143, 15, ""),
    ("kill -KILL $$", 137, 9, ""),
    ("kill -SEGV $$", 139, 11, ""),
]


@pytest.mark.parametrize(("script", "code", "number", "reason"), ENDS)
def test_a_command_ends_with_its_own_code(
    box: Sandbox, script: str, code: int, number: int, reason: str
) -> None:
    ended = box.exec(["sh", "-c", script])
    # A shell tells of a signal of its own by 128 + n, where it is not hit itself.
    assert (ended.exit_code, ended.signal, ended.reason) == (code, number, reason)


@pytest.mark.parametrize(
    ("program", "code"), [("/no/such/program", 127), ("nowhere", 127), ("/etc/passwd", 126), ("/etc", 126)]
)
def test_what_cannot_be_run_says_why(box: Sandbox, program: str, code: int) -> None:
    ended = box.exec([program])
    assert ended.exit_code == code
    assert program in ended.stderr


def test_the_cli_ends_with_the_codes_of_commands(daemon: Daemon, box: Sandbox) -> None:
    def code(*args: str) -> int:
        return daemon.cli("exec", *args, check=False).returncode

    assert code("box", "--", "true") == 0
    assert code("box", "--", "sh", "-c", "exit 7") == 7
    assert code("box", "--", "nowhere") == 127
    assert code("box", "--", "/etc/passwd") == 126
    assert code("box", "--", "sh", "-c", "kill -9 $$") == 137
    assert code("--timeout", "0.2s", "box", "--", "sleep", "1000") == 124
    assert code("absent", "--", "true") == NotFound.exit_code
    assert code("box") == InvalidInput.exit_code


def test_a_time_limit_kills_the_whole_tree(box: Sandbox) -> None:
    ended = box.exec("sleep 1001 & sleep 1002 & echo begun; wait", timeout=0.5)
    assert (ended.exit_code, ended.signal, ended.reason, ended.stdout) == (137, 9, "timeout", "begun\n")
    with pytest.raises(Timeout):
        ended.check()
    assert box.exec(["pgrep", "-f", "sleep 100"]).stdout == ""


def test_arguments_pass_unchanged_proc23(daemon: Daemon, box: Sandbox) -> None:
    words = ["a b", "", "$HOME", "`id`", "'", '"', "\\", "*", "-n", "--", "é\n", "\udcff"]
    show = [
        "python3",
        "-c",
        "import os,sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))",
    ]
    expected = b"|".join(map(os.fsencode, words))
    with pytest.raises(InvalidInput):
        box.exec([*show, *words])  # JSON has no way to spell bytes that are no text
    assert box.exec([*show, *words[:-1]]).stdout_bytes == expected.rpartition(b"|")[0]
    shown = daemon.cli("exec", "box", "--", *show, *words[:-2])
    assert shown.stdout == "|".join(words[:-2])


def test_input_is_at_its_end_unless_asked_for_proc5_proc6(daemon: Daemon, box: Sandbox) -> None:
    assert box.exec("cat; echo end").stdout == "end\n"
    held_open, ours = os.pipe()
    try:
        told = daemon.cli("exec", "box", "--", "sh", "-c", "cat; echo end", stdin=held_open)
        assert told.stdout == "end\n"
        # Asked for, but it never ends: what ends is the command.
        assert daemon.cli("exec", "-i", "box", "--", "echo", "done", stdin=held_open).stdout == "done\n"
    finally:
        os.close(held_open)
        os.close(ours)


def test_twenty_megabytes_in_and_out_again(daemon: Daemon, box: Sandbox, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(20 * MIB))
    with data.open("rb") as stdin:
        done = subprocess.run(
            [sys.executable, "-m", "corral.cli.main", "exec", "-i", "box", "--", "cat"],
            env=daemon.env, stdin=stdin, capture_output=True, timeout=100, check=True,
        )  # fmt: skip
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data.read_bytes()).digest()


def test_input_by_the_api_as_a_whole_and_as_a_stream(box: Sandbox) -> None:
    every_byte = bytes(range(256)) * 4096
    assert box.exec("cat", input=every_byte).stdout_bytes == every_byte
    with pytest.raises(TooLarge):
        box.exec("cat", input=bytes(4 * MIB + 1))
    counter = box.spawn(["sha256sum"], stdin=True)
    counter.write(every_byte[i : i + 1000] for i in range(0, len(every_byte), 1000))
    counter.close_stdin()
    assert counter.wait().stdout.split()[0] == hashlib.sha256(every_byte).hexdigest()
    with pytest.raises(Conflict):
        counter.write(b"more")


def test_a_command_that_does_not_read_holds_nothing_up(box: Sandbox) -> None:
    assert box.exec(["sh", "-c", "exit 5"], input=bytes(2 * MIB)).exit_code == 5


def test_outputs_are_whole_and_apart_proc3_proc7(box: Sandbox) -> None:
    script = "head -c 6000000 /dev/zero; head -c 3000000 /dev/zero >&2; printf end"
    ended = box.exec(script)
    assert (len(ended.stdout_bytes), len(ended.stderr_bytes)) == (6_000_003, 3_000_000)
    assert ended.stdout.endswith("end")
    assert not ended.truncated
    cut = box.exec(script, output_limit=1000)
    assert (len(cut.stdout_bytes), len(cut.stderr_bytes), cut.truncated) == (1000, 1000, True)
    for _ in range(20):  # PROC-7: the code is told after the last byte
        assert len(box.exec("head -c 100000 /dev/zero").stdout_bytes) == 100_000


def test_a_prompt_without_a_line_break_comes_at_once_proc18(box: Sandbox) -> None:
    asking = box.spawn(["sh", "-c", "printf 'name? '; read name; echo hello $name"], stdin=True)
    output = asking.output()
    assert next(output).data == b"name? "
    asking.write(b"otter\n")
    assert b"".join(piece.data for piece in output) == b"hello otter\n"


def test_an_interactive_shell_returns_proc11(box: Sandbox) -> None:
    assert box.exec(["bash", "-ic", "true"], timeout=30).exit_code == 0


def test_user_directory_and_environment(box: Sandbox) -> None:
    def line(command: str, **options: object) -> str:
        return box.exec(command, **options).check().stdout.strip()  # type: ignore[arg-type]

    assert line("id -un; pwd; echo $HOME").split() == ["user", "/home/user", "/home/user"]
    assert line("id -u; pwd; echo $HOME", user="root", cwd="/srv").split() == ["0", "/srv", "/root"]
    assert line("id -u; id -g", user="1234:99").split() == ["1234", "99"]
    assert line('printf %s "$A-$B"', env={"A": "x y", "B": "é"}) == "x y-é"
    assert line("echo $TERM $PATH") != ""


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"user": "nobody-at-all"}, InvalidInput, "no user"),
        ({"user": "Bad User"}, InvalidInput, "not valid"),
        ({"cwd": "/no/such/place"}, InvalidInput, "cannot be entered"),
        ({"cwd": "relative"}, InvalidInput, "not absolute"),
        ({"env": {"A-B": "x"}}, InvalidInput, "variable name"),
        ({"env": {"A": "x\0y"}}, InvalidInput, "value of"),
        ({"timeout": 0}, InvalidInput, "timeout"),
        ({"timeout": 1e9}, InvalidInput, "timeout"),
        ({"tag": "x" * 129}, InvalidInput, "tag"),
        ({"output_limit": -1}, InvalidInput, "output_limit"),
    ],
)  # fmt: skip
def test_what_a_command_cannot_have(
    box: Sandbox, options: dict[str, object], error: type[CorralError], says: str
) -> None:
    with pytest.raises(error) as refused:
        box.exec("true", **options)  # type: ignore[arg-type]
    assert says in refused.value.message
    assert refused.value.hint
    assert [item for item in box.processes() if item.exit is None] == []


def test_a_terminal_has_a_size_and_takes_another(box: Sandbox) -> None:
    script = "stty size; trap 'stty size </dev/tty; exit 9' WINCH; echo ready; while :; do sleep 0.05; done"
    shown = box.spawn(["bash", "-c", script], terminal=(31, 97))
    output = shown.output()
    seen = b""
    while b"ready" not in seen:
        seen += next(output).data
    assert seen.startswith(b"31 97\r\n")
    shown.resize(50, 120)
    assert b"50 120" in b"".join(piece.data for piece in output)
    assert shown.exit_code == 9
    plain = box.spawn("sleep 1000")
    with pytest.raises(Conflict):
        plain.resize(10, 10)
    with pytest.raises(InvalidInput):
        plain.resize(0, 10)


def test_a_terminal_passes_keys(box: Sandbox) -> None:
    shell = box.spawn(["sh", "-c", "echo ready; cat"], terminal=(24, 80), stdin=True)
    output = shell.output()
    seen = b""
    while b"ready" not in seen:
        seen += next(output).data
    shell.write(b"hello\n")
    while seen.count(b"hello\r\n") < 2:  # as typed, and from `cat`
        seen += next(output).data
    shell.write(b"\x03")
    ended = shell.wait()
    assert (ended.exit_code, ended.signal) == (130, 2)


def test_who_comes_back_by_id_finds_the_process_proc16(daemon: Daemon, box: Sandbox) -> None:
    with daemon.client() as gone:
        left = gone.start_process(
            "box", ["sh", "-c", "echo begun; read line; echo got $line; exit 3"], stdin=True
        )
        assert next(iter(gone.follow_output("box", left.id))).data == b"begun\n"
    with daemon.client() as later:
        found = Sandbox.connect("box", client=later).process(left.id)
        found.write(b"more\n")
        ended = found.wait()
    assert (ended.exit_code, ended.stdout) == (3, "begun\ngot more\n")


def test_a_command_whose_caller_goes_is_killed(daemon: Daemon, box: Sandbox) -> None:
    caller = subprocess.Popen(
        [sys.executable, "-c", "from corral import Client; Client().exec_command('box', 'sleep 1003')"],
        env=daemon.env,
    )
    wait_for(lambda: box.exec(["pgrep", "-f", "sleep 1003"]).stdout, "it does not run")
    caller.kill()
    caller.wait()
    wait_for(lambda: not box.exec(["pgrep", "-f", "^sleep 1003"]).stdout, "it runs on")


def test_signals(box: Sandbox) -> None:
    trapping = box.spawn(["bash", "-c", "trap 'echo hup' HUP; echo ready; while :; do sleep 0.05; done"])
    bystander = box.spawn(["sleep", "1000"])
    output = trapping.output()
    next(output)
    trapping.signal(1)
    said = b""
    while not said.endswith(b"hup\n"):  # bash may tell first that its `sleep` was hung up on, too
        said += next(output).data
    trapping.signal(15)
    assert trapping.wait().exit_code == 143
    trapping.signal(15)  # without effect on what has ended
    assert bystander.refresh().exit is None
    bystander.kill()
    assert bystander.wait().signal == 9
    with pytest.raises(InvalidInput):
        bystander.signal(65)
    with pytest.raises(NotFound):
        box.process(999_999)


def test_kill_takes_what_a_process_left_behind(box: Sandbox) -> None:
    tree = box.spawn("setsid sleep 1004 & (sleep 1004 &) ; echo begun; wait")
    assert next(tree.output()).data == b"begun\n"
    tree.kill()
    tree.wait()
    wait_for(lambda: not box.exec(["pgrep", "-f", "^sleep 1004"]).stdout, "some of its tree is left")


def test_many_at_once(box: Sandbox) -> None:
    with ThreadPoolExecutor(20) as pool:
        ended = list(pool.map(lambda number: box.exec(f"echo {number}; exit {number % 7}"), range(100)))
    assert [int(item.stdout) for item in ended] == list(range(100))
    assert [item.exit_code for item in ended] == [number % 7 for number in range(100)]


def test_no_zombies_remain_proc8(box: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: box.exec(f"sleep 0 & exit {number % 3}"), range(200)))
    states = box.exec(["sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"]).stdout
    assert states.strip() == "0"
    assert len(box.processes()) <= 101


def test_a_full_pipe_of_one_process_holds_up_no_other(box: Sandbox) -> None:
    flood = box.spawn("yes")
    stuck = box.spawn("sleep 1000", stdin=True)
    blocked = threading.Thread(target=lambda: _ignore(lambda: stuck.write(bytes(4 * MIB))))
    blocked.start()
    assert box.exec("echo alive", timeout=60).stdout == "alive\n"
    flood.kill()
    stuck.kill()
    blocked.join(60)
    assert not blocked.is_alive()


def _ignore(work: object) -> None:
    try:
        work()  # type: ignore[operator]
    except CorralError:
        return


def test_a_paused_sandbox_refuses_commands_and_says_what_to_do(client: Client, box: Sandbox) -> None:
    process = box.spawn("sleep 1000")
    box.pause()
    with pytest.raises(Conflict) as refused:
        box.exec("true")
    assert "corral resume box" in refused.value.hint
    assert [item.id for item in box.processes()] == [process.id]
    box.resume()
    box.stop(0)
    with pytest.raises(Conflict) as refused:
        box.exec("true")
    assert "corral start box" in refused.value.hint


def test_logs_of_a_process(daemon: Daemon, box: Sandbox) -> None:
    started = daemon.cli("exec", "--detach", "box", "--", "sh", "-c", "echo one; echo two >&2; exit 3")
    process = int(started.stdout)
    box.process(process).wait()
    told = daemon.cli("logs", "box", str(process), check=False)
    assert "one" in told.stdout
    assert "two" in told.stdout + told.stderr
    busy = int(daemon.cli("exec", "--detach", "box", "--", "sh", "-c", "while :; do echo x; done").stdout)
    assert daemon.cli("logs", "box", str(busy)).stdout.startswith("x\n")
    shown = daemon.cli_json("ps", "box")
    assert isinstance(shown, list)
    assert {item["id"] for item in shown} >= {process, busy}
