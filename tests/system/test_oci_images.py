"""OCI images from a real registry on loopback: layers, whiteouts, sharing, pinning, and archives that attack."""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import tarfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from corral.errors import InvalidInput, TooLarge, UpstreamFailed
from corral.host import mounts
from corral.model.build import RegistryLogin
from corral.model.ids import LayerDigest
from corral.model.secrets import Secret
from corral.rootfs import images
from corral.rootfs.layers import LayerStore
from corral.rootfs.overlay import mount_root, unmount_root
from corral.rootfs.store import RootStore

pytestmark = pytest.mark.root


def archive(*entries: tuple[str, object], **attributes: object) -> bytes:
    """A tar of (name, content): bytes for a file, None for a directory, `-> target` for a symlink, `= name` for a
    hard link, or a ready TarInfo."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in entries:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = content if isinstance(content, bytes) else b""
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, str):
                kind, _, info.linkname = content.partition(" ")
                info.type = tarfile.SYMTYPE if kind == "->" else tarfile.LNKTYPE
            else:
                info.size = len(data) if isinstance(content, bytes) else info.size
            for key, value in attributes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def special(name: str, kind: bytes) -> tuple[str, tarfile.TarInfo]:
    """An entry of another type."""
    info = tarfile.TarInfo(name)
    info.type = kind
    return name, info


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Registry:
    """A registry on loopback, and images pushed to it."""

    address: str
    scratch: Path

    def push(
        self, name: str, layers: Sequence[bytes], config: dict[str, object] | None = None, **forged: str
    ) -> str:
        """Push an image of layers (plain tars; sent gzipped, zstd and plain in turn). Returns its reference."""
        layout = self.scratch / name
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True)

        def put(data: bytes) -> dict[str, object]:
            (blobs / sha256(data)[7:]).write_bytes(data)
            return {"digest": sha256(data), "size": len(data)}

        packers: list[tuple[str, Callable[[bytes], bytes]]] = [
            ("tar+gzip", lambda data: gzip.compress(data, mtime=0)),
            ("tar+zstd", zstandard.ZstdCompressor().compress),
            ("tar", lambda data: data),
        ]
        sent = []
        for number, layer in enumerate(layers):
            kind, pack = packers[number % 3]
            sent.append({"mediaType": f"application/vnd.oci.image.layer.v1.{kind}", **put(pack(layer))})
        diff_ids = [forged.get("diff_id", sha256(layer)) for layer in layers]
        document = {
            "os": "linux", "architecture": "amd64", "config": config or {},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }  # fmt: skip
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json", **put(json.dumps(document).encode())
            },
            "layers": sent,
        }  # fmt: skip
        entry = {"mediaType": manifest["mediaType"], **put(json.dumps(manifest).encode())}
        entry["annotations"] = {"org.opencontainers.image.ref.name": "v1"}
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        reference = f"{self.address}/{name}:v1"
        subprocess.run(
            ["skopeo", "copy", "-q", "--dest-tls-verify=false", "--preserve-digests", f"oci:{layout}:v1",
             f"docker://{reference}"], check=True, timeout=60,
        )  # fmt: skip
        return reference


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with _serving(tmp_path_factory.mktemp("registry")) as address:
        yield address


@contextlib.contextmanager
def _serving(folder: Path, **settings: object) -> Iterator[Registry]:
    """A registry of what is stored in `folder`."""
    settings |= {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": "127.0.0.1:0"},
    }
    config = folder / f"{len(list(folder.glob('*.yml')))}.yml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    command = ["docker-registry", "serve", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
        assert server.stderr is not None
        try:
            address = ""
            for line in server.stderr:
                if found := re.search(rb"listening on (127\.0\.0\.1:[0-9]+)", line):
                    address = found[1].decode()
                    break
            assert address
            # Its log must be read on, or it stops when the pipe is full.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield Registry(address, folder)
        finally:
            server.kill()


# The line of a file of passwords, for `user` and `a-password-of-the-test`.
_PASSWORDS = "user:$2y$04$abcdefghijklmnopqrstuujE09iTL9IekHse/v52aT4z76Rb17j3a\n"


async def test_a_registry_that_wants_a_login_gets_the_one_of_the_request(
    registry: Registry, layers: LayerStore, tmp_path: Path
) -> None:
    pushed = registry.push("closed", [archive(("file", b"behind a login"))])
    passwords = tmp_path / "passwords"
    passwords.write_text(_PASSWORDS)
    with _serving(registry.scratch, auth={"htpasswd": {"realm": "test", "path": str(passwords)}}) as closed:
        reference = pushed.replace(registry.address, closed.address)
        for login in (None, RegistryLogin("user", Secret("a-wrong-password"))):
            with pytest.raises(UpstreamFailed, match="refuses the image"):
                await layers.image(reference, silent, login)
        image = await layers.image(reference, silent, RegistryLogin("user", Secret("a-password-of-the-test")))
    assert len(image.layers) == 1
    for secret in (b"a-password-of-the-test", base64.b64encode(b"user:a-password-of-the-test")):
        assert _files_with(secret, tmp_path) == []


def _files_with(text: bytes, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RootStore]:
    data = tmp_path / "data"
    data.mkdir()
    (data / "store.json").write_text(json.dumps({"kind": "plain", "reason": "for the test"}))
    store = RootStore(data)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def layers(store: RootStore, tmp_path: Path) -> LayerStore:
    return LayerStore(store, tmp_path / "data")


def silent(_: str) -> None:
    pass


@contextlib.asynccontextmanager
async def merged(store: RootStore, layers: Sequence[LayerDigest], tmp_path: Path) -> AsyncIterator[Path]:
    """The layers as a sandbox without a user namespace sees them."""
    folder, root = tmp_path / "sandbox", tmp_path / "merged"
    for name in (folder / "upper", folder / "work", root):
        name.mkdir(parents=True)
    await mount_root([store.layer_path(layer) for layer in layers], folder, root, uid_base=0)
    try:
        yield root
    finally:
        await unmount_root(root)


async def test_layers_configuration_and_ownership(
    registry: Registry, layers: LayerStore, store: RootStore, tmp_path: Path
) -> None:
    setuid = tarfile.TarInfo("bin/su")
    setuid.mode, setuid.uid, setuid.gid = 0o4755, 0, 5_000_000
    setuid.pax_headers = {"SCHILY.xattr.user.note": "kept", "SCHILY.xattr.trusted.overlay.opaque": "y"}
    reference = registry.push(
        "first",
        [
            archive(("bin", None), ("bin/su", setuid), ("etc", None), ("etc/motd", b"one")),
            archive(("etc/motd", b"two"), ("home/dev/x", b"mine"), uid=1000, gid=1000),
        ],
        {"Env": ["PATH=/bin", "BAD NAME=1"], "User": "dev:staff", "WorkingDir": "/home/dev"},
    )
    image = await layers.image(reference, silent)
    assert (image.env, image.user, image.workdir) == ({"PATH": "/bin"}, "dev", "/home/dev")
    assert image.digest.startswith("sha256:")
    assert len(image.layers) == 2
    async with merged(store, image.layers, tmp_path) as root:
        su = (root / "bin/su").stat()
        assert (stat.S_IMODE(su.st_mode), su.st_uid, su.st_gid) == (0o4755, 0, 65534)
        assert os.listxattr(root / "bin/su") == ["user.note"]
        assert (root / "etc/motd").read_text() == "two"
        assert (root / "home/dev/x").stat().st_uid == 1000
        assert stat.S_IMODE((root / "home/dev").stat().st_mode) == 0o755


async def test_whiteouts_and_replaced_entries(
    registry: Registry, layers: LayerStore, store: RootStore, tmp_path: Path
) -> None:
    reference = registry.push(
        "whiteouts",
        [
            archive(
                ("a", None), ("a/gone", b"1"), ("a/kept", b"1"), ("b", None), ("b/old", b"1"), ("b/sub/old", b"1"),
                ("c", b"file"), ("d", None), ("d/deep", b"1"), ("usr/lib", None), ("lib", "-> usr/lib"),
            ),
            archive(
                ("a/.wh.gone", b""), ("b/new", b"2"), ("b/.wh..wh..opq", b""), ("c", None), ("c/now", b"dir"),
                ("d", b"now a file"), ("lib/through", b"2"), ("a/twice", "= a/kept"), ("a/.wh.never", b""),
            ),
        ],
    )  # fmt: skip
    image = await layers.image(reference, silent)
    async with merged(store, image.layers, tmp_path) as root:
        assert sorted(p.name for p in (root / "a").iterdir()) == ["kept", "twice"]
        assert [p.name for p in (root / "b").iterdir()] == ["new"]
        assert (root / "c/now").read_bytes() == b"dir"
        assert (root / "d").read_bytes() == b"now a file"
        assert (root / "lib").is_symlink()
        assert (root / "usr/lib/through").read_bytes() == b"2"


async def test_equal_lower_layers_are_shared_and_a_known_image_is_not_downloaded(
    registry: Registry, layers: LayerStore, store: RootStore
) -> None:
    base = archive(("base", b"0" * 4096))
    one = await layers.image(registry.push("one", [base, archive(("one", b"1"))]), silent)
    two = await layers.image(registry.push("two", [base, archive(("two", b"2"))]), silent)
    assert one.layers[0] == two.layers[0]
    assert len(store.layers()) == 3
    told: list[str] = []
    again = await layers.image(f"{registry.address}/one@{one.digest}", told.append)
    assert again.layers == one.layers
    assert not any("download" in line for line in told)
    assert await layers.prune({*one.layers, *two.layers}) == 0
    freed = await layers.prune(set(two.layers))
    assert freed == 1
    assert store.layers() == set(two.layers)


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("climb", [("../../etc/evil", b"x")]),
        ("climb-link", [("a", "= ../../../etc/passwd")]),
        ("through-a-file", [("a", b"x"), ("a/b", b"x")]),
        ("missing-link", [("a", "= nowhere")]),
        ("whiteout-of-dots", [("x/.wh...", b"")]),
        ("root-is-a-file", [("./", b"x")]),
        ("loop", [("a", "-> b"), ("b", "-> a"), ("a/c", b"x")]),
    ],
)
async def test_archives_that_make_no_sense_are_refused(
    registry: Registry, layers: LayerStore, store: RootStore, name: str, entries: list[tuple[str, object]]
) -> None:
    reference = registry.push(name, [archive(*entries)])
    with pytest.raises(InvalidInput):
        await layers.image(reference, silent)
    assert store.layers() == set()


async def test_symlinks_lead_nowhere_but_into_the_image(
    registry: Registry, layers: LayerStore, store: RootStore, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    reference = registry.push(
        "links",
        [
            archive(
                (str(outside), None),
                ("out", f"-> {outside}"),
                ("up", "-> ../../../../../.."),
                ("out/x", b"in"),
            ),
            archive(("out/y", b"in"), (f"up/{outside}/z", b"in"), ("out/.wh.x", b"")),
        ],
    )
    image = await layers.image(reference, silent)
    assert list(outside.iterdir()) == []
    async with merged(store, image.layers, tmp_path) as root:
        found = root / str(outside).lstrip("/")
        assert sorted(p.name for p in found.iterdir()) == ["y", "z"]
    assert not [entry for entry in mounts.mounts() if str(tmp_path) in str(entry.target)]


async def test_devices_are_left_out(
    registry: Registry, layers: LayerStore, store: RootStore, tmp_path: Path
) -> None:
    entries = [
        special("null", tarfile.CHRTYPE),
        special("disk", tarfile.BLKTYPE),
        special("pipe", tarfile.FIFOTYPE),
    ]
    told: list[str] = []
    image = await layers.image(registry.push("devices", [archive(*entries, ("file", b"x"))]), told.append)
    async with merged(store, image.layers, tmp_path) as root:
        assert [p.name for p in root.iterdir()] == ["file"]
    assert any("3 device nodes" in line for line in told)


async def test_bombs_are_refused(
    registry: Registry, layers: LayerStore, store: RootStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(images, "MAX_ENTRIES", 50)
    zeros = registry.push("zeros", [archive(("zeros", bytes(8 << 20)))])
    with pytest.raises(TooLarge, match="bytes"):
        await layers.image(zeros, silent)
    many = registry.push("many", [archive(*((f"f{n}", b"") for n in range(30)))])
    await layers.image(many, silent)
    more = registry.push("more", [archive(*((f"{k}{n}", b"") for n in range(30))) for k in "ab"])
    with pytest.raises(TooLarge, match="files"):
        await layers.image(more, silent)


async def test_headers_of_any_size_and_sparse_files_are_refused(
    registry: Registry, layers: LayerStore, store: RootStore
) -> None:
    huge = tarfile.TarInfo("huge")
    huge.pax_headers = {"comment": "x" * (2 << 20)}
    with pytest.raises(InvalidInput, match="headers"):
        await layers.image(registry.push("headers", [archive(("huge", huge))]), silent)
    sparse = tarfile.TarInfo("sparse")
    sparse.pax_headers = {
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": "1000000000000",
        "GNU.sparse.numblocks": "1",
    }
    with pytest.raises(InvalidInput, match="sparse"):
        await layers.image(registry.push("sparse", [archive(("sparse", sparse))]), silent)


async def test_content_must_match_what_the_configuration_says(
    registry: Registry, layers: LayerStore, store: RootStore
) -> None:
    reference = registry.push("forged", [archive(("x", b"x"))], diff_id=sha256(b"something else"))
    with pytest.raises(UpstreamFailed, match="not what its configuration says"):
        await layers.image(reference, silent)
    with pytest.raises(UpstreamFailed):
        await layers.image(registry.push("damaged", [b"this is no archive" * 100]), silent)
    assert store.layers() == set()


async def test_what_the_registry_does_not_have(registry: Registry, layers: LayerStore) -> None:
    with pytest.raises(UpstreamFailed, match="does not have"):
        await layers.image(f"{registry.address}/none:v9", silent)
    with pytest.raises(UpstreamFailed):
        await layers.image("127.0.0.1:1/none:v9", silent)
    for reference in ("", "docker://x", "UPPER", "a b", "-x", "x:" + "y" * 200, "x@sha256:12", "http://x/y"):
        with pytest.raises(InvalidInput):
            await layers.image(reference, silent)
