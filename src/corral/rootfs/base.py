"""Builds the `base` image: a Debian layer by mmdebstrap, and a current Node as a layer of its own.

Both are made at the same time; the Debian layer takes most of it. Debian's own Node is too old for the agents. The
one used is a wheel from the Python package registry, pinned by hash: pip is at hand wherever Corral runs, and asks
the registry, mirror or proxy that this host is set up for.
"""

import asyncio
import os
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.request import getproxies_environment

from corral.engine.ports import Progress
from corral.errors import CorralError, DiskFull, HostError, Unsupported, UpstreamFailed, first_of
from corral.host import mounts, process
from corral.host.programs import find_program
from corral.host.threads import in_thread
from corral.model.ids import LayerDigest
from corral.rootfs import recipe
from corral.rootfs.index import LayerIndex
from corral.rootfs.store import RootStore

BUILD_TIMEOUT = 1800.0
DOWNLOAD_TIMEOUT = 900.0
_QUERY_TIMEOUT = 30.0
# Of the wheel: the program, its headers and npm; the rest is Python and manuals.
_WHEEL_PARTS = ("bin", "include", "lib")

Fill = Callable[[Path], Awaitable[None]]


def known_base(store: RootStore, index: LayerIndex) -> tuple[LayerDigest, ...] | None:
    """The layers of the `base` image, lowest first, if all are in the store. Reads two small files."""
    keys = (recipe.debian_key(_machine()), recipe.node_key(_node_release()))
    layers = tuple(layer for key in keys if (layer := index.get(key)) and store.has_layer(layer))
    return layers if len(layers) == len(keys) else None


def node_tree(data_dir: Path) -> Path | None:
    """Where the Node layer of the `base` image is, if it has been built; the store need not be open."""
    release = recipe.NODE_RELEASES.get(_machine())
    layer = LayerIndex(data_dir / "index").get(recipe.node_key(release)) if release else None
    tree = data_dir / "store" / "layers" / layer.removeprefix("sha256:") / "upper" if layer else None
    return tree if tree is not None and tree.is_dir() else None


async def build_base(store: RootStore, index: LayerIndex, progress: Progress) -> tuple[LayerDigest, ...]:
    """The layers of the `base` image, lowest first, built where the store lacks them. Needs root.

    Raises Unsupported where this host cannot build it, UpstreamFailed where packages cannot be had, DiskFull.
    """
    release = _node_release()
    _require_mmdebstrap()
    try:
        async with asyncio.TaskGroup() as group:
            node = group.create_task(
                _layer(
                    store, index, recipe.node_key(release), lambda root: _fill_node(root, release, progress)
                )
            )
            debian = group.create_task(
                _layer(store, index, recipe.debian_key(_machine()), lambda root: _fill_debian(root, progress))
            )
    except ExceptionGroup as failures:
        # The group's other task was cancelled: there is one cause, or two of equal worth.
        raise first_of(failures) from failures
    return debian.result(), node.result()


async def _layer(store: RootStore, index: LayerIndex, key: str, fill: Fill) -> LayerDigest:
    known = index.get(key)
    if known is not None and store.has_layer(known):
        return known
    async with in_thread(store.staging()) as root:
        await fill(root)
        layer = await asyncio.to_thread(store.add_layer, root)
    index.put(key, layer)
    return layer


def _machine() -> str:
    return platform.machine()


def _node_release() -> recipe.NodeRelease:
    machine = _machine()
    if machine not in recipe.NODE_RELEASES:
        raise Unsupported(
            f"Corral has no `base` image for {machine} machines",
            "make a template from an OCI image: `corral template build NAME --image REFERENCE`",
        )
    return recipe.NODE_RELEASES[machine]


def _require_mmdebstrap() -> None:
    try:
        find_program("mmdebstrap")
    except Unsupported as error:
        raise Unsupported(
            "the `base` template is made by mmdebstrap, which this host lacks",
            "`apt-get install mmdebstrap`, or make a template from an OCI image: "
            "`corral template build NAME --image REFERENCE`",
        ) from error


async def _fill_debian(root: Path, progress: Progress) -> None:
    mirrors = await host_mirrors()
    lines = recipe.BuildProgress()

    def tell(line: str) -> None:
        if told := lines.line(line):
            progress(f"Debian {recipe.SUITE}: {told}")

    done = await process.run(
        recipe.mmdebstrap_command(str(root), mirrors),
        timeout=BUILD_TIMEOUT,
        env=mirrors.proxies,
        on_line=tell,
    )
    if not done.ok:
        raise _failed(
            "mmdebstrap", done, "see whether `apt-get update` works on this host (mirror, proxy, network)"
        )
    await asyncio.to_thread(_clean, root)
    await asyncio.to_thread(_write_files, root, recipe.DEBIAN_FILES, {"/usr/bin/vim": "vim.tiny"})
    for name in recipe.DEBIAN_FOLDERS:
        _folder(root / name.lstrip("/"), root)


def _clean(root: Path) -> None:
    """Remove what the build has left. No directory on these paths is a symlink in Debian."""
    if inside := mounts.mounts_below(root):
        raise HostError(f"{inside[0].target} is still mounted after the build", "unmount it, and try again")
    for name in recipe.EMPTIED:
        for child in (root / name).iterdir():
            _remove(child)
    for pattern in recipe.REMOVED:
        for path in root.glob(pattern):
            _remove(path)
    for name, kept in recipe.PRUNED:
        for folder, _, files in os.walk(root / name):
            for file in files:
                if file != kept:
                    Path(folder, file).unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


async def host_mirrors() -> recipe.Mirrors:
    """Where this host gets Debian packages; nothing in particular where it has no apt."""
    proxies = {f"{scheme}_proxy": url for scheme, url in getproxies_environment().items()}
    targets = await _query("apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)",
                           "Created-By: Packages")  # fmt: skip
    options = await _query("apt-config", "dump", "--format", "%f=%v%n", "Acquire")
    pairs = dict(line.split("=", 1) for line in options if "=" in line)
    return recipe.choose_mirrors(targets, pairs, await asyncio.to_thread(_debian_codename), proxies)


async def _query(*argv: str) -> list[str]:
    try:
        done = await process.run(argv, timeout=_QUERY_TIMEOUT)
    except Unsupported:
        return []
    return done.stdout.decode("utf-8", "replace").splitlines() if done.ok else []


def _debian_codename() -> str | None:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    return release.get("VERSION_CODENAME") if release.get("ID") == "debian" else None


async def _fill_node(root: Path, release: recipe.NodeRelease, progress: Progress) -> None:
    progress(f"Node {release.version}: downloading")
    # Beside the root: what a crash leaves is removed with that.
    with tempfile.TemporaryDirectory(prefix="node-", dir=root.parent) as scratch:
        wheel = await _download_wheel(Path(scratch), release)
        progress(f"Node {release.version}: unpacking")
        await asyncio.to_thread(_unpack_wheel, wheel, root)
    await asyncio.to_thread(_write_files, root, recipe.NODE_FILES, recipe.NODE_LINKS)


async def _download_wheel(directory: Path, release: recipe.NodeRelease) -> Path:
    requirement = f"{recipe.NODE_PACKAGE}=={release.version} --hash=sha256:{release.sha256}\n"
    requirements = directory / "requirements.txt"
    requirements.write_text(requirement)
    argv = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--require-hashes",
        "--no-cache-dir", "--only-binary=:all:", f"--platform={release.platform}", f"--dest={directory}", "-r",
        str(requirements),
    ]  # fmt: skip
    done = await process.run(argv, timeout=DOWNLOAD_TIMEOUT, env=pip_environment(os.environ))
    if b"No module named pip" in done.stderr:
        raise Unsupported("pip is missing beside Corral", f"install it: `{sys.executable} -m ensurepip`")
    if not done.ok:
        raise _failed(
            "pip", done, "see whether pip can download packages on this host (index, proxy, network)"
        )
    return directory / release.wheel


def pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What pip is told by the environment: index, proxy, certificates."""
    return {name: value for name, value in environ.items() if name.startswith("PIP_")}


def _failed(program: str, done: process.Completed, hint: str) -> CorralError:
    if b"No space left on device" in done.stderr or b"Disk quota exceeded" in done.stderr:
        return DiskFull(f"{program} ran out of disk space while building the `base` template")
    state = "did not finish in time" if done.timed_out else f"failed: {done.last_line}"
    return UpstreamFailed(f"{program} {state}", hint)


def _unpack_wheel(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            parts = Path(entry.filename).parts[1:]
            if entry.is_dir() or len(parts) < 2 or parts[0] not in _WHEEL_PARTS or ".." in parts:
                continue
            target = _place(root, "/".join(("usr/local", *parts)))
            target.write_bytes(archive.read(entry))
            target.chmod(0o755 if (entry.external_attr >> 16) & 0o100 else 0o644)


def _write_files(root: Path, files: Mapping[str, tuple[int, str]], links: Mapping[str, str]) -> None:
    for name, (mode, text) in files.items():
        path = _place(root, name)
        path.write_text(text)
        path.chmod(mode)
    for name, target in links.items():
        _place(root, name).symlink_to(target)


def _place(root: Path, name: str) -> Path:
    """Where a new file goes: nothing is there, and everybody can reach it, whatever the daemon's umask is."""
    path = root / name.lstrip("/")
    _folder(path.parent, root)
    path.unlink(missing_ok=True)  # the build may have left a link there, which would be followed
    return path


def _folder(folder: Path, root: Path) -> None:
    """Make a directory below `root`, which everybody can enter, as those above it that are not there."""
    missing = [path for path in (folder, *folder.parents) if path.is_relative_to(root) and not path.exists()]
    for path in reversed(missing):
        path.mkdir()
        path.chmod(0o755)
