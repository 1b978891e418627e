"""A sandbox's root: the template's layers, id-mapped to its tenant, under its own upper directory.

Made by the new mount calls: each layer is a detached, read-only, id-mapped copy of its mount, given to
overlayfs by descriptor. No mount point, no path limit and no escaping is involved, and the cost does not
depend on what the layers hold. Kernels before 6.13 do not take descriptors there and get mount(2) with
paths in /proc/self/fd.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from corral.errors import HostError, InvalidInput, Unsupported
from corral.host import mounts, syscalls
from corral.host.namespaces import userns_fd
from corral.model.volume import VolumeMount
from corral.rootfs.records import read_record
from corral.rootfs.volumes import attach

MAX_LAYERS = 128
# A renamed directory of a lower layer is noted, not refused with EXDEV, which npm and others do not expect.
# Metadata is never copied up without its data, so that a layer's files depend on no other layer.
_OPTIONS = (("redirect_dir", "on"), ("metacopy", "off"), ("index", "off"), ("xino", "off"))


async def mount_root(
    layers: Sequence[Path],
    sandbox_dir: Path,
    target: Path,
    uid_base: int,
    volumes: Sequence[tuple[Path, VolumeMount]] = (),
) -> None:
    """Mount the root of a sandbox at the directory `target`, with its volumes.

    `layers`: layer paths of the store, lowest first. `sandbox_dir`: its directory in the store, with
    `upper` and `work`. `uid_base`: the host id of its root. Raises InvalidInput, HostError; then nothing is
    mounted.
    """
    if not 0 < len(layers) <= MAX_LAYERS:
        raise InvalidInput(
            f"a root filesystem of {len(layers)} layers is not possible", "flatten the template"
        )
    mappings = [await _mapping(read_record(layer.parent).uid_base, uid_base) for layer in layers]
    try:
        await asyncio.to_thread(_mount_all, layers, mappings, sandbox_dir, target, uid_base, volumes)
    except OSError as error:
        missing = [layer.parent.name for layer in layers if not layer.is_dir()]
        if missing:
            raise HostError(
                f"the layer {missing[0]} is missing", "remove its template and make it again"
            ) from error
        raise HostError(f"cannot mount the root filesystem at {target}: {error}") from error


@contextlib.asynccontextmanager
async def detached_root(layers: Sequence[Path], sandbox_dir: Path, uid_base: int) -> AsyncIterator[int]:
    """The same as a mount that is attached nowhere: a descriptor, with which it ends. Raises Unsupported before Linux 6.13."""
    mappings = [await _mapping(read_record(layer.parent).uid_base, uid_base) for layer in layers]

    def mount() -> int:
        with contextlib.ExitStack() as stack:
            return _overlay(*_parts(stack, layers, mappings, sandbox_dir))

    try:
        root = await asyncio.to_thread(mount)
    except OSError as error:
        raise Unsupported(
            f"cannot show {len(layers)} layers as one: {error}", "see `corral doctor`"
        ) from error
    try:
        yield root
    finally:
        os.close(root)


async def unmount_root(target: Path) -> None:
    """Unmount a sandbox's root, and with it its volumes. Idempotent."""
    await asyncio.to_thread(mounts.unmount, target)


async def _mapping(source: int, uid_base: int) -> int | None:
    return None if source == uid_base else await userns_fd(uid_base, first=source)


def _mount_all(
    layers: Sequence[Path],
    mappings: Sequence[int | None],
    sandbox_dir: Path,
    target: Path,
    uid_base: int,
    volumes: Sequence[tuple[Path, VolumeMount]],
) -> None:
    _mount(layers, mappings, sandbox_dir, target)
    try:
        attach(target, volumes, uid_base)
    except BaseException:
        mounts.unmount(target)
        raise


def _mount(layers: Sequence[Path], mappings: Sequence[int | None], sandbox_dir: Path, target: Path) -> None:
    with contextlib.ExitStack() as stack:
        lowers, upper, work = _parts(stack, layers, mappings, sandbox_dir)
        try:
            root = _overlay(lowers, upper, work)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            try:  # Linux before 6.13
                _overlay_by_path(lowers, upper, work, target)
            except OSError:
                raise error from None  # it says more
            return
        stack.callback(os.close, root)
        mounts.attach(root, target)


def _parts(
    stack: contextlib.ExitStack, layers: Sequence[Path], mappings: Sequence[int | None], sandbox_dir: Path
) -> tuple[list[int], int, int]:
    """Descriptors of the layers, the topmost first as overlayfs wants it, of the upper and of the work directory."""
    lowers = [
        stack.enter_context(_lower(layer, mapping)) for layer, mapping in zip(layers, mappings, strict=True)
    ]
    upper = stack.enter_context(_opened(sandbox_dir / "upper"))
    return lowers[::-1], upper, stack.enter_context(_opened(sandbox_dir / "work"))


@contextlib.contextmanager
def _lower(layer: Path, mapping: int | None) -> Iterator[int]:
    """A detached, read-only view of a layer with the sandbox's ids."""
    fd = syscalls.open_tree(syscalls.AT_FDCWD, str(layer), syscalls.OPEN_TREE_CLONE)
    try:
        flags = syscalls.MOUNT_ATTR_RDONLY
        if mapping is None:
            syscalls.mount_setattr(fd, set_flags=flags)
        else:
            syscalls.mount_setattr(fd, set_flags=flags | syscalls.MOUNT_ATTR_IDMAP, userns_fd=mapping)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _overlay(lowers: Sequence[int], upper: int, work: int) -> int:
    """A detached overlay mount."""
    context = syscalls.fsopen("overlay")
    try:
        syscalls.fsconfig_set_string(context, "source", "corral")
        for key, value in _OPTIONS:
            syscalls.fsconfig_set_string(context, key, value)
        for lower in lowers:
            syscalls.fsconfig_set_fd(context, "lowerdir+", lower)
        syscalls.fsconfig_set_fd(context, "upperdir", upper)
        syscalls.fsconfig_set_fd(context, "workdir", work)
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context, syscalls.MOUNT_ATTR_NODEV)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} {_messages(context)}".strip()) from error
    finally:
        os.close(context)


def _messages(context: int) -> str:
    """What the kernel says about a failed mount."""
    said = []
    with contextlib.suppress(OSError):  # ENODATA after the last
        while line := os.read(context, 4096):
            said.append(line.decode("utf-8", "replace").strip())
    return "; ".join(said)


def _overlay_by_path(lowers: Sequence[int], upper: int, work: int, target: Path) -> None:
    options = [f"{key}={value}" for key, value in _OPTIONS]
    options += [
        "lowerdir=" + ":".join(f"/proc/self/fd/{fd}" for fd in lowers),
        f"upperdir=/proc/self/fd/{upper}",
        f"workdir=/proc/self/fd/{work}",
    ]
    data = ",".join(options)
    if len(data) >= os.sysconf("SC_PAGESIZE"):
        raise Unsupported(
            f"this kernel cannot stack {len(lowers)} layers",
            "flatten the template, or use Linux 6.13 or newer",
        )
    syscalls.mount("corral", str(target), "overlay", syscalls.MS_NODEV, data)
