"""What a program sees of Corral through E2B's SDK, called asynchronously."""

import asyncio

import e2b
from e2b import AsyncSandbox, SandboxQuery
from harness import araises

_shared: list[AsyncSandbox] = []


async def box() -> AsyncSandbox:
    """A sandbox that cases share."""
    if not _shared:
        _shared.append(await AsyncSandbox.create(timeout=3600))
    return _shared[0]


async def case_create_run_and_kill() -> None:
    made = await AsyncSandbox.create(timeout=600, metadata={"async": "1"})
    assert await made.is_running()
    assert (await made.commands.run("echo 1")).stdout == "1\n"
    found = await AsyncSandbox.list(query=SandboxQuery(metadata={"async": "1"})).next_items()
    assert [item.sandbox_id for item in found] == [made.sandbox_id]
    assert await made.kill() is True
    assert await made.is_running() is False


async def case_many_commands_at_once() -> None:
    made = await box()
    told = await asyncio.gather(*(made.commands.run(f"echo {n}") for n in range(20)))
    assert [item.stdout for item in told] == [f"{n}\n" for n in range(20)]


async def case_a_terminal_has_a_size_and_takes_input() -> None:
    made = await box()
    seen: list[bytes] = []
    terminal = await made.pty.create(e2b.PtySize(rows=24, cols=80), on_data=seen.append)
    await made.pty.resize(terminal.pid, e2b.PtySize(rows=30, cols=101))
    await made.pty.send_stdin(terminal.pid, b"tput cols; exit 7\n")
    await araises(e2b.CommandExitException, terminal.wait())
    assert b"101" in b"".join(seen)


async def case_a_terminal_is_killed() -> None:
    made = await box()
    terminal = await made.pty.create(e2b.PtySize(rows=24, cols=80), on_data=lambda _: None)
    assert await made.pty.kill(terminal.pid) is True
    await araises(e2b.CommandExitException, terminal.wait())
    assert await made.pty.kill(terminal.pid) is False


async def case_a_watch_tells_changes_as_they_come() -> None:
    made = await box()
    await made.files.make_dir("stream")
    told: asyncio.Queue[str] = asyncio.Queue()
    watch = await made.files.watch_dir("stream", on_event=lambda event: told.put_nowait(event.name))
    await made.files.write("stream/file", "1")
    assert await asyncio.wait_for(told.get(), 60) == "file"
    await watch.stop()


async def case_a_killed_sandbox_ends_its_commands() -> None:
    made = await AsyncSandbox.create(timeout=600)
    running = await made.commands.run("sleep 60", background=True)
    await made.kill()
    await araises(
        Exception, running.wait(), "killed or reached its end of life|likely due to sandbox timeout"
    )


async def case_two_connects_join_one_resume() -> None:
    made = await AsyncSandbox.create(timeout=600)
    await made.pause()
    both = await asyncio.gather(*(AsyncSandbox.connect(made.sandbox_id) for _ in range(2)))
    assert [await item.is_running() for item in both] == [True, True]
    await made.kill()


async def case_ten_sandboxes_at_once() -> None:
    made = await asyncio.gather(*(AsyncSandbox.create(timeout=600) for _ in range(10)))
    told = await asyncio.gather(*(item.commands.run("echo $E2B_SANDBOX_ID") for item in made))
    assert [item.stdout.strip() for item in told] == [item.sandbox_id for item in made]
    assert await asyncio.gather(*(item.kill() for item in made)) == [True] * 10


async def case_zz_the_shared_sandbox_ends() -> None:
    assert await (await box()).kill()
