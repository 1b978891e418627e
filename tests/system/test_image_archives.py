"""Templates as OCI images: what is written holds what the template holds, other tools read it, and what is read back is
checked, however it was tampered with."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces

from corral import Client, Sandbox
from corral.errors import CorralError, InvalidInput, UpstreamFailed

pytestmark = pytest.mark.root

TOOLS = "sh rm mv mkdir ln chmod chown cat stat touch readlink python3 find sort"
DOCKERFILE = f"""\
FROM base AS tools
RUN for name in {TOOLS}; do path=$(readlink -f $(command -v $name)); mkdir -p /out/bin; cp $path /out/bin/$name; \\
    ldd $path | grep -o '/lib[^ ]*'; done | sort -u | while read path; do mkdir -p /out$(dirname $path); cp $path /out$path; done
RUN mkdir -p /out/usr/lib && cp -r /usr/lib/python3.11 /out/usr/lib && rm -rf /out/usr/lib/python3.11/[f-n]*/
FROM scratch
ENV PATH=/bin PYTHONHOME=/usr
COPY --from=tools /out /
RUN mkdir -p /gone/deep /opaque/old /dir/sub && echo one > /dir/sub/file && echo x > /gone/deep/x && echo keep > /opaque/old/y \\
    && echo lower > /replaced
RUN rm -r /gone /opaque && mkdir /opaque && echo new > /opaque/new && mv /dir /renamed && echo two > /renamed/sub/more \\
    && rm /replaced && mkdir /replaced && echo in > /replaced/in
COPY <<'EOF' /make.py
import os
os.mkdir("/odd", 0o1777)
for name in ("setuid", "capable", "attributed", "first", "ö" * 127, "new\\nline"):
    with open(f"/odd/{{name}}", "w") as file:
        file.write(name)
os.chmod("/odd/setuid", 0o4755)
os.chown("/odd/first", 1234, 4321)
os.link("/odd/first", "/odd/second")
os.symlink("../etc/passwd", "/odd/link")
os.setxattr("/odd/attributed", "user.note", b"\\xff\\x00 bytes")
os.setxattr("/odd/capable", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
os.mkfifo("/odd/pipe")
EOF
RUN python3 -S /make.py
USER 1000:1000
WORKDIR /odd
"""
LIST = r"""
import os, stat
for place, directories, files in os.walk(b"/"):
    directories[:] = sorted(d for d in directories if place != b"/" or d not in (b"proc", b"dev", b"sys", b"tmp", b"run", b"etc"))
    for name in sorted([*directories, *files]):
        path = os.path.join(place, name)
        status = os.lstat(path)
        told = [path, oct(status.st_mode), status.st_uid, status.st_gid, status.st_nlink if stat.S_ISREG(status.st_mode) else 0]
        if stat.S_ISREG(status.st_mode):
            told += [status.st_size, int(status.st_mtime)]
            if path.startswith(b"/odd"):
                told.append([(key, os.getxattr(path, key)) for key in sorted(os.listxattr(path))])
        if stat.S_ISLNK(status.st_mode):
            told.append(os.readlink(path))
        print(told)
"""


@pytest.fixture(scope="module")
def exported(shared_daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The archive of a template with everything that is hard to keep."""
    file = tmp_path_factory.mktemp("images") / "odd.tar"
    with shared_daemon.client() as client:
        client.build_template_from("odd", dockerfile=DOCKERFILE)
        shared_daemon.cli("template", "export", "odd", str(file))
        yield file
        client.remove_template("odd")


def listing(client: Client, template: str) -> str:
    with Sandbox.create(template, client=client) as box:
        return box.exec(["python3", "-B", "-S", "-c", LIST], user="0", check=True).stdout


def test_what_comes_back_is_what_went_out(daemon: Daemon, client: Client, exported: Path) -> None:
    daemon.cli("template", "import", "back", str(exported))
    try:
        before, after = listing(client, "odd"), listing(client, "back")
        # An imported image gets no FIFO.
        assert [line for line in before.splitlines() if "/odd/pipe" not in line] == after.splitlines()
        for words in (
            "/renamed/sub/file",
            "/renamed/sub/more",
            "/opaque/new",
            "/replaced/in",
            "user.note",
            "'0o104755', 0, 0",
        ):
            assert words in after
        for words in ("/gone", "/opaque/old", "b'/dir"):
            assert words not in after
        one, other = client.get_template("odd"), client.get_template("back")
        assert (one.env, one.user, one.workdir, one.sudo) == (
            other.env,
            other.user,
            other.workdir,
            other.sudo,
        )
        again = client.import_template("back", exported.read_bytes())
        assert again.id == other.id
    finally:
        client.remove_template("back")


def test_skopeo_reads_the_archive_and_the_layout(daemon: Daemon, exported: Path, tmp_path: Path) -> None:
    daemon.cli("template", "export", "odd", f"{tmp_path}/layout/")
    for source in (
        f"oci-archive:{exported}",
        f"docker-archive:{exported}",
        f"oci:{tmp_path}/layout:odd:latest",
    ):
        target = tmp_path / source.partition(":")[0]
        subprocess.run(["skopeo", "copy", "-q", source, f"dir:{target}"], check=True, timeout=120)
        config = json.loads(
            subprocess.run(["skopeo", "inspect", "--config", source], check=True, capture_output=True).stdout
        )
        assert config["config"]["User"] == "1000:1000"
        assert config["config"]["WorkingDir"] == "/odd"
    names: set[str] = set()
    with tarfile.open(exported) as outer:
        manifest = json.load(outer.extractfile("manifest.json") or io.BytesIO())
        for layer in manifest[0]["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                names.update(inner.getnames())
    assert {".wh.gone", ".wh.dir", "renamed/.wh..wh..opq"} <= names
    assert "renamed/sub/file" in names


def test_what_docker_and_others_save_is_read(client: Client, exported: Path, tmp_path: Path) -> None:
    for kind, name in (("docker-archive", "x:latest"), ("oci-archive", "x")):
        file = tmp_path / f"{kind}.tar"
        subprocess.run(
            ["skopeo", "copy", "-q", f"oci-archive:{exported}", f"{kind}:{file}:{name}"],
            check=True,
            timeout=120,
        )
        made = client.import_template("saved", file.read_bytes())
        assert made.workdir == "/odd"
        assert "/renamed/sub/file" in listing(client, "saved")
    client.remove_template("saved")


# -- tampered with --------------------------------------------------------------------------------------------------


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(*entries: tuple[str, bytes, bytes, str]) -> bytes:
    """A tar of (name, type, content, link target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content, target in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def image(
    layer: bytes, *, diff_id: str = "", spoil: Callable[[dict[str, bytes]], None] | None = None
) -> bytes:
    """An archive of an image of one layer."""
    config = json.dumps(
        {
            "os": "linux",
            "architecture": "amd64",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [diff_id or sha(layer)]},
        }
    ).encode()
    kind = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": {"mediaType": f"{kind}.config.v1+json", "digest": sha(config), "size": len(config)},
            "layers": [{"mediaType": f"{kind}.layer.v1.tar", "digest": sha(layer), "size": len(layer)}],
        }
    ).encode()
    index = {"schemaVersion": 2, "manifests": [{"digest": sha(manifest), "size": len(manifest)}]}
    files = {f"blobs/sha256/{sha(data)[7:]}": data for data in (config, manifest, layer)}
    files |= {"index.json": json.dumps(index).encode(), "oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    if spoil is not None:
        spoil(files)
    return tar(*((name, tarfile.REGTYPE, data, "") for name, data in files.items()))


GOOD = tar(("file", tarfile.REGTYPE, b"good", ""))
LAYER = f"blobs/sha256/{sha(GOOD)[7:]}"


def test_a_plain_image_is_taken(client: Client) -> None:
    assert len(client.import_template("plain", image(GOOD)).layers) == 1
    client.remove_template("plain")


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (image(GOOD, spoil=lambda files: files.update({LAYER: GOOD.replace(b"good", b"evil")})), UpstreamFailed, sha(GOOD)),
        (image(GOOD, diff_id=sha(b"else")), UpstreamFailed, f"layer 1 \\({sha(GOOD)}\\)"),
        (image(GOOD, spoil=lambda files: files.__delitem__(LAYER)), UpstreamFailed, sha(GOOD)),
        (image(GOOD)[:3000], CorralError, "archive"),
        (image(tar(("/../../up", tarfile.REGTYPE, b"x", ""))), InvalidInput, "leaves its root"),
        (image(tar(("a/../../up", tarfile.REGTYPE, b"x", ""))), InvalidInput, "leaves its root"),
        (image(b"no tar at all" * 100), CorralError, "layer 1"),
        (image(GOOD, spoil=lambda files: files.update({"index.json": b'{"manifests": []}'})), InvalidInput, "0 images"),
        (image(GOOD, spoil=lambda files: files.update({"index.json": b"[" * 100000})), CorralError, "malformed"),
        (tar(("some", tarfile.REGTYPE, b"file", "")), InvalidInput, "neither an OCI image layout"),
        (tar(("index.json", tarfile.SYMTYPE, b"", "/etc/passwd")), InvalidInput, "neither"),
        (tar(("index.json", tarfile.SYMTYPE, b"", "index.json")), InvalidInput, "neither"),
        (b"", CorralError, "archive"),
    ],
    ids=[
        *("layer changed", "other content", "layer missing", "cut", "climbs", "climbs inside", "no layer", "no image"),
        *("no JSON", "no layout", "link to the host", "link to itself", "nothing"),
    ],
)  # fmt: skip
def test_what_is_no_whole_image_is_refused(
    daemon: Daemon, client: Client, data: bytes, error: type[CorralError], words: str
) -> None:
    before = traces(daemon)
    with pytest.raises(error, match=words):
        client.import_template("never", data)
    settled(daemon, before)
    assert [item.name for item in client.list_templates() if item.name == "never"] == []


def test_links_of_a_layer_lead_nowhere_but_into_it(client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    layer = tar(
        ("away", tarfile.SYMTYPE, b"", str(tmp_path)),
        ("away/mark", tarfile.REGTYPE, b"written through a link", ""),
        ("null", tarfile.CHRTYPE, b"", ""),
        ("hard", tarfile.SYMTYPE, b"", "/etc/shadow"),
    )
    try:
        client.import_template("linked", image(layer))
    except CorralError:
        pass
    else:
        client.remove_template("linked")
    assert not mark.exists()
