"""The one spawner, on asyncio's loop and on uvloop's."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from corral.errors import HostError, Unsupported
from corral.host import process

Runner = Callable[[Coroutine[None, None, None]], None]


def _asyncio(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def _uvloop(work: Coroutine[None, None, None]) -> None:
    uvloop.run(work)


@pytest.fixture(params=[_asyncio, _uvloop], ids=["asyncio", "uvloop"])
def loop_run(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.param
    return runner


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def _descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


async def _until_gone(pid: int) -> None:
    """Return when a process that is not our child has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ended.set)
    await ended.wait()
    loop.remove_reader(fd)
    os.close(fd)


def test_output_input_and_status_arrive_whole(loop_run: Runner) -> None:
    async def work() -> None:
        done = await process.run(
            ["sh", "-c", "cat; echo err >&2; exit 3"], timeout=20, input=b"\0in" * 100_000
        )
        assert (done.exit_code, done.signal, done.stderr) == (3, None, b"err\n")
        assert done.stdout == b"\0in" * 100_000
        assert not done.ok
        assert not done.truncated

    loop_run(work())


def test_the_whole_group_is_killed_when_time_has_passed(loop_run: Runner, tmp_path: Path) -> None:
    async def work() -> None:
        pid_file = tmp_path / "pid"
        done = await process.run(["sh", "-c", f"sleep 600 & echo $! > {pid_file}; wait"], timeout=0.5)
        assert done.timed_out
        assert (done.exit_code, done.signal) == (128 + signal.SIGKILL, signal.SIGKILL)
        with pytest.raises(HostError, match="did not finish in time"):
            done.check()
        await _until_gone(int(pid_file.read_text()))

    loop_run(work())


def test_the_whole_group_is_killed_on_cancellation(loop_run: Runner, tmp_path: Path) -> None:
    async def work() -> None:
        started = asyncio.Event()
        pids: list[int] = []

        def on_line(line: str) -> None:
            pids.append(int(line))
            started.set()

        async with asyncio.TaskGroup() as group:
            command = "sleep 600 & echo $!; wait"
            task = group.create_task(process.run(["sh", "-c", command], timeout=60, on_line=on_line))
            await started.wait()
            task.cancel()
        assert task.cancelled()
        await _until_gone(pids[0])

    loop_run(work())


_RUNS = """
import asyncio, sys
from corral.host import process
async def work(how):
    if how == "run":
        await process.run(["sh", "-c", "echo $$ > $0; exec sleep 600", sys.argv[1]], timeout=900)
    async with process.stream(["sh", "-c", "echo $$ > $0; exec sleep 600", sys.argv[1]], timeout=900) as stream:
        await stream.read()
asyncio.run(work(sys.argv[2]))
"""


@pytest.mark.parametrize("how", ["run", "stream"])
def test_what_is_run_to_its_end_goes_with_a_daemon_that_is_killed(
    loop_run: Runner, tmp_path: Path, how: str
) -> None:
    async def work() -> None:
        told = tmp_path / "pid"
        os.mkfifo(told)
        parent = process.spawn([sys.executable, "-c", _RUNS, str(told), how])
        pid = int(await asyncio.to_thread(told.read_text))
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        await _until_gone(pid)

    loop_run(work())


def test_output_over_the_limit_is_dropped_and_told(loop_run: Runner) -> None:
    async def work() -> None:
        done = await process.run(["head", "-c", "3000000", "/dev/zero"], timeout=20, output_limit=1000)
        assert done.ok
        assert done.truncated
        assert done.stdout == bytes(1000)

    loop_run(work())


def test_a_background_process_that_holds_the_output_is_not_waited_for(loop_run: Runner) -> None:
    async def work() -> None:
        done = await process.run(["sh", "-c", "sleep 600 & echo $!"], timeout=20)
        assert done.ok
        os.kill(int(done.stdout), signal.SIGKILL)

    loop_run(work())


def test_lines_of_both_outputs_are_told_also_the_last_without_an_end(loop_run: Runner) -> None:
    async def work() -> None:
        lines: list[str] = []
        command = r"printf 'a\r\nb\xff'; printf 'c' >&2"
        await process.run(["bash", "-c", command], timeout=20, on_line=lines.append)
        assert sorted(lines) == ["a", "b\ufffd", "c"]

    loop_run(work())


def test_a_failing_listener_ends_the_program_and_is_heard(loop_run: Runner) -> None:
    def refuse(line: str) -> None:
        raise ValueError(line)

    async def work() -> None:
        with pytest.raises(ValueError, match="hello"):
            await process.run(["sh", "-c", "echo hello; sleep 600"], timeout=60, on_line=refuse)

    loop_run(work())


def test_a_missing_program_says_how_to_install_it(loop_run: Runner) -> None:
    async def work() -> None:
        with pytest.raises(Unsupported, match="no-such-program") as caught:
            await process.run(["no-such-program"], timeout=5)
        assert "apt-get install no-such-program" in caught.value.hint
        with pytest.raises(Unsupported):
            await process.run(["/no/such/program"], timeout=5)
        with pytest.raises(HostError, match="cannot start"):
            await process.run(["true"], timeout=5, cwd="/no/such/folder")

    loop_run(work())


def test_children_get_no_stdin_no_terminal_and_no_stray_environment(
    loop_run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_API_KEY", "sk-planted")

    async def work() -> None:
        done = await process.run(["sh", "-c", "cat; env; (: </dev/tty) 2>&1"], timeout=20, env={"ADDED": "1"})
        text = done.stdout.decode()
        assert "sk-planted" not in text
        assert "ADDED=1" in text.splitlines()
        assert "PATH=" in text
        assert not done.ok  # there is no /dev/tty to open

    loop_run(work())


def test_descriptors_stay_the_callers_and_none_leaks(loop_run: Runner) -> None:
    async def work() -> None:
        await process.run(["true"], timeout=20)
        before = _descriptors()
        await process.run(["sh", "-c", "echo x"], timeout=20, input=b"x")
        async with process.stream(["cat"], timeout=20) as cat:
            await cat.wait()
        with pytest.raises(Unsupported):
            await process.run(["no-such-program"], timeout=5)
        assert _descriptors() == before

    loop_run(work())


def test_check_gives_the_programs_own_last_line(loop_run: Runner) -> None:
    async def work() -> None:
        with pytest.raises(HostError, match="sh failed with exit code 4: the reason"):
            await process.run(["sh", "-c", "echo x; echo the reason >&2; exit 4"], timeout=20, check=True)

    loop_run(work())


def test_a_stream_carries_more_than_memory_should_hold(loop_run: Runner) -> None:
    async def work() -> None:
        chunk = bytes(range(256)) * 1024
        received = 0
        async with process.stream(["cat"], timeout=60) as cat, asyncio.TaskGroup() as group:

            async def feed() -> None:
                for _ in range(64):
                    await cat.write(chunk)
                cat.close_stdin()

            group.create_task(feed())
            async for data in cat:
                received += len(data)
            assert (await cat.wait()).ok
        assert received == 64 * len(chunk)

    loop_run(work())


def test_a_stream_that_is_left_early_is_killed(loop_run: Runner) -> None:
    async def work() -> None:
        async with process.stream(["sleep", "600"], timeout=60) as sleeper:
            pid = sleeper.pid
        assert _gone(pid)

    loop_run(work())


def test_a_stream_ends_when_its_time_has_passed(loop_run: Runner) -> None:
    async def work() -> None:
        async with process.stream(["sleep", "600"], timeout=0.2) as sleeper:
            assert await sleeper.read() == b""
            done = await sleeper.wait()
        assert done.timed_out
        assert done.signal == signal.SIGKILL

    loop_run(work())


def test_a_writer_hears_that_nobody_reads(loop_run: Runner) -> None:
    async def work() -> None:
        async with process.stream(["sh", "-c", "exec <&-; exec sleep 600"], timeout=60) as deaf:
            with pytest.raises(BrokenPipeError):
                await deaf.write(bytes(1 << 24))

    loop_run(work())


def test_a_long_lived_child_takes_descriptors_and_signals(loop_run: Runner) -> None:
    async def work() -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        child = process.spawn(["sh", "-c", "echo up; exec sleep 600"], stdout=write)
        os.close(write)
        assert await asyncio.to_thread(os.read, read, 10) == b"up\n"
        os.close(read)
        assert child.running
        with pytest.raises(TimeoutError):
            await child.wait(0.01)
        child.send_signal(signal.SIGTERM)
        assert await child.wait(20) == -signal.SIGTERM
        assert child.returncode == -signal.SIGTERM
        child.send_signal(signal.SIGTERM)
        child.kill()

    loop_run(work())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change ids")
def test_a_child_can_drop_all_its_ids(loop_run: Runner) -> None:
    async def work() -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        child = process.spawn(["id", "-u", "-n"], stdout=write, user=65534, group=65534)
        other = process.spawn(["id", "-G"], stdout=write, user=65534, group=65534)
        await child.wait(20)
        await other.wait(20)
        os.close(write)
        assert sorted(os.read(read, 100).decode().split()) == ["65534", "nobody"]
        os.close(read)

    loop_run(work())
