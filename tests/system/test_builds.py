"""Templates built by a real daemon: what steps leave, what is found again, what a failure leaves, hostile contexts."""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces, wait_for

import corral
from corral import Client, Sandbox
from corral.errors import CommandFailed, Conflict, CorralError, InvalidInput, NotFound
from corral.protocol.builds import BuildLine

pytestmark = pytest.mark.root


@pytest.fixture
def names(client: Client) -> Iterator[list[str]]:
    """Names of templates that are removed at the end of the test."""
    made: list[str] = []
    yield made
    for name in made:
        try:
            client.remove_template(name)
        except NotFound:
            continue


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "main.py").write_text("print('hello')\n")
    (tmp_path / "src" / "deep" / "data").write_text("data\n")
    (tmp_path / "src" / "run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "src" / "run").chmod(0o755)
    (tmp_path / "src" / "link").symlink_to("main.py")
    (tmp_path / "secret.log").write_text("not to be sent\n")
    (tmp_path / ".dockerignore").write_text("*.log\n**/deep\n!src/deep\n")
    return tmp_path


DOCKERFILE = """\
ARG GREETING=hello
FROM base AS made
ARG GREETING
ENV TEXT="$GREETING world"
WORKDIR /work
COPY --chown=user src /work/
RUN ./run > out && echo "$TEXT" >> out && id -u >> out
USER user
RUN id -un > /tmp/who

FROM base
COPY --from=made --chown=1000:1000 --chmod=600 /work/out /srv/out
COPY --from=made /work/ma*.py /work/link /srv/
COPY <<"EOF" /etc/written
$TEXT
EOF
RUN --mount=type=cache,target=/var/cache/none touch /var/cache/none/x && mkdir -p /a/b
RUN rm -r /opt && ln -s /srv /opt
WORKDIR /opt
USER user
"""


def build(daemon: Daemon, name: str, context: Path, text: str, *options: str, check: bool = True) -> str:
    (context / "Dockerfile").write_text(text)
    return daemon.cli("template", "build", name, "--context", str(context), *options, check=check).stderr


def test_a_dockerfile_becomes_a_template(
    daemon: Daemon, client: Client, context: Path, names: list[str]
) -> None:
    names.append("docked")
    client.forget_steps()
    log = build(daemon, "docked", context, DOCKERFILE, "--build-arg", "GREETING=hi")
    assert "cached" not in log
    with Sandbox.create("docked", client=client) as box:
        assert (box.info.user, box.info.workdir) == ("user", "/opt")
        told = box.exec(
            "pwd -P; stat -c '%u:%g %a' /srv/out; cat /srv/out; readlink /opt; ls /srv /var/cache/none",
            check=False,
        )
        assert told.stdout.splitlines() == [
            "/srv",
            "1000:1000 600",
            "ran",
            "hi world",
            "0",
            "/srv",
            "/srv:",
            "link",
            "main.py",
            "out",
        ]
        assert "No such file" in told.stderr
        assert (
            box.exec("cat /etc/written; stat -c %F /srv/link; ls /work", check=False).stdout
            == "$TEXT\nregular file\n"
        )
    again = build(daemon, "docked", context, DOCKERFILE, "--build-arg", "GREETING=hi")
    assert again.count("cached") == 8
    (context / "src" / "main.py").write_text("print('other')\n")
    changed = build(daemon, "docked", context, DOCKERFILE, "--build-arg", "GREETING=hi")
    assert changed.count("cached") == 0
    (context / "secret.log").write_text("changed, and ignored\n")
    assert build(daemon, "docked", context, DOCKERFILE, "--build-arg", "GREETING=hi").count("cached") == 8


def test_a_failing_step_leaves_nothing_and_tells_its_line(
    daemon: Daemon, client: Client, context: Path
) -> None:
    client.forget_steps()
    before = traces(daemon)
    templates = [item.name for item in client.list_templates()]
    log = build(daemon, "failing", context, "FROM base\nRUN echo fine\nRUN echo said; false\n", check=False)
    assert "  said" in log
    assert "error: line 3: `echo said; false` failed with exit code 1" in log
    assert [item.name for item in client.list_templates()] == templates
    assert client.list_sandboxes() == []
    again = build(daemon, "failing", context, "FROM base\nRUN echo fine\nRUN echo said; false\n", check=False)
    assert again.count("cached") == 1
    client.forget_steps()
    settled(daemon, before)


def test_a_build_that_is_given_up_leaves_nothing(daemon: Daemon, client: Client) -> None:
    before = traces(daemon)
    started = client.start_build("slow", dockerfile="FROM base\nRUN echo begun; sleep 1000\n")
    lines = client.follow_build(started.id)
    assert any(line.text == "begun" for line in lines)
    assert client.get_build(started.id).status == "building"
    assert client.cancel_build(started.id).status == "cancelled"
    assert client.list_sandboxes() == []
    settled(daemon, before)
    with pytest.raises(NotFound):
        client.get_template("slow")
    assert client.cancel_build(started.id).status == "cancelled"


def test_a_killed_daemon_gives_its_builds_up(daemon: Daemon, names: list[str]) -> None:
    names.append("killed")
    with daemon.client() as client:
        started = client.start_build(
            "killed", dockerfile="FROM base\nRUN echo one > /one\nRUN echo begun; sleep 1000\n"
        )
        assert any(line.text == "begun" for line in client.follow_build(started.id))
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        wait_for(lambda: client.list_sandboxes() == [], "its sandbox is still there")
        lines: list[BuildLine] = []
        client.build_template_from(
            "killed", dockerfile="FROM base\nRUN echo one > /one\n", on_line=lines.append
        )
        assert [line.text for line in lines].count("cached") == 1


def test_python_builds_templates(client: Client, context: Path, names: list[str]) -> None:
    names += ["first", "second"]
    start = corral.Template(context=context).from_base().copy("src/main.py", "app/", owner="user")
    lines: list[BuildLine] = []
    start.run(["touch", "/one two"]).build("first", client=client, on_line=lines.append)
    start.env(A="1").start("python3 -m http.server 8000", ready="curl -sf localhost:8000").build(
        "second", client=client
    )
    assert any(line.text == "[1/2] copy ['src/main.py'] app/ user" for line in lines)
    with Sandbox.create("first", client=client) as box:
        assert box.exec("stat -c %U app/main.py; ls '/one two'", check=True).stdout == "user\n/one two\n"
    with Sandbox.create("second", client=client) as box:
        assert (
            box.exec("curl -s localhost:8000/app/main.py; echo $A", check=True).stdout
            == "print('hello')\n1\n"
        )
        assert [item.tag for item in box.processes()][:1] == ["service:start"]
        box.stop(0)
        box.start()
        assert box.exec("curl -s localhost:8000/app/main.py", check=True).stdout == "print('hello')\n"


def test_a_template_whose_service_is_never_ready_is_not_made(client: Client) -> None:
    template = corral.Template().start("echo broken; exit 3", ready="false")
    with pytest.raises(CommandFailed, match=r"exit code 3.*broken"):
        template.build("unready", client=client)
    assert client.list_sandboxes() == []


def test_nothing_is_the_base_of_files(client: Client, context: Path, names: list[str]) -> None:
    names += ["bare", "over"]
    bare = corral.Template(context=context).from_scratch().copy("src", "/only/").build("bare", client=client)
    assert len(bare.layers) == 1
    over = corral.Template().from_base().copy("/only", "/got/", origin="bare").build("over", client=client)
    assert len(over.layers) == 3
    with Sandbox.create("over", client=client) as box:
        assert box.exec("ls /got", check=True).stdout.split() == ["deep", "link", "main.py", "run"]
    with pytest.raises(InvalidInput, match="nothing to run"):
        corral.Template().from_scratch().run("x").build("none", client=client)


def test_one_file_twice_is_on_top_again(client: Client, context: Path, names: list[str]) -> None:
    names.append("twice")
    template = corral.Template(context=context).copy("src/main.py", "/x").run("echo changed > /x")
    template.copy("src/main.py", "/x").build("twice", client=client)
    with Sandbox.create("twice", client=client) as box:
        assert box.exec("cat /x", check=True).stdout == "print('hello')\n"


def test_archives_are_unpacked_by_add(
    daemon: Daemon, client: Client, context: Path, names: list[str]
) -> None:
    names.append("added")
    with tarfile.open(context / "files.tar.xz", "w:xz") as archive:
        archive.add(context / "src", "src")
    build(daemon, "added", context, "FROM base\nADD files.tar.xz /a\nCOPY files.tar.xz /b/\n")
    with Sandbox.create("added", client=client) as box:
        assert box.exec("cat /a/src/deep/data; ls /b", check=True).stdout == "data\nfiles.tar.xz\n"


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_an_archive_with_a_sparse_file_is_refused_and_not_unpacked_without_it(
    daemon: Daemon, context: Path, form: str
) -> None:
    with (context / "holes").open("wb") as file:
        file.truncate(10 << 20)
    make = [
        "tar",
        f"--format={form}",
        "--sparse",
        "-C",
        str(context),
        "-cf",
        str(context / "files.tar"),
        "holes",
    ]
    subprocess.run(make, check=True)
    said = build(daemon, "holed", context, "FROM base\nADD files.tar /a\n", check=False)
    assert "'holes' is a sparse file" in said
    assert "make the archive without sparse files" in said


def archive(*entries: tuple[str, bytes | None, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, target in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind or tarfile.REGTYPE, target
            tar.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        archive(("../up", None, "")),
        archive(("a/../../up", None, "")),
        archive(("l", tarfile.SYMTYPE, "/etc"), ("l/x", None, "")),
        archive(("h", tarfile.LNKTYPE, "/etc/passwd")),
        archive(("d", tarfile.DIRTYPE, ""), ("d/x", None, ""), ("d", None, "")),
        b"not an archive at all" * 100,
        archive(("x" * 200, None, ""))[:1200],
    ],
    ids=[
        "climbs",
        "climbs inside",
        "below a link",
        "link to the host",
        "directory and file",
        "nonsense",
        "cut",
    ],
)
def test_a_hostile_context_is_refused(client: Client, data: bytes) -> None:
    with pytest.raises(CorralError) as caught:
        client.upload_context(data)
    assert caught.value.code in ("invalid_input", "upstream_failed")


def test_devices_of_a_context_are_left_out(client: Client) -> None:
    info = client.upload_context(
        archive(("x", None, ""), ("null", tarfile.CHRTYPE, ""), ("pipe", tarfile.FIFOTYPE, ""))
    )
    assert (info.entries, info.skipped) == (1, 2)
    assert client.has_context(info.id)
    assert not client.has_context("0" * 64)


@pytest.mark.parametrize(
    ("recipe", "error", "words"),
    [
        ("FROM nothing-of-this-name:1@bad", InvalidInput, "image reference"),
        ("FROM base\nUSER nobody-here\nRUN true", CorralError, "nobody-here"),
        ("FROM base\nCOPY --chown=nobody-here <<E /x\nE\n", InvalidInput, "no user 'nobody-here'"),
        ("FROM base\nCOPY <<E /usr\nE\n", Conflict, "is a directory of the image"),
        ("FROM base\nCOPY <<E /etc/passwd/x\nE\n", Conflict, "no directory"),
        ("FROM base\nCOPY --from=base /nothing /x", NotFound, "there is no 'nothing'"),
        ("FROM base\nCOPY x /x", InvalidInput, "no context"),
    ],
)
def test_what_cannot_be_built_says_why(
    client: Client, recipe: str, error: type[CorralError], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.build_template_from("never", dockerfile=recipe)
    assert client.list_sandboxes() == []


@pytest.mark.network
def test_commands_reach_what_the_build_is_allowed_and_nothing_else(
    daemon: Daemon, client: Client, names: list[str]
) -> None:
    names.append("reaching")
    fetch = (
        "FROM base\nADD http://deb.debian.org/debian/dists/bookworm/Release /readme\nRUN test -s /readme\n"
    )
    with pytest.raises(CommandFailed):
        client.build_template_from("reaching", dockerfile=fetch)
    client.build_template_from("reaching", dockerfile=fetch, allow=["deb.debian.org"])
    with pytest.raises(CommandFailed):
        client.build_template_from(
            "reaching", dockerfile=f"{fetch}RUN curl -sSf https://pypi.org/\n", allow=["deb.debian.org"]
        )


@pytest.mark.gvisor
def test_commands_run_in_gvisor(client: Client, names: list[str]) -> None:
    names.append("guarded")
    client.build_template_from(
        "guarded", dockerfile="FROM base\nWORKDIR /made\nRUN dmesg > log\n", isolation="gvisor"
    )
    with Sandbox.create("guarded", client=client) as box:
        assert "gVisor" in box.exec("cat log", check=True).stdout


def test_the_command_line_shows_builds(daemon: Daemon, client: Client) -> None:
    started = client.start_build("shown", dockerfile="FROM base\nRUN echo said; false\n")
    list(client.follow_build(started.id))
    shown = daemon.cli_json("build", "show", started.id)
    assert isinstance(shown, dict)
    assert (shown["status"], shown["error"]["code"]) == ("failed", "command_failed")
    assert started.id in daemon.cli("build", "ls").stdout
    assert "  said" in daemon.cli("build", "log", started.id).stdout.splitlines()
    lines = [
        json.loads(line) for line in daemon.cli("build", "log", started.id, "--json").stdout.splitlines()
    ]
    assert [line["number"] for line in lines] == list(range(len(lines)))
    assert daemon.cli("build", "cancel", started.id).stdout == "failed\n"
    assert daemon.cli("build", "show", "nothing", check=False).returncode == 4
