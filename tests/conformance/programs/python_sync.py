"""What a program sees of Corral through E2B's SDK, called synchronously."""

import os
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import e2b
from e2b import Sandbox, SandboxQuery, SandboxState
from harness import raises


@cache
def box() -> Sandbox:
    """A sandbox that cases share, which change nothing that others look at."""
    return Sandbox.create(timeout=3600, metadata={"kind": "shared"}, envs={"FROM_CREATE": "1"})


class Fresh:
    """A sandbox of one case, which outlives it also on a host that is slow."""

    def __init__(self, **options: Any) -> None:
        self.options = {"timeout": 600, **options}

    def __enter__(self) -> Sandbox:
        self.box = Sandbox.create(**self.options)
        return self.box

    def __exit__(self, *_: object) -> None:
        self.box.kill()


def wait_until(holds: Any, what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it never came: {what}"
        time.sleep(0.05)


# -- control plane ----------------------------------------------------------------------------------------------------


def case_create_gives_a_running_sandbox() -> None:
    assert box().is_running()
    assert box().sandbox_id.isalnum()


def case_info_tells_what_was_asked_for() -> None:
    info = box().get_info()
    assert info.sandbox_id == box().sandbox_id
    assert info.metadata == {"kind": "shared"}
    assert info.state == SandboxState.RUNNING
    assert info.name == "base"
    assert info.started_at < datetime.now(UTC) < info.end_at


def case_info_of_an_unknown_sandbox_is_not_found() -> None:
    raises(e2b.SandboxException, lambda: Sandbox.get_info("i0123456789abcdef"), "not found")


def case_kill_is_true_once() -> None:
    made = Sandbox.create()
    assert made.kill() is True
    assert made.kill() is False
    assert made.is_running() is False
    assert Sandbox.kill(made.sandbox_id) is False


def case_a_wrong_key_is_refused() -> None:
    raises(e2b.AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))


def case_an_unknown_template_is_refused() -> None:
    raises(e2b.SandboxException, lambda: Sandbox.create("no-such-template"), "not found")


def case_a_timeout_below_zero_is_refused_at_creation() -> None:
    raises(e2b.SandboxException, lambda: Sandbox.create(timeout=-1), "Timeout must be greater than 0")


def case_list_filters_by_metadata_of_any_characters() -> None:
    with Fresh(metadata={"tag": "a b&c=d%25/ü"}) as made:
        found = Sandbox.list(query=SandboxQuery(metadata={"tag": "a b&c=d%25/ü"})).next_items()
        assert [item.sandbox_id for item in found] == [made.sandbox_id]
        assert Sandbox.list(query=SandboxQuery(metadata={"tag": "other"})).next_items() == []


def case_list_goes_in_pages_newest_first() -> None:
    with Fresh(metadata={"page": "1"}) as first, Fresh(metadata={"page": "1"}) as second:
        pages = Sandbox.list(query=SandboxQuery(metadata={"page": "1"}), limit=1)
        assert [item.sandbox_id for item in pages.next_items()] == [second.sandbox_id]
        assert pages.has_next
        assert [item.sandbox_id for item in pages.next_items()] == [first.sandbox_id]
        assert not pages.has_next


def case_list_filters_by_state() -> None:
    with Fresh(metadata={"state": "1"}) as made:
        made.pause()
        running = SandboxQuery(metadata={"state": "1"}, state=[SandboxState.RUNNING])
        paused = SandboxQuery(metadata={"state": "1"}, state=[SandboxState.PAUSED])
        assert Sandbox.list(query=running).next_items() == []
        assert [item.sandbox_id for item in Sandbox.list(query=paused).next_items()] == [made.sandbox_id]
        assert len(Sandbox.list(query=SandboxQuery(metadata={"state": "1"})).next_items()) == 1


def case_set_timeout_moves_the_end_both_ways() -> None:
    with Fresh() as made:
        for seconds in (1800, 300):
            earliest = datetime.now(UTC) + timedelta(seconds=seconds - 1)  # what is told is rounded
            made.set_timeout(seconds)
            assert earliest < made.get_info().end_at < datetime.now(UTC) + timedelta(seconds=seconds + 1)


def case_a_timeout_of_zero_ends_a_sandbox_at_once() -> None:
    with Fresh() as made:
        made.set_timeout(0)
        assert not made.is_running()


def case_a_sandbox_ends_at_its_time() -> None:
    with Fresh(timeout=1) as made:
        wait_until(lambda: not made.is_running(), "the end")
        assert made.kill() is False


def case_connect_never_brings_the_end_nearer() -> None:
    with Fresh() as made:
        before = made.get_info().end_at
        again = Sandbox.connect(made.sandbox_id, timeout=10)
        assert again.get_info().end_at == before
        made.connect(timeout=1800)
        assert made.get_info().end_at > before


def case_pause_and_connect_keep_files_and_processes() -> None:
    with Fresh() as made:
        made.files.write("kept", "1")
        running = made.commands.run("sleep 300", background=True)
        made.pause()
        assert not made.is_running()
        assert made.get_info().state == SandboxState.PAUSED
        again = Sandbox.connect(made.sandbox_id)
        assert again.files.read("kept") == "1"
        assert [item.pid for item in again.commands.list()] == [running.pid]
        assert made.is_running()


def case_a_pause_at_the_end_of_time() -> None:
    with Fresh(timeout=1, lifecycle={"on_timeout": "pause"}) as made:
        wait_until(lambda: made.get_info().state == SandboxState.PAUSED, "the pause")
        assert not made.is_running()
        raises(Exception, lambda: made.commands.run("true"))
        assert made.connect().is_running()


def case_a_pause_of_the_files_only() -> None:
    with Fresh(lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}}) as made:
        made.files.write("kept", "1")
        made.commands.run("sleep 300", background=True)
        made.set_timeout(1)
        wait_until(lambda: made.get_info().state == SandboxState.PAUSED, "the pause")
        made.connect()
        assert made.files.read("kept") == "1"
        assert made.commands.list() == []


def case_a_start_from_the_files_alone() -> None:
    with Fresh() as made:
        made.files.write("kept", "1")
        made.commands.run("sleep 300", background=True)
        made.pause()
        # What the SDK sends for `on_resume`, which not all versions have.
        call = urllib.request.Request(
            f"{os.environ['E2B_API_URL']}/v2/sandboxes/{made.sandbox_id}/connect",
            data=b'{"timeout": 60, "memory": false}',
            headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"},
        )
        assert urllib.request.urlopen(call).status == 201
        assert made.files.read("kept") == "1"
        assert made.commands.list() == []


def case_traffic_wakes_a_sandbox_that_was_made_so() -> None:
    with Fresh(timeout=1, lifecycle={"on_timeout": "pause", "auto_resume": True}) as made:
        wait_until(lambda: made.get_info().state == SandboxState.PAUSED, "the pause")
        assert made.commands.run("echo back").stdout == "back\n"


def case_metrics_tell_what_is_used() -> None:
    size = 32 * 1024 * 1024
    box().commands.run(
        f"head -c {size} /dev/zero >/var/tmp/cached && cat /var/tmp/cached >/dev/null", user="root"
    )
    sample = box().get_metrics()[-1]
    assert sample.cpu_count >= 1
    assert 0 < sample.mem_used < sample.mem_total
    assert sample.disk_total > 0
    assert (
        size // 2 < getattr(sample, "mem_cache", size) < sample.mem_total
    )  # which the oldest version does not have


def case_a_snapshot_starts_sandboxes_and_can_be_deleted() -> None:
    with Fresh() as made:
        made.files.write("state", "then")
        snapshot = made.create_snapshot()
        made.files.write("state", "now")
        with Fresh(template=snapshot.snapshot_id) as child:
            assert child.files.read("state") == "then"
        listed = Sandbox.list_snapshots(sandbox_id=made.sandbox_id).next_items()
        assert [item.snapshot_id for item in listed] == [snapshot.snapshot_id]
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
        named = made.create_snapshot(name="kept_state:v1")
        assert named.names == ["default/kept_state"]
        assert named.snapshot_id == "default/kept_state:v1"
        listed = Sandbox.list_snapshots(sandbox_id=made.sandbox_id).next_items()
        assert [item.snapshot_id for item in listed] == [named.snapshot_id]
        with Fresh(template="kept_state:v1") as child:
            assert child.files.read("state") == "now"
        assert Sandbox.delete_snapshot(named.snapshot_id) is True


def case_a_fork_has_the_files() -> None:
    with Fresh() as made:
        made.files.write("state", "shared")
        children = made.fork(count=2)
        assert [child.files.read("/home/user/state") for child in children] == ["shared", "shared"]
        for child in children:
            assert child.kill()


def case_template_names_are_known() -> None:
    assert e2b.Template.exists("base") is True
    assert e2b.Template.exists("no-such-template") is False


def case_sandboxes_have_the_limits_of_their_template() -> None:
    template = e2b.Template().from_template("base").set_envs({"KIND": "small"})
    e2b.Template.build(template, "conformance-small", cpu_count=1, memory_mb=512)
    with Fresh(template="conformance-small") as made:
        info = made.get_info()
        assert (info.cpu_count, info.memory_mb) == (1, 512)
        assert made.commands.run("echo $KIND").stdout == "small\n"


def case_without_internet_nothing_is_reached() -> None:
    with Fresh(allow_internet_access=False) as made:
        raises(
            e2b.CommandExitException,
            lambda: made.commands.run("curl --connect-timeout 3 --max-time 5 -s https://example.org"),
        )


# -- commands ---------------------------------------------------------------------------------------------------------


def case_run_gives_both_outputs_apart() -> None:
    done = box().commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0)


def case_run_streams_to_callbacks() -> None:
    out: list[str] = []
    err: list[str] = []
    box().commands.run("echo 1; echo 2 >&2", on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err)) == ("1\n", "2\n")


def case_run_raises_for_an_exit_code() -> None:
    try:
        box().commands.run("echo said; exit 3")
    except e2b.CommandExitException as error:
        assert (error.exit_code, error.stdout) == (3, "said\n")
    else:
        raise AssertionError("it did not raise")


def case_a_signal_is_exit_code_minus_one() -> None:
    try:
        box().commands.run("kill -9 $$")
    except e2b.CommandExitException as error:
        assert (error.exit_code, error.error) == (-1, "signal: killed")
    else:
        raise AssertionError("it did not raise")


def case_large_output_is_complete() -> None:
    assert len(box().commands.run("head -c 5000000 /dev/zero | tr '\\0' x").stdout) == 5_000_000


def case_output_that_is_not_ascii() -> None:
    assert box().commands.run("printf 'grüße 🐂'").stdout == "grüße 🐂"


def case_environment_comes_from_creation_and_call() -> None:
    told = box().commands.run(
        "echo $FROM_CREATE $FROM_CALL $E2B_SANDBOX $E2B_SANDBOX_ID", envs={"FROM_CALL": "2"}
    )
    assert told.stdout.split() == ["1", "2", "true", box().sandbox_id]


def case_the_user_and_its_directory() -> None:
    assert box().commands.run("id -un; pwd; echo $HOME").stdout.split() == [
        "user",
        "/home/user",
        "/home/user",
    ]
    assert box().commands.run("id -un; pwd", user="root").stdout.split() == ["root", "/root"]
    assert box().commands.run("sudo -n id -u").stdout == "0\n"


def case_an_unknown_user_is_refused() -> None:
    raises(e2b.AuthenticationException, lambda: box().commands.run("id", user="nobodyx"), "invalid username")


def case_a_working_directory() -> None:
    assert box().commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    raises(
        e2b.InvalidArgumentException,
        lambda: box().commands.run("pwd", cwd="/none"),
        "cwd '/none' does not exist",
    )


def case_a_deadline_kills_the_command() -> None:
    raises(e2b.TimeoutException, lambda: box().commands.run("sleep 60", timeout=1))


def case_a_background_command_is_listed_and_killed() -> None:
    handle = box().commands.run("sleep 301", background=True)
    assert handle.pid in [item.pid for item in box().commands.list()]
    assert box().commands.run(f"kill -0 {handle.pid}").exit_code == 0
    assert handle.kill() is True
    raises(e2b.CommandExitException, handle.wait)
    raises(e2b.CommandExitException, lambda: box().commands.run(f"kill -0 {handle.pid}"))
    assert box().commands.kill(handle.pid) is False


def case_connect_to_a_command_gives_what_comes() -> None:
    handle = box().commands.run("cat", background=True, stdin=True)
    again = box().commands.connect(handle.pid)
    box().commands.send_stdin(handle.pid, "later\n")
    box().commands.close_stdin(handle.pid)
    assert again.wait().stdout == "later\n"


def case_connect_to_an_ended_command_gives_its_end() -> None:
    handle = box().commands.run("true", background=True)
    handle.wait()
    assert box().commands.connect(handle.pid).wait().exit_code == 0
    raises(e2b.NotFoundException, lambda: box().commands.connect(4_000_000))


def case_stdin_is_written_and_closed() -> None:
    handle = box().commands.run("cat", background=True, stdin=True)
    box().commands.send_stdin(handle.pid, "a" * 100_000)
    box().commands.close_stdin(handle.pid)
    assert len(handle.wait().stdout) == 100_000


def case_a_killed_sandbox_ends_its_commands() -> None:
    with Fresh() as made:
        raises(
            Exception,
            lambda: made.commands.run("echo runs; sleep 60", on_stdout=lambda _: made.kill()),
            "killed or reached its end of life",
        )


# -- files ------------------------------------------------------------------------------------------------------------


def case_write_and_read() -> None:
    told = box().files.write("dir/file.txt", "grüße")
    assert (told.path, told.name) == ("/home/user/dir/file.txt", "file.txt")
    assert box().files.read("dir/file.txt") == "grüße"
    assert bytes(box().files.read("dir/file.txt", format="bytes")) == "grüße".encode()
    assert b"".join(box().files.read("dir/file.txt", format="stream")) == "grüße".encode()


def case_files_belong_to_their_user() -> None:
    box().files.write("/tmp/of-root", "1", user="root")
    box().files.write("/tmp/of-user", "1")
    assert box().files.get_info("/tmp/of-root").owner == "root"
    info = box().files.get_info("/tmp/of-user")
    assert (info.owner, info.group, info.permissions, info.mode, info.size) == (
        "user",
        "user",
        "-rw-r--r--",
        0o644,
        1,
    )


def case_many_files_at_once() -> None:
    told = box().files.write_files([{"path": "many/a", "data": "a"}, {"path": "many/b", "data": b"b"}])
    assert [item.path for item in told] == ["/home/user/many/a", "/home/user/many/b"]
    assert box().files.read("many/b") == "b"


def case_raw_and_compressed_uploads() -> None:
    data = bytes(range(256)) * 4000
    box().files.write("raw", data, use_octet_stream=True)
    assert bytes(box().files.read("raw", format="bytes")) == data
    box().files.write("packed", data, gzip=True)
    assert bytes(box().files.read("packed", format="bytes", gzip=True)) == data


def case_missing_and_wrong_files() -> None:
    raises(e2b.FileNotFoundException, lambda: box().files.read("/none"), "path '/none' does not exist")
    raises(e2b.InvalidArgumentException, lambda: box().files.read("/tmp"), "is a directory")
    raises(e2b.InvalidArgumentException, lambda: box().files.write("/tmp", "x"), "is a directory")
    raises(e2b.FileNotFoundException, lambda: box().files.get_info("/none"))
    assert box().files.exists("/none") is False
    assert box().files.exists("/tmp") is True


def case_directories() -> None:
    assert box().files.make_dir("made/deep") is True
    assert box().files.make_dir("made/deep") is False
    box().files.write("made/file", "1")
    raises(e2b.InvalidArgumentException, lambda: box().files.make_dir("made/file"))
    names = [item.path for item in box().files.list("made", depth=2)]
    assert names == ["/home/user/made/deep", "/home/user/made/file"]
    raises(e2b.FileNotFoundException, lambda: box().files.list("/none"))
    raises(e2b.InvalidArgumentException, lambda: box().files.list("made/file"))


def case_rename_and_remove() -> None:
    box().files.write("from", "1")
    assert box().files.rename("from", "new/place").path == "/home/user/new/place"
    raises(e2b.FileNotFoundException, lambda: box().files.rename("from", "x"))
    box().files.remove("new")
    box().files.remove("new")
    assert box().files.exists("new") is False


def case_links_show_where_they_lead() -> None:
    box().files.write("links/target", "1")
    box().commands.run("cd links && ln -sf target good && ln -sf none dangling")
    assert box().files.get_info("links/good").symlink_target == "/home/user/links/target"
    assert "dangling" not in [item.name for item in box().files.list("links")]


def case_a_polled_watch_tells_changes_made_before() -> None:
    box().files.make_dir("watched")
    watch = box().files.watch_dir("watched", recursive=True)
    box().commands.run("mkdir watched/sub")
    assert ("sub", "create") in [(item.name, item.type.value) for item in watch.get_new_events()]
    box().commands.run("echo 1 > watched/sub/new && rm watched/sub/new")
    told = [(item.name, item.type.value) for item in watch.get_new_events()]
    assert ("sub/new", "create") in told
    assert ("sub/new", "remove") in told
    assert watch.get_new_events() == []
    watch.stop()
    raises(e2b.SandboxException, watch.get_new_events)


def case_a_watch_tells_an_upload_as_three_events_with_their_entries() -> None:
    box().files.make_dir("uploads")
    watch = box().files.watch_dir("uploads", include_entry=True)
    box().files.write("uploads/new", "1")
    told = watch.get_new_events()
    assert [item.type.value for item in told] == ["create", "chmod", "write"]
    assert all(item.entry is not None and item.entry.path == "/home/user/uploads/new" for item in told)
    box().files.write("uploads/new", "2")
    assert [item.type.value for item in watch.get_new_events()] == ["chmod", "write"]
    watch.stop()


def case_files_keep_metadata_until_they_are_written_anew() -> None:
    metadata = {"author": "me", "purpose": "a b"}
    assert box().files.write("described", "1", metadata=metadata).metadata == metadata
    assert box().files.get_info("described").metadata == metadata
    assert box().files.rename("described", "renamed").metadata == metadata
    box().commands.run('python3 -c \'import os; os.setxattr("renamed", "user.e2b.more", b"2")\'')
    listed = {item.name: item.metadata for item in box().files.list(".")}
    assert listed["renamed"] == {**metadata, "more": "2"}
    box().files.write("renamed", "1")
    assert box().files.get_info("renamed").metadata is None
    raises(e2b.InvalidArgumentException, lambda: box().files.write("x", "1", metadata={"k": "v" * 5000}))


def case_what_cannot_be_watched() -> None:
    box().files.write("plain", "1")
    raises(e2b.NotFoundException, lambda: box().files.watch_dir("/none"))
    raises(e2b.InvalidArgumentException, lambda: box().files.watch_dir("plain"))


def case_signed_addresses_read_and_write() -> None:
    box().files.write("signed.txt", "1")
    with urllib.request.urlopen(box().download_url("signed.txt")) as answer:
        assert answer.read() == b"1"
    with urllib.request.urlopen(box().download_url("signed.txt", use_signature_expiration=60)) as answer:
        assert answer.read() == b"1"


def case_a_late_signature_is_refused() -> None:
    try:
        urllib.request.urlopen(box().download_url("signed.txt", use_signature_expiration=-120))
    except urllib.error.HTTPError as error:
        assert error.read() == b'{"code":401,"message":"signature is already expired"}'
    else:
        raise AssertionError("it was accepted")


RULES = {"api.example.com": [{"transform": {"headers": {"X-Key": "canary-0123456789"}}}]}
WHO_ANSWERS = "curl -sv --max-time 20 https://api.example.com/ 2>&1 | grep issuer: || true"


def case_header_rules_hold_until_they_are_replaced_and_show_no_value() -> None:
    with Fresh(network={"rules": RULES}) as mine:
        info = mine.get_info()
        assert list(info.network["rules"]) == ["api.example.com"]
        assert "canary" not in repr(info)
        assert "Corral gateway" in mine.commands.run(WHO_ANSWERS).stdout
        mine.update_network({})
        assert "Corral gateway" not in mine.commands.run(WHO_ANSWERS).stdout
        assert "rules" not in (mine.get_info().network or {})


def case_a_proxy_is_told_without_its_password_and_nothing_goes_around_it() -> None:
    proxy = {"address": "45.45.45.2:1", "username": "me", "password": "canary-0123456789"}
    with Fresh(network={"egress_proxy": proxy, "allow_out": ["pypi.org"], "deny_out": ["0.0.0.0/0"]}) as mine:
        info = mine.get_info()
        assert info.network["egress_proxy"] == {"address": "45.45.45.2:1", "username": "me"}
        done = mine.commands.run("curl -s --max-time 40 https://pypi.org/simple/; echo $?", timeout=60)
        assert done.stdout.strip() not in ("", "0")


def case_network_options_that_cannot_be_kept_are_refused() -> None:
    for options in (
        {"egress_proxy": {"address": "127.0.0.1:1080"}},
        {"egress_proxy": {"address": "169.254.169.254:80"}},
        {"egress_proxy": {"address": "proxy.test"}},
        {"rules": {"*": RULES["api.example.com"]}},
        {"rules": {"api.example.com": [{"transform": {"headers": {"Host": "x"}}}]}},
    ):
        raises(e2b.SandboxException, lambda options=options: Sandbox.create(network=options), "400")


def case_volumes_hold_files_for_sandboxes() -> None:
    if not hasattr(e2b, "Volume"):  # older versions
        return
    volume = e2b.Volume.create("conformance-sync")
    try:
        volume.write_file("/a/b", "from outside", force=True)
        with Fresh(volume_mounts={"/data": volume}) as made:
            made.commands.run("cat /data/a/b > /data/back")
            raises(e2b.VolumeException, lambda: e2b.Volume.destroy(volume.volume_id), "mounted")
        assert volume.read_file("/back") == "from outside"
        assert [entry.path for entry in volume.list("/", depth=2)] == ["/a", "/a/b", "/back"]
        assert volume.update_metadata("/back", mode=0o600).mode == 0o600
        volume.remove("/a")
        assert not volume.exists("/a")
        assert volume.volume_id in [item.volume_id for item in e2b.Volume.list()]
    finally:
        assert e2b.Volume.destroy(volume.volume_id)
    assert not e2b.Volume.destroy(volume.volume_id)


def case_zz_the_shared_sandbox_ends() -> None:
    assert box().kill()
