"""Saving what runs in a sandbox, and letting it go on.

The order. A runtime saves a guest's memory while its kernel runs, so the cgroup's freezer, which stops the kernel too, is
of no use here: the runtime itself makes the processes stand still (`hold`), writes their memory, and only what comes after
that lets them go on or kills them. All that must fit to the memory, the files and the output, is copied in between. A mark
next to the sandbox says that it is held, for the next daemon: it is gone once the processes go on.
"""

import asyncio
import shutil
from pathlib import Path

from corral.drivers.guest_link import RECORDS, pending
from corral.drivers.oci_places import Place
from corral.errors import Conflict, HostError, Unsupported
from corral.host.threads import in_thread
from corral.model.ids import ImageId, SandboxId
from corral.model.secrets import Secret
from corral.oci.runtime import Runtime
from corral.rootfs.machine_images import MachineImages

_HELD = "held"
_LOG = "memory.log"
_POLLS, _POLL_SECONDS = 500, 0.01


async def hold(runtime: Runtime, sandbox: SandboxId, place: Place) -> None:
    """Let its processes stand still, once PID 1 has read what it was told. Idempotent. Raises Unsupported, HostError."""
    require_memory(runtime)
    if is_held(place):
        return
    await _until_read(place)
    (place.path / _HELD).touch()
    try:
        await runtime.pause(sandbox, place.bundle / _LOG)
    except BaseException:
        (place.path / _HELD).unlink(missing_ok=True)
        raise


def is_held(place: Place) -> bool:
    """Whether its processes stand still, or were about to when a daemon ended."""
    return (place.path / _HELD).exists()


async def release(runtime: Runtime, sandbox: SandboxId, place: Place) -> None:
    """Let held processes go on. Idempotent."""
    if not is_held(place):
        return
    try:
        await runtime.resume(sandbox, place.bundle / _LOG)
    except HostError as error:
        if "cannot resume container" not in error.message:  # it had not been paused yet
            raise
    (place.path / _HELD).unlink(missing_ok=True)


def forget(place: Place) -> None:
    """Nothing of it runs any more. Idempotent."""
    (place.path / _HELD).unlink(missing_ok=True)


async def save(
    runtime: Runtime,
    sandbox: SandboxId,
    place: Place,
    images: MachineImages,
    image: ImageId,
    *,
    memory: int,
    token: Secret,
    own: bool,
) -> int:
    """Write a held sandbox's memory to an image; its size. `memory`: bytes that it uses. `own`: the image is for this
    sandbox alone, whose output stays where it is, and must outlast a power cut. Raises DiskFull, HostError.
    """
    if not is_held(place):
        raise Conflict("the sandbox's processes do not stand still")
    identity = await asyncio.to_thread(runtime.identity)
    async with in_thread(images.making(memory)) as fresh:
        await runtime.save(sandbox, fresh / "runtime", place.bundle / _LOG)
        return await asyncio.to_thread(
            _keep, images, fresh, image, identity, token, place, None if own else sandbox
        )


def _keep(
    images: MachineImages,
    fresh: Path,
    image: ImageId,
    identity: str,
    token: Secret,
    place: Place,
    spool_of: SandboxId | None,
) -> int:
    shutil.copytree(place.path / RECORDS, fresh / "processes", dirs_exist_ok=True)
    return images.keep(
        fresh,
        image,
        runtime=identity,
        token=token.reveal().encode(),
        spool_of=spool_of,
        safe=spool_of is None,
    )


def check_readable(runtime: Runtime, images: MachineImages, image: ImageId) -> None:
    """Blocks. Raises Conflict for an image that another version of the runtime saved, NotFound."""
    saved = images.record(image).runtime
    if saved != runtime.identity():
        raise Conflict(
            f"the memory was saved by another version of {runtime.traits.name}",
            "start from the files alone: stop it and start it; for a template, make it anew",
        )


def require_memory(runtime: Runtime) -> None:
    """Raise Unsupported for a runtime that cannot save memory."""
    if not runtime.traits.saves_memory:
        raise Unsupported(
            f"the runtime {runtime.traits.name} cannot save memory",
            "make the sandbox with `--isolation gvisor`, or leave --memory out: its files are kept in any case",
        )


async def _until_read(place: Place) -> None:
    """What is in the FIFO to PID 1 would be lost."""
    for _ in range(_POLLS):
        if not pending(place.path):
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise HostError("the sandbox's first process does not read what it is told", "stop and start the sandbox")
