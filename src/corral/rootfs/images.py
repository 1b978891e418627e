"""OCI images as layers: pulled by skopeo, each layer unpacked by a program of its own (see `unpack`).

An image is pinned by digest before anything of it is used: the manifest is fetched once and hashed, everything else is
fetched by the digests in it and checked. A layer is known by what it and the layers below it hold (the chain id), so
images that share their lower layers share them here, and a known image is not downloaded again.
"""

import asyncio
import base64
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from corral.engine.ports import ImportedImage, Progress
from corral.errors import CorralError, DiskFull, TooLarge, UpstreamFailed
from corral.host import process
from corral.host.threads import in_thread
from corral.model.build import RegistryLogin
from corral.model.ids import LayerDigest
from corral.rootfs.index import LayerIndex
from corral.rootfs.manifest import (
    MAX_DOWNLOAD,
    MAX_MANIFEST,
    ImageConfig,
    Manifest,
    Reference,
    check_digest,
    choose_platform,
    digest_of,
    parse_config,
    parse_manifest,
)
from corral.rootfs.programs import run_program
from corral.rootfs.recipe import key_of
from corral.rootfs.store import RootStore
from corral.rootfs.unpack import Outcome, Request

MAX_ENTRIES = 1_000_000
MAX_BYTES = 64 << 30
"""Of an image, unpacked."""
_ASK_TIMEOUT = 120.0
_PULL_TIMEOUT = 3600.0
_UNPACK_TIMEOUT = 3600.0


async def import_image(
    store: RootStore,
    index: LayerIndex,
    scratch: Path,
    text: str,
    progress: Progress,
    login: RegistryLogin | None = None,
) -> ImportedImage:
    """The layers and the configuration of the image that the reference `text` names. `scratch`: a directory with room
    for the download. Needs root. With `login` the host's own logins are not used.

    Raises InvalidInput for a bad reference or a hostile image, UpstreamFailed, Unsupported, TooLarge, DiskFull.
    """
    reference = Reference.parse(text)
    progress(f"asking the registry for {text}")
    with _logged_in(reference, scratch, login) as env:
        return await _import(store, index, scratch, reference, progress, env)


async def _import(
    store: RootStore,
    index: LayerIndex,
    scratch: Path,
    reference: Reference,
    progress: Progress,
    env: dict[str, str],
) -> ImportedImage:
    digest, manifest, config = await _describe(reference, env)
    keys = [key_of("oci", 1, chain) for chain in config.chain()]
    known = _known(store, index, keys)
    if len(known) < len(keys):
        with tempfile.TemporaryDirectory(prefix="image-", dir=scratch) as directory:
            progress(f"downloading {len(manifest.layers)} layers, {_mib(manifest.size)}")
            await _download(reference, digest, Path(directory), env)
            known = await _unpack_all(store, index, Path(directory), manifest, config, known, progress)
    return ImportedImage(tuple(known), config.env, config.user, config.workdir, digest, config.kept)


def _known(store: RootStore, index: LayerIndex, keys: Sequence[str]) -> list[LayerDigest]:
    """The layers that are in the store already, from the lowest up to the first that is not."""
    found: list[LayerDigest] = []
    for key in keys:
        layer = index.get(key)
        if layer is None or not store.has_layer(layer):
            break
        found.append(layer)
    return found


async def _describe(reference: Reference, env: dict[str, str]) -> tuple[str, Manifest, ImageConfig]:
    """The digest of the image for this machine, its manifest and its configuration, all checked."""
    raw = await _inspect(reference, env, reference.url(), "--raw")
    digest = reference.digest or digest_of(raw)
    check_digest(raw, digest, "manifest")
    chosen = choose_platform(raw, platform.machine())
    if chosen is not None:
        digest = chosen
        raw = await _inspect(reference, env, reference.url(digest), "--raw")
        check_digest(raw, digest, "manifest")
    manifest = parse_manifest(raw)
    blob = await _inspect(reference, env, reference.url(digest), "--config", "--raw")
    check_digest(blob, manifest.config.digest, "configuration")
    return digest, manifest, parse_config(blob, len(manifest.layers))


async def _inspect(reference: Reference, env: dict[str, str], url: str, *options: str) -> bytes:
    argv = ["skopeo", "inspect", *options, *_tls(reference, "--tls-verify"), url]
    done = await process.run(argv, timeout=_ASK_TIMEOUT, env=env, output_limit=MAX_MANIFEST)
    if done.truncated:
        raise TooLarge("the image's description is larger than any real one", "use another image")
    if not done.ok:
        raise registry_error(done)
    return done.stdout


async def _download(reference: Reference, digest: str, directory: Path, env: dict[str, str]) -> None:
    argv = [
        "prlimit", f"--fsize={MAX_DOWNLOAD}", "skopeo", "copy", "--quiet", "--preserve-digests",
        *_tls(reference, "--src-tls-verify"), reference.url(digest), f"dir:{directory}",
    ]  # fmt: skip
    done = await process.run(argv, timeout=_PULL_TIMEOUT, env=env)
    if not done.ok:
        raise registry_error(done)


def _tls(reference: Reference, option: str) -> list[str]:
    """Plain HTTP is for this machine itself only."""
    return [f"{option}=false"] if reference.loopback else []


@contextmanager
def _logged_in(reference: Reference, scratch: Path, login: RegistryLogin | None) -> Iterator[dict[str, str]]:
    """The environment by which skopeo finds what opens registries: `login`, for the reference's registry alone and in a
    file that only root reads and that is gone afterwards; without it what the operator has logged in to."""
    if login is None:
        names = ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG")
        yield {name: os.environ[name] for name in names if name in os.environ}
        return
    pair = base64.b64encode(f"{login.username}:{login.password.reveal()}".encode()).decode()
    with tempfile.NamedTemporaryFile("w", prefix="login-", dir=scratch) as file:
        json.dump({"auths": {reference.registry: {"auth": pair}}}, file)
        file.flush()
        yield {"REGISTRY_AUTH_FILE": file.name}


def registry_error(done: process.Completed) -> CorralError:
    """Why skopeo failed, as a public error."""
    said = done.stderr.decode("utf-8", "replace").lower()
    if done.timed_out:
        return UpstreamFailed("the registry was too slow", "try again, or pull from a nearer registry")
    if "no space left" in said or "quota exceeded" in said:
        return DiskFull("there is no room for the image's download")
    if "unauthorized" in said or "denied" in said or "authentication required" in said:
        return UpstreamFailed(
            "the registry refuses the image", "check the name; log in with `skopeo login REGISTRY`"
        )
    if "manifest unknown" in said or "not found" in said or "name unknown" in said:
        return UpstreamFailed("the registry does not have this image", "check its name and tag")
    return UpstreamFailed(
        f"the image cannot be pulled: {done.last_line}",
        "check that the registry is up, and the image's name and tag",
    )


async def _unpack_all(
    store: RootStore,
    index: LayerIndex,
    directory: Path,
    manifest: Manifest,
    config: ImageConfig,
    known: Sequence[LayerDigest],
    progress: Progress,
) -> list[LayerDigest]:
    layers = list(known)
    total = Outcome()
    chain = config.chain()
    for number in range(len(known), len(manifest.layers)):
        blob = manifest.layers[number]
        progress(f"unpacking layer {number + 1} of {len(manifest.layers)}, {_mib(blob.size)}")
        path = directory / blob.digest.removeprefix("sha256:")
        layer, outcome = await unpack_layer(store, path, config.diff_ids[number], layers, total)
        total.entries += outcome.entries
        total.bytes += outcome.bytes
        total.skipped += outcome.skipped
        index.put(key_of("oci", 1, chain[number]), layer)
        layers.append(layer)
    if total.skipped:
        progress(f"left out {total.skipped} device nodes and FIFOs")
    return layers


async def unpack_layer(
    store: RootStore, blob: Path, diff_id: str, below: Sequence[LayerDigest], used: Outcome
) -> tuple[LayerDigest, Outcome]:
    """The layer of an archive on top of those below, and what it took; `used` is what the layers below it took. Raises
    UpstreamFailed where its content is not what `diff_id` says, and what the archive is refused for."""
    async with in_thread(store.staging()) as root:
        work, mount = root.parent / "work", root.parent / "mount"
        work.mkdir()
        mount.mkdir()
        request = Request(
            blob=str(blob),
            diff_id=diff_id,
            lowers=[str(store.layer_path(layer)) for layer in below],
            upper=str(root),
            mount=str(mount),
            max_entries=MAX_ENTRIES - used.entries,
            max_bytes=MAX_BYTES - used.bytes,
        )
        outcome = Outcome(**await run_program("unpack", request))
        await asyncio.to_thread(shutil.rmtree, work)
        mount.rmdir()
        return await asyncio.to_thread(store.add_layer, root, below), outcome


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
