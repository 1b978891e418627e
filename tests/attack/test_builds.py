"""Hostile builds: a Dockerfile, a context and images that are all the attacker's, against the host that builds them."""

import contextlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import corral
from corral import Client, Sandbox
from corral.errors import CommandFailed, CorralError
from corral.protocol.builds import BuildLine

if TYPE_CHECKING:
    from tests.attack.conftest import Canary, Range

    from corral.testing.attack.arena import Trap

pytestmark = pytest.mark.root


@pytest.fixture
def client(arena: "Range") -> Iterator[Client]:
    """A client; templates named `hostile` are removed at the end."""
    with arena.daemon.client() as client:
        yield client
        for template in client.list_templates():
            if template.name.startswith("hostile"):
                client.remove_template(template.name)
        client.forget_steps()


def links_to(target: Path) -> str:
    """A RUN step that lays links to a path of the host, of every kind, in /trap."""
    up = "../" * 16
    links = {
        "absolute": f"{target}", "relative": f"{up}{str(target)[1:]}", "root": f"/proc/1/root{target}",
        "self": f"/proc/self/root{target}", "dir": f"{target.parent}", "dirup": f"{up}{str(target.parent)[1:]}",
    }  # fmt: skip
    return f"RUN mkdir -p /trap {target.parent} && cd /trap && " + " && ".join(
        f"ln -s {to} {name}" for name, to in links.items()
    )


def test_copies_follow_links_of_the_image_into_the_image(
    arena: "Range", client: Client, host_secret: Path
) -> None:
    """FILE-7, FILE-10: a COPY whose target runs through links of the image never writes a file of the host, and one whose
    source does never reads one."""
    before = host_secret.read_bytes()
    writes = "".join(
        f"COPY <<EOF {target}\nwritten\nEOF\n"
        for target in (
            "/trap/absolute", "/trap/relative", "/trap/dir/planted", "/trap/dirup/planted",
            f"/..{host_secret.parent}/planted", f"../../../../..{host_secret.parent}/planted",
        )
    )  # fmt: skip
    client.build_template_from("hostile", dockerfile=f"FROM base\n{links_to(host_secret)}\n{writes}")
    assert host_secret.read_bytes() == before
    assert not (host_secret.parent / "planted").exists()
    for name in (
        "absolute",
        "relative",
        "root",
        "self",
        f"dir/{host_secret.name}",
        f"dirup/{host_secret.name}",
    ):
        text = f"FROM base AS trap\n{links_to(host_secret)}\nFROM base\nCOPY --from=trap /trap/{name} /got\n"
        with contextlib.suppress(CorralError):
            client.build_template_from("hostile-read", dockerfile=text)
            with Sandbox.create("hostile-read", client=client) as box:
                got = box.exec("cat /got /got/* 2>/dev/null", check=False).stdout
                assert host_secret.read_text() not in got, name
    arena.alive()


def test_a_whole_tree_of_links_is_copied_as_links(client: Client, host_secret: Path) -> None:
    """FILE-10, API-3: what a directory holds is copied as it is: links stay links."""
    text = f"FROM base AS trap\n{links_to(host_secret)}\nFROM base\nCOPY --from=trap /trap /got\n"
    client.build_template_from("hostile", dockerfile=text)
    with Sandbox.create("hostile", client=client) as box:
        kinds = box.exec("find /got -mindepth 1 -printf '%y\\n' | sort -u", check=True).stdout
        assert kinds == "l\n"
        assert host_secret.read_text() not in box.exec("cat /got/* 2>/dev/null", check=False).stdout


def archive(*entries: tuple[str, bytes, str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, target, content in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_archives_that_are_added_stay_in_the_image(
    arena: "Range", client: Client, host_secret: Path, tmp_path: Path
) -> None:
    """FILE-9: an ADD unpacks an archive that links out and then writes through the link; nothing of the host changes."""
    inner = archive(
        ("away", tarfile.SYMTYPE, str(host_secret.parent), b""),
        (f"away/{host_secret.name}", tarfile.REGTYPE, "", b"overwritten"),
        ("away/planted", tarfile.REGTYPE, "", b"planted"),
        ("hard", tarfile.LNKTYPE, "away/planted", b""),
    )
    context = tmp_path / "context"
    context.mkdir()
    (context / "evil.tar").write_bytes(inner)
    before = host_secret.read_bytes()
    with contextlib.suppress(CorralError):
        corral.Template(context=context).copy("evil.tar", "/unpacked/", unpack=True).build(
            "hostile", client=client
        )
    assert host_secret.read_bytes() == before
    assert not (host_secret.parent / "planted").exists()
    arena.alive()


def test_a_link_of_the_context_brings_no_file_of_its_owner(
    client: Client, host_secret: Path, tmp_path: Path
) -> None:
    """FILE-10: a link in the context to a file beside it is sent as a link; the file is not."""
    context = tmp_path / "context"
    context.mkdir()
    (context / "link").symlink_to(host_secret)
    template = corral.Template(context=context)
    template.copy(".", "/all/").build("hostile", client=client)
    with Sandbox.create("hostile", client=client) as box:
        assert box.exec("readlink /all/link", check=True).stdout.strip() == str(host_secret)
        assert host_secret.read_text() not in box.exec("cat /all/link", check=False).stdout
    with pytest.raises(CorralError, match="leads out of the context"):
        template.copy("link", "/one").build("hostile", client=client)


def test_a_step_reaches_nothing_that_the_build_was_not_allowed(client: Client, trap: "Trap") -> None:
    """G-297, NET-2: a RUN step has the network of a sandbox: a policy, DNS under it, and nothing of the host."""
    lines: list[BuildLine] = []
    script = (
        f"curl -sS -m 5 http://127.0.0.1:{trap.tcp_port}/; curl -sS -m 5 http://10.200.0.1:{trap.tcp_port}/; "
        f"curl -sS -m 5 http://example.org/; getent hosts example.org; ls /run/corral /var/run/docker.sock; false"
    )
    with pytest.raises(CommandFailed):
        client.build_template_from("hostile", dockerfile=f"FROM base\nRUN {script}\n", on_line=lines.append)
    assert trap.touched() == []
    assert not any(
        "docker.sock" in line.text and "No such file" not in line.text for line in lines if line.output
    )


def test_a_build_gets_no_key_and_no_variable_of_the_daemon(client: Client, canary: "Canary") -> None:
    """G-15: what a step prints of its environment, processes and files holds no secret, though the tenant has one."""
    lines: list[BuildLine] = []
    script = "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; grep -rs sk- /etc /run /tmp | head -100; true"
    client.build_template_from("hostile", dockerfile=f"FROM base\nRUN {script}\n", on_line=lines.append)
    text = "\n".join(line.text for line in lines)
    assert "PATH=" in text
    assert not canary.seen_in(text)
    assert "CORRAL_DATA_DIR" not in text


def test_output_without_end_is_cut(client: Client) -> None:
    """A step that floods its log, with lines, with one line, with control characters: what is kept is bounded."""
    client.build_template_from(
        "hostile",
        dockerfile="FROM base\nRUN yes | head -c 3000000; head -c 3000000 /dev/zero | tr '\\0' x; printf '\\033[2Jgone\\n'\n",
    )
    (build,) = [item for item in client.list_builds() if item.name == "hostile"][-1:]
    lines = list(client.follow_build(build.id))
    assert len(lines) <= 20_001
    assert max(len(line.text) for line in lines) <= 4096
    assert sum(len(line.text) for line in lines) <= (8 << 20) + 4096
    assert not any("\x1b" in line.text for line in lines)


def test_an_image_that_is_all_holes_and_links_is_built_or_refused(arena: "Range", client: Client) -> None:
    """Odd trees as a source: a path as deep as can be, names of 255 bytes, a sparse giant, a FIFO, a socket."""
    script = (
        "mkdir -p /odd && cd /odd && truncate -s 1M sparse && mkfifo pipe && "
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")' && "
        "touch $(printf 'n%.0s' $(seq 255)) && for i in $(seq 60); do mkdir -p d$(printf 'e%.0s' $(seq 60)) && cd d*; done"
    )
    text = f"FROM base AS odd\nRUN {script}\nFROM base\nCOPY --from=odd /odd /odd\nRUN ls /odd | wc -l\n"
    client.build_template_from("hostile", dockerfile=text)
    with Sandbox.create("hostile", client=client) as box:
        assert box.exec("find /odd -type p -o -type s", check=True).stdout == ""
        assert box.exec("stat -c %s /odd/sparse", check=True).stdout == "1048576\n"
    arena.alive()
