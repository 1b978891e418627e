"""Templates as OCI image archives: written, and read back.

What is written is one tar that every tool reads: an OCI image layout (`oci-layout`, `index.json`, `blobs/sha256/…`) with
Docker's `manifest.json` beside it. Layers stay layers, so what two templates share is shared where they are loaded.

What is read is hostile. The archive is indexed without being unpacked (`archive_index`), everything in it is fetched by
digest and checked, and each layer is unpacked by a program of its own (`unpack`), which checks its content again.
"""

import asyncio
import hashlib
import json
import platform
import posixpath
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from corral.engine.ports import ImportedImage, Progress
from corral.errors import CorralError, InvalidInput, UpstreamFailed
from corral.host.threads import in_thread
from corral.model.ids import LayerDigest
from corral.model.template import TemplateConfig
from corral.policy.copying import Item, Kind
from corral.rootfs import archive_index, oci_layer
from corral.rootfs.archive_index import read_index
from corral.rootfs.images import MAX_BYTES, unpack_layer
from corral.rootfs.index import LayerIndex
from corral.rootfs.label import LABEL, write_label
from corral.rootfs.manifest import (
    ARCHITECTURES,
    MAX_DOWNLOAD,
    MAX_MANIFEST,
    ImageConfig,
    check_digest,
    choose_platform,
    parse_config,
    parse_docker_manifest,
    parse_index,
    parse_manifest,
)
from corral.rootfs.programs import run_program
from corral.rootfs.recipe import key_of
from corral.rootfs.room import WithRoom
from corral.rootfs.store import RootStore
from corral.rootfs.unpack import Outcome
from corral.rootfs.uploads import receive

_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CHUNK = 1 << 20
_MAX_OUTER = 10_000
"""Entries of an image's archive: blobs and descriptions, not files of the image."""
_MAX_NAMES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Member:
    """A file of the archive to write: its bytes, or the file that holds them."""

    name: str
    data: bytes = b""
    path: Path | None = None

    @property
    def size(self) -> int:
        return len(self.data) if self.path is None else self.path.stat().st_size


async def export_image(
    store: RootStore,
    scratch: Path,
    layers: Sequence[LayerDigest],
    config: TemplateConfig,
    *,
    name: str,
    created: datetime,
) -> AsyncIterator[bytes]:
    """The archive of a template. `scratch`: a directory with room for its layers, compressed. Needs root.

    What fails, fails before the first bytes. Raises DiskFull, InvalidInput for what no image can hold.
    """
    with tempfile.TemporaryDirectory(prefix="export-", dir=scratch) as folder:
        written = [
            await _write_layer(store, layers[: number + 1], Path(folder) / str(number))
            for number in range(len(layers))
        ]
        members = _members(written, Path(folder), config, name, created)
        for member in members:
            async for data in _sent(member):
                yield data
        yield bytes(2 * tarfile.BLOCKSIZE)


async def _write_layer(store: RootStore, layers: Sequence[LayerDigest], blob: Path) -> oci_layer.Written:
    base = await asyncio.to_thread(store.ids_of, layers)
    async with in_thread(store.workspace(("upper", "work", "mount", "raw"))) as place:
        request = oci_layer.Request(
            tree=str(store.layer_path(layers[-1])),
            raw_base=await asyncio.to_thread(store.ids_of, layers[-1:]),
            lowers=[str(store.layer_path(layer)) for layer in layers],
            upper=str(place / "upper"),
            mount=str(place / "mount"),
            raw=str(place / "raw"),
            uid_base=base,
            blob=str(blob),
            max_bytes=MAX_BYTES,
        )
        return oci_layer.Written(**await run_program("oci_layer", request))


def _members(
    layers: Sequence[oci_layer.Written], folder: Path, config: TemplateConfig, name: str, created: datetime
) -> Iterator[_Member]:
    document = _json(_image_config(layers, config, created))
    sent = [{"mediaType": _LAYER_TYPE, "digest": layer.digest, "size": layer.size} for layer in layers]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "config": {"mediaType": _CONFIG_TYPE, **_described(document)},
            "layers": sent,
        }
    )
    base, _, tag = name.partition(":")
    entry = {
        "mediaType": _MANIFEST_TYPE,
        **_described(manifest),
        "annotations": {"org.opencontainers.image.ref.name": f"{base}:{tag or 'latest'}"},
    }
    yield _Member("oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    yield _Member(
        "index.json",
        _json(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.index.v1+json",
                "manifests": [entry],
            }
        ),
    )
    docker = {
        "Config": _blob_name(_described(document)["digest"]),
        "RepoTags": [f"{base}:{tag or 'latest'}"],
        "Layers": [_blob_name(layer.digest) for layer in layers],
    }
    yield _Member("manifest.json", _json([docker]))
    for data in (manifest, document):
        yield _Member(_blob_name(_described(data)["digest"]), data)
    told: set[str] = set()
    for number, layer in enumerate(layers):
        if layer.digest not in told:
            told.add(layer.digest)
            yield _Member(_blob_name(layer.digest), path=folder / str(number))


def _image_config(
    layers: Sequence[oci_layer.Written], config: TemplateConfig, created: datetime
) -> dict[str, Any]:
    machine = platform.machine()
    run: dict[str, Any] = {
        "Env": [f"{key}={value}" for key, value in config.env.items()],
        "User": config.user,
        "WorkingDir": config.workdir,
        "Labels": {LABEL: write_label(config)},
    }
    if config.start_command:
        run["Cmd"] = list(config.start_command)
    return {
        "created": created.isoformat(),
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created.isoformat(), "created_by": "corral"} for _ in layers],
    }


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _described(data: bytes) -> dict[str, Any]:
    return {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


async def _sent(member: _Member) -> AsyncIterator[bytes]:
    info = tarfile.TarInfo(member.name)
    info.size, info.mode = member.size, 0o644
    yield info.tobuf(tarfile.PAX_FORMAT)
    if member.path is None:
        yield member.data
    else:
        with open(member.path, "rb") as file:  # noqa: ASYNC230 - opening alone does not block
            while data := await asyncio.to_thread(file.read, _CHUNK):
                yield data
    yield bytes(-info.size % tarfile.BLOCKSIZE)


# -- reading back ---------------------------------------------------------------------------------------------------


class _Archive:
    """A plain archive and what it holds."""

    def __init__(self, tar: Path, items: Mapping[str, Item]) -> None:
        self._tar = tar
        self._items = items

    def find(self, name: str) -> Item | None:
        """A file by its path; links are followed within the archive."""
        path = posixpath.normpath(name.lstrip("/"))
        for _ in range(8):
            item = self._items.get(path)
            if item is None or item.kind is Kind.FILE:
                return item
            if item.kind is not Kind.SYMLINK:
                return None
            path = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), item.target)).lstrip("/")
        return None

    def read(self, name: str) -> bytes:
        """A description, whole. Raises InvalidInput where there is none."""
        item = self.find(name)
        if item is None:
            raise InvalidInput(
                f"the archive holds no {name[:120]}", "it is not a whole image: export it again"
            )
        if item.size > MAX_MANIFEST:
            raise InvalidInput(f"{name[:120]} of the archive is too large", "export the image again")
        with open(self._tar, "rb") as file:
            file.seek(item.offset)
            return file.read(item.size)

    def blob(self, digest: str) -> bytes:
        """A description by its digest, checked."""
        data = self.read(_blob_name(digest))
        check_digest(data, digest, f"description {digest}")
        return data

    def copy(self, item: Item, target: Path) -> None:
        """A file's content as a file of its own."""
        with open(self._tar, "rb") as file, open(target, "wb") as copy:
            file.seek(item.offset)
            left, kept = item.size, WithRoom(copy)
            while left and (data := file.read(min(left, _CHUNK))):
                left -= len(data)
                kept.write(data)


@dataclass(frozen=True, slots=True)
class _Image:
    """What an archive says: its configuration, the digest that it is known by, and each layer with its digest (empty where
    the archive names none)."""

    config: ImageConfig
    digest: str
    layers: tuple[tuple[Item, str], ...]


async def import_archive(
    store: RootStore, index: LayerIndex, scratch: Path, data: AsyncIterator[bytes], progress: Progress
) -> ImportedImage:
    """The layers and the configuration of an image's archive: an OCI layout or what `docker save` writes. Needs root.

    Raises InvalidInput for what is no image, or a hostile one; UpstreamFailed that names what is damaged; TooLarge,
    Unsupported, DiskFull.
    """
    with tempfile.TemporaryDirectory(prefix="import-", dir=scratch) as name:
        folder = Path(name)
        archive = await _received(folder, data)
        image = await asyncio.to_thread(_read_image, archive)
        layers: list[LayerDigest] = []
        total = Outcome()
        for number, chain in enumerate(image.config.chain()):
            key = key_of("oci", 1, chain)
            known = index.get(key)
            if known is None or not store.has_layer(known):
                progress(f"unpacking layer {number + 1} of {len(image.layers)}")
                known = await _layer(store, archive, image, number, folder, layers, total)
                index.put(key, known)
            layers.append(known)
        if total.skipped:
            progress(f"left out {total.skipped} device nodes and FIFOs")
        config = image.config
        return ImportedImage(
            tuple(layers), config.env, config.user, config.workdir, image.digest, config.kept
        )


async def _received(folder: Path, data: AsyncIterator[bytes]) -> _Archive:
    source = folder / "upload"
    await receive(source, data, MAX_DOWNLOAD)
    request = archive_index.Request(
        source=str(source),
        tar=str(folder / "archive.tar"),
        index=str(folder / "index"),
        max_entries=_MAX_OUTER,
        max_bytes=MAX_BYTES,
        max_names=_MAX_NAMES,
    )
    await run_program("archive_index", request)
    source.unlink()
    items = {item.path: item for item in await asyncio.to_thread(list, read_index(request.index))}
    return _Archive(folder / "archive.tar", items)


def _read_image(archive: _Archive) -> _Image:
    if archive.find("index.json") is not None:
        return _read_layout(archive)
    if archive.find("manifest.json") is not None:
        return _read_docker(archive)
    raise InvalidInput(
        "the archive is neither an OCI image layout nor one of `docker save`",
        "export one with `corral template export`, `docker save` or `skopeo copy … oci-archive:FILE`",
    )


def _read_layout(archive: _Archive) -> _Image:
    digest = parse_index(archive.read("index.json"))
    raw = archive.blob(digest)
    chosen = choose_platform(raw, platform.machine())
    if chosen is not None:
        digest, raw = chosen, archive.blob(chosen)
    manifest = parse_manifest(raw)
    config = parse_config(archive.blob(manifest.config.digest), len(manifest.layers))
    layers = []
    for blob in manifest.layers:
        item = archive.find(_blob_name(blob.digest))
        if item is None:
            raise UpstreamFailed(f"the archive lacks the layer {blob.digest}", "export the image again")
        if f"sha256:{item.digest}" != blob.digest:
            raise UpstreamFailed(
                f"the layer {blob.digest} of the archive is damaged", "export the image again"
            )
        layers.append((item, blob.digest))
    return _Image(config, digest, tuple(layers))


def _read_docker(archive: _Archive) -> _Image:
    config_name, layer_names = parse_docker_manifest(archive.read("manifest.json"))
    raw = archive.read(config_name)
    config = parse_config(raw, len(layer_names))
    layers = []
    for name in layer_names:
        item = archive.find(name)
        if item is None:
            raise UpstreamFailed(f"the archive lacks the layer {name[:120]}", "save the image again")
        layers.append((item, f"sha256:{item.digest}"))
    return _Image(config, f"sha256:{hashlib.sha256(raw).hexdigest()}", tuple(layers))


async def _layer(
    store: RootStore,
    archive: _Archive,
    image: _Image,
    number: int,
    folder: Path,
    below: Sequence[LayerDigest],
    total: Outcome,
) -> LayerDigest:
    item, digest = image.layers[number]
    blob = folder / "blob"
    await asyncio.to_thread(archive.copy, item, blob)
    try:
        layer, outcome = await unpack_layer(store, blob, image.config.diff_ids[number], below, total)
    except CorralError as error:
        raise type(error)(f"layer {number + 1} ({digest}): {error.message}", error.hint) from error
    finally:
        blob.unlink(missing_ok=True)
    total.entries += outcome.entries
    total.bytes += outcome.bytes
    total.skipped += outcome.skipped
    return layer
