"""What a runtime's captured outcome means."""

import json
from pathlib import Path

import pytest

from corral.errors import DiskFull, HostError, NoCapacity, Unsupported
from corral.oci.runc import RUNC
from corral.oci.runsc import RUNSC
from corral.oci.runtime import Runtime, classify_failure, last_error, read_pid


def line(level: str, msg: str) -> str:
    return json.dumps({"level": level, "msg": msg, "time": "2026-01-01T00:00:00Z"})


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("write /run/x: no space left on device", DiskFull),
        ("mkdir: disk quota exceeded", DiskFull),
        ("fork/exec /proc/self/exe: cannot allocate memory", NoCapacity),
        ("fork/exec /proc/self/exe: resource temporarily unavailable", NoCapacity),
        ("cgroups in hybrid mode not supported, drop all controllers from cgroupv2", Unsupported),
        ("container with given ID already exists", HostError),
    ],
)
def test_classes(message: str, kind: type[Exception]) -> None:
    error = classify_failure("runc", 1, line("error", message))
    assert type(error) is kind
    assert message in error.message


def test_without_a_log_the_exit_code_is_told() -> None:
    assert classify_failure("runc", 139, "").message == "runc failed: exit code 139"


def test_last_error_of_a_log() -> None:
    log = "\n".join(
        [line("error", "first"), line("error", "second"), line("info", "later"), "[1, 2]", "null"]
    )
    assert last_error(log) == "second"
    assert last_error("plain text\n") == "plain text"
    assert len(last_error(line("error", "x" * 5000))) == 500


def test_pid_file(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_text("123")
    assert read_pid(path) == 123
    for text in ("", "x"):
        path.write_text(text)
        with pytest.raises(HostError):
            read_pid(path)
    path.unlink()
    with pytest.raises(HostError):
        read_pid(path)


def test_forget_drops_all_of_one_container(tmp_path: Path) -> None:
    for name in ("aa_sandbox:aa.lock", "runsc-aa.sock", "bb.lock"):
        (tmp_path / name).write_text("")
    (tmp_path / "aa").mkdir()
    (tmp_path / "aa" / "state.json").write_text("{}")
    runtime = Runtime(RUNSC, Path("/bin/runsc"), tmp_path)
    runtime.forget("aa")
    runtime.forget("aa")
    assert [path.name for path in tmp_path.iterdir()] == ["bb.lock"]


def test_exec_command(tmp_path: Path) -> None:
    argv = Runtime(RUNC, Path("/bin/runc"), tmp_path).exec_command("aa", ["/init", "--root", "x"])
    assert argv[0] == "/bin/runc"
    assert argv[argv.index("exec") :] == ["exec", "--user", "0:0", "aa", "/init", "--root", "x"]
