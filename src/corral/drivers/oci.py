"""The `oci` driver: an OCI runtime, an overlay root and a pair of network namespaces make a sandbox.

Nothing is believed that the kernel can be asked. A sandbox runs if the process that its runtime noted lives
and is in the sandbox's own cgroup. All state is files: records below the data directory; pins, pid files and
FIFOs below the run directory. So a new daemon takes everything up by looking, and after a reboot, which
empties the run directory, sandboxes are simply stopped.

Freezing is done by the cgroup for every runtime, gVisor's included: its kernel and its guests stand still
together.
"""

import asyncio
import contextlib
import functools
import json
import logging
import os
import shutil
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from corral.drivers import oci_memory
from corral.drivers.execfiles import ExecGuestFiles
from corral.drivers.files import HostGuestFiles
from corral.drivers.guest_link import IN_FIFO, OUT_FIFO, RECORDS, FifoLink, clear_spool, make_fifos
from corral.drivers.oci_exec import run_inside
from corral.drivers.oci_host import UsableRuntimes, host_facts, probe_runtimes
from corral.drivers.oci_places import Place, Record, Records
from corral.drivers.oci_process import ended, first_process, kill_first_process, open_first_process, pid_of
from corral.drivers.oci_start import kill_all, start_over, starting
from corral.drivers.relays import Relays
from corral.engine.environment import GATEWAY_CERTIFICATE, TRUST
from corral.engine.ports import DriverStatus, EntryKind, GuestFiles, GuestLink, Listener, Saved
from corral.engine.tars import once
from corral.errors import Conflict, HostError, NotFound, Unsupported
from corral.host import mounts, namespaces
from corral.host.capacity import network_bytes
from corral.host.cgroups import Cgroup, Layout, detect
from corral.host.programs import find_program
from corral.host.threads import in_thread
from corral.host.unfinished import Unfinished
from corral.model.ids import ImageId, LayerDigest, SandboxId, TenantId, is_id
from corral.model.leak import Leak
from corral.model.sandbox import Isolation, SandboxSpec, Stats
from corral.model.secrets import Secret
from corral.model.template import Template
from corral.model.volume import VolumeMount
from corral.network.networks import Networks
from corral.network.pair import GATEWAY_ADDRESS
from corral.oci.bundle import BundlePaths, HostFacts, bundle_config, guest_files
from corral.oci.runtime import Runtime, read_pid
from corral.rootfs.machine_images import MachineImages
from corral.rootfs.overlay import mount_root, unmount_root
from corral.rootfs.scan import Scanner
from corral.rootfs.store import RootStore
from corral.rootfs.trusted import fits, trusted_layer
from corral.rootfs.volumes import VolumeDirectories
from corral.wire import guest

_log = logging.getLogger(__name__)

# Beyond its grace PID 1 kills what is left, and needs a moment to see it gone.
_SHUTDOWN_EXTRA = 1.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_FILE_THREADS = 8
# What connections hold, where it is counted apart from the memory limit, may take an eighth of that.
_OF_MEMORY_FOR_SOCKETS = 8


class OciDriver:
    """`ports.Driver`. Call `open` before anything else. `uid_base` gives the first host id of a tenant's
    range, `unlimited_disk` whether sandboxes may run on a store without quotas; `ca_bundle` is the file that
    sandboxes trust.
    """

    name = "oci"

    def __init__(
        self,
        *,
        data_dir: Path,
        run_dir: Path,
        instance: str,
        store: RootStore,
        networks: Networks,
        uid_base: Callable[[TenantId], int],
        ca_bundle: Path,
        ask: Path,
        unlimited_disk: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run_dir = run_dir
        self._store = store
        self._networks = networks
        self._relays = Relays(networks)
        self._uid_base = uid_base
        self._ca_bundle = ca_bundle
        self._ask = ask
        self._unlimited_disk = unlimited_disk
        self._cgroup_root = f"/corral-{instance}"
        self._records = Records(data_dir / "sandboxes")
        self._unfinished = Unfinished(run_dir / "unfinished")
        self._images = MachineImages(store)
        self._volumes = VolumeDirectories(store)
        self._runtimes = UsableRuntimes()
        self._opened: tuple[Layout, HostFacts, asyncio.AbstractEventLoop] | None = None
        self._mounting = asyncio.Lock()
        # Layers never change.
        self._takes_trusted = functools.lru_cache(maxsize=1024)(self._layers_take_trusted)
        self._files: dict[SandboxId, HostGuestFiles] = {}
        self._file_threads = ThreadPoolExecutor(_FILE_THREADS, thread_name_prefix="files")

    async def open(self) -> None:
        """Look at the host and try its runtimes. Raises Unsupported where there are no cgroups."""
        layout = await asyncio.to_thread(detect)
        facts = await asyncio.to_thread(host_facts, layout)
        self._opened = layout, facts, asyncio.get_running_loop()
        self._unfinished.make()
        self._runtimes = await probe_runtimes(self._run_dir, self._cgroup_root, layout)
        for name, problem in self._runtimes.problems.items():
            _log.info("runtime %s is not usable: %s", name, problem)

    def close(self) -> None:
        """Let go of the threads. Sandboxes go on."""
        self._file_threads.shutdown(wait=False, cancel_futures=True)

    @property
    def problems(self) -> dict[str, str]:
        """Why runtimes are not usable, by name."""
        return dict(self._runtimes.problems)

    def runtimes(self) -> dict[Isolation, tuple[str, ...]]:
        """As Driver says."""
        return self._runtimes.by_isolation()

    # -- making and starting
    # ------------------------------------------------------------------------------------------

    async def prepare(self, spec: SandboxSpec, template: Template) -> None:
        """As Driver says."""
        if not (self._store.quota or self._unlimited_disk()):
            raise Unsupported(
                f"this store cannot limit a sandbox's disk: {self._store.reason}",
                "see `corral doctor`; to run without disk limits: `corral config set store.unlimited true`",
            )
        runtime = self._runtime(spec.runtime)
        record = Record(spec.runtime, self._uid_base(spec.tenant), template.layers, spec.volumes)
        await asyncio.to_thread(self._begin, spec, record)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._networks.create(spec.id, sysfs=not runtime.traits.own_kernel))
                group.create_task(self._prepare_root(spec, record))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    def _begin(self, spec: SandboxSpec, record: Record) -> None:
        """The record comes first: whatever is made after it is found by it."""
        self._records.save(spec.id, record)
        self._place(spec.id).make()
        self._write_guest_files(spec)

    def _write_guest_files(self, spec: SandboxSpec, *names: str) -> None:
        """All, or those named. In place: a running sandbox has these very files bound into it."""
        etc = self._place(spec.id).etc
        contents = guest_files(spec.id, spec.name, str(GATEWAY_ADDRESS))
        for name in names or contents:
            (etc / name).write_text(contents[name])
            (etc / name).chmod(0o644)

    async def _prepare_root(self, spec: SandboxSpec, record: Record) -> None:
        await asyncio.to_thread(
            self._store.create_sandbox, spec.id, spec.limits.disk, record.uid_base, record.layers
        )
        await self._mount_root(spec.id, record)

    async def _mount_root(self, sandbox: SandboxId, record: Record) -> None:
        """Idempotent."""
        place = self._place(sandbox)
        if not mounts.is_mounted(place.root):
            layers = await asyncio.to_thread(self._trees, record.layers)
            folder = self._store.sandbox_dir(sandbox)
            await mount_root(layers, folder, place.root, record.uid_base, self._volumes_of(record))

    def _volumes_of(self, record: Record) -> tuple[tuple[Path, VolumeMount], ...]:
        return tuple((self._volumes.path(mount.id), mount) for mount in record.volumes)

    def _trees(self, layers: tuple[LayerDigest, ...]) -> list[Path]:
        """What a root is made of, lowest first."""
        trees = [self._store.layer_path(layer) for layer in layers]
        if self._takes_trusted(layers):
            gateway = self._ca_bundle.with_name(GATEWAY_CERTIFICATE).read_text()
            inside = f"{TRUST}/{GATEWAY_CERTIFICATE}"
            trees.append(trusted_layer(self._store.trusted, self._ca_bundle.read_bytes(), gateway, inside))
        return trees

    def _layers_take_trusted(self, layers: tuple[LayerDigest, ...]) -> bool:
        return fits([self._store.layer_path(layer) for layer in layers])

    async def listen(self, spec: SandboxSpec, only: Set[int] | None = None) -> tuple[Listener, ...]:
        """As Driver says."""
        if only is not None:
            return await self._networks.open_ports(spec.id, only)
        return await self._networks.listen(spec.id, spec.egress.ports)

    async def probe(self, spec: SandboxSpec, served: Set[int]) -> None:
        """As Driver says."""
        await self._networks.probe(spec.id, served)

    async def start(self, spec: SandboxSpec, template: Template, saved: Saved | None = None) -> None:
        """As Driver says."""
        runtime = self._runtime(spec.runtime)
        place = self._place(spec.id)
        await asyncio.to_thread(self._lay_out, spec, template, runtime, saved)
        if saved is None and runtime.traits.own_kernel:
            await self._keep_tmp(spec)
        try:
            async with self._opened_image(saved) as image:
                with _fifos(place.path) as (stdin, stdout), starting(place) as hold:
                    await runtime.start(
                        spec.id,
                        place.bundle,
                        stdin,
                        stdout,
                        suid=template.config.sudo,
                        hold=hold,
                        image=image,
                    )
            if saved is None and not runtime.traits.own_kernel:
                await asyncio.to_thread(self._give_boot_id, spec.id)
            self._cgroup(spec.id).limit_connections(spec.limits.memory // _OF_MEMORY_FOR_SOCKETS)
        except BaseException:
            await asyncio.shield(self._clear_processes(spec.id))
            raise

    def _give_boot_id(self, sandbox: SandboxId) -> None:
        """Another one for each start, as a machine has for each boot; a kernel's own is made by itself. No runtime mounts
        there."""
        file = self._place(sandbox).etc / "boot-id"
        file.write_text(f"{uuid.uuid4()}\n")
        file.chmod(0o644)
        with self._first_process(sandbox) as pidfd:
            if pidfd is None:
                raise _not_running()
            try:
                namespaces.bind_inside(pidfd, file, _BOOT_ID)
            except OSError as error:
                raise HostError(f"the sandbox cannot be given a boot id: {error}") from error

    async def _keep_tmp(self, spec: SandboxSpec) -> None:
        """runsc mounts a file system of its own over an empty /tmp, which neither the files API nor a checkpoint would see, and
        which ends with each stop. So /tmp is not empty: it has what it has on many machines."""
        files = self.files(spec)
        with contextlib.suppress(NotFound, Conflict):  # an image without it, or with something else there
            if (await files.stat("/tmp")).kind is EntryKind.DIRECTORY:  # noqa: S108 - the sandbox's
                await files.make_dir("/tmp/.X11-unix", "0:0", 0o755)  # noqa: S108

    @contextlib.asynccontextmanager
    async def _opened_image(self, saved: Saved | None) -> AsyncIterator[Path | None]:
        if saved is None:
            yield None
            return
        async with in_thread(self._images.opened(saved.image, saved.token.reveal().encode())) as path:
            yield path

    def _lay_out(self, spec: SandboxSpec, template: Template, runtime: Runtime, saved: Saved | None) -> None:
        """The files that a start needs."""
        place = self._place(spec.id)
        if saved is not None:
            oci_memory.check_readable(runtime, self._images, saved.image)
            self._images.unpack(saved.image, spec.id, place.path / RECORDS)
        self._write_bundle(spec, template, runtime)
        if saved is None:  # else the guest has files there open
            clear_spool(self._spool(spec.id), place.path)

    def _write_bundle(self, spec: SandboxSpec, template: Template, runtime: Runtime) -> None:
        place = self._place(spec.id)
        make_fifos(place.path)
        paths = BundlePaths(
            root=place.root,
            netns=self._networks.sandbox_netns(spec.id),
            sysfs=None if runtime.traits.own_kernel else self._networks.sysfs(spec.id),
            init=find_program("corral-init"),
            ask=self._ask,
            spool=self._spool(spec.id),
            ca_bundle=self._ca_bundle,
            bound_bundle=not self._takes_trusted(template.layers),
            resolv_conf=place.etc / "resolv.conf",
            hosts=place.etc / "hosts",
            hostname=place.etc / "hostname",
            machine_id=place.etc / "machine-id",
            # On the root that a runtime with its own kernel believes to own alone, it would not see what others change.
            volumes=self._volumes_of(self._records.get(spec.id)) if runtime.traits.own_kernel else (),
        )
        config = bundle_config(
            spec,
            template.config,
            paths,
            self._host[1],
            uid_base=self._records.get(spec.id).uid_base,
            cgroup=self._cgroup_name(spec.id),
            seccomp=not runtime.traits.own_kernel,
        )
        (place.bundle / "config.json").write_text(json.dumps(config))

    # -- looking
    # ------------------------------------------------------------------------------------------------------

    async def status(self, sandbox: SandboxId) -> DriverStatus:
        """As Driver says."""
        await start_over(self._place(sandbox))
        with self._first_process(sandbox) as pidfd:
            if pidfd is not None:
                frozen = self._cgroup(sandbox).is_frozen() or oci_memory.is_held(self._place(sandbox))
                return DriverStatus.PAUSED if frozen else DriverStatus.RUNNING
        return DriverStatus.STOPPED if sandbox in await self.known() else DriverStatus.ABSENT

    async def wait(self, sandbox: SandboxId) -> str:
        """As Driver says."""
        with self._first_process(sandbox) as pidfd:
            if pidfd is not None:
                await ended(pidfd)
        try:
            return "oom" if self._cgroup(sandbox).oom_kills() else ""
        except FileNotFoundError:
            return ""

    async def known(self) -> set[SandboxId]:
        """As Driver says."""
        return await asyncio.to_thread(self._known) | await self._networks.known()

    def _known(self) -> set[SandboxId]:
        names: set[str] = set()
        groups = self._host[0].group(self._cgroup_root).directories
        for folder in (self._run_dir / "sandboxes", *groups):
            with contextlib.suppress(FileNotFoundError):
                names.update(entry.name for entry in folder.iterdir())
        found = {SandboxId(name) for name in names if is_id(name)}
        return found | self._records.known() | self._store.sandboxes()

    async def stats(self, sandbox: SandboxId) -> Stats:
        """As Driver says."""
        disk = await asyncio.to_thread(self._store.usage, sandbox)
        try:
            usage = self._cgroup(sandbox).usage()
        except FileNotFoundError:
            return Stats(disk=disk)
        return Stats(
            memory=usage.memory,
            memory_peak=usage.memory_peak,
            cpu_usec=usage.cpu_usec,
            pids=usage.pids,
            disk=disk,
            oom_kills=usage.oom_kills,
            file_cache=usage.file_cache,
        )

    async def written(self, sandboxes: Sequence[SandboxId]) -> dict[SandboxId, int]:
        """As Driver says."""
        return await asyncio.to_thread(self._written, sandboxes)

    def _written(self, sandboxes: Sequence[SandboxId]) -> dict[SandboxId, int]:
        self._store.settle()  # quotas count what a transaction has brought to the disk, which may be half a minute later
        found = {}
        for sandbox in sandboxes:
            with contextlib.suppress(NotFound, OSError):
                found[sandbox] = self._store.usage(sandbox) + self._cgroup(sandbox).unwritten()
        return found

    async def leave_free(self, size: int) -> None:
        """As Driver says."""
        await asyncio.to_thread(self._store.leave_free, size)

    def vitals(self, sandbox: SandboxId) -> tuple[int, int]:
        """As Driver says."""
        return self._cgroup(sandbox).cpu_usec(), network_bytes(read_pid(self._place(sandbox).pid))

    def oom_kills(self, sandbox: SandboxId) -> int:
        """As Driver says."""
        try:
            return self._cgroup(sandbox).oom_kills()
        except OSError:
            return 0

    async def guest(self, sandbox: SandboxId) -> GuestLink:
        """As Driver says."""
        pidfd = open_first_process(self._place(sandbox).pid, self._cgroup_name(sandbox))
        if pidfd is None:
            raise _not_running()
        try:
            return FifoLink(self._place(sandbox).path, self._spool(sandbox), pidfd)
        except OSError as error:
            raise HostError(f"the sandbox's first process cannot be reached: {error}") from error

    async def rename(self, spec: SandboxSpec) -> None:
        """As Driver says."""
        with self._first_process(spec.id) as pidfd:
            if pidfd is None:
                raise _not_running()
            await asyncio.to_thread(self._rename, spec, pidfd)

    def _rename(self, spec: SandboxSpec, pidfd: int) -> None:
        self._write_guest_files(spec, "hostname", "hosts")
        if not self._runtime(spec.runtime).traits.own_kernel:
            namespaces.set_hostname(pidfd, spec.name)
        elif not _tell(self._place(spec.id), guest.hostname(spec.name)):
            raise HostError("the sandbox's first process does not take its new name")

    async def announce(self, spec: SandboxSpec, files: Mapping[str, bytes]) -> None:
        """As Driver says."""
        self._require_running(spec.id)
        own_kernel = self._runtime(spec.runtime).traits.own_kernel
        for path, content in files.items():
            if not own_kernel:
                await self.files(spec).write(path, once(content), "0:0", 0o644)
            elif not _tell(self._place(spec.id), guest.announce(path, content)):
                raise HostError("the sandbox's first process does not take what it is told")

    async def dial(self, spec: SandboxSpec, port: int) -> socket.socket | None:
        """As Driver says."""
        runtime = self._runtime(spec.runtime)
        if runtime.traits.own_kernel:
            return await self._relays.connect(spec.id, port, run_inside(runtime, spec.id))
        return await self._networks.connect(spec.id, port, inside=True)

    # -- pausing and ending
    # -------------------------------------------------------------------------------------------

    async def pause(self, sandbox: SandboxId) -> None:
        """As Driver says."""
        self._require_running(sandbox)
        runtime = self._runtime_of(sandbox)
        if runtime.traits.own_kernel:
            # The freezer would interrupt what such a kernel does for its processes half-way, and some of them would be killed.
            await oci_memory.hold(runtime, sandbox, self._place(sandbox))
        else:
            await self._cgroup(sandbox).freeze()

    async def resume(self, sandbox: SandboxId) -> None:
        """As Driver says."""
        self._require_running(sandbox)
        self._cgroup(sandbox).thaw()
        await self._release(sandbox)

    async def _release(self, sandbox: SandboxId) -> None:
        if oci_memory.is_held(place := self._place(sandbox)):
            await oci_memory.release(self._runtime_of(sandbox), sandbox, place)

    async def hold(self, sandbox: SandboxId) -> None:
        """As Driver says."""
        self._require_running(sandbox)
        runtime = self._runtime_of(sandbox)
        oci_memory.require_memory(runtime)
        self._cgroup(sandbox).thaw()
        await oci_memory.hold(runtime, sandbox, self._place(sandbox))

    async def save(self, sandbox: SandboxId, image: ImageId, token: Secret, *, own: bool) -> int:
        """As Driver says."""
        return await oci_memory.save(
            self._runtime_of(sandbox),
            sandbox,
            self._place(sandbox),
            self._images,
            image,
            memory=self._cgroup(sandbox).usage().memory,
            token=token,
            own=own,
        )

    async def scan(
        self,
        layer: LayerDigest,
        image: ImageId | None,
        needles: Mapping[bytes, str],
        tokens: Mapping[bytes, str],
        *,
        redact: bool,
    ) -> list[Leak]:
        """As Driver says."""
        return await asyncio.to_thread(self._scan, layer, image, needles, tokens, redact=redact)

    def _scan(
        self,
        layer: LayerDigest,
        image: ImageId | None,
        needles: Mapping[bytes, str],
        tokens: Mapping[bytes, str],
        *,
        redact: bool,
    ) -> list[Leak]:
        found: list[Leak] = []
        if image is not None and tokens:
            self._images.scan(image, Scanner(tokens), overwrite=True)
        if image is not None and needles:
            found += self._images.scan(image, Scanner(needles), overwrite=redact)
        if needles or tokens:
            found += self._store.scan_layer(layer, Scanner({**tokens, **needles}), overwrite=redact)
        return found

    def saves_memory(self, runtime: str) -> bool:
        """As Driver says."""
        found = self._runtimes.get(runtime)
        return found is not None and found.traits.saves_memory

    async def images(self) -> set[ImageId]:
        """As Driver says."""
        return await asyncio.to_thread(self._images.known)

    async def remove_image(self, image: ImageId) -> None:
        """As Driver says."""
        await asyncio.to_thread(self._images.remove, image)

    async def stop(self, sandbox: SandboxId, grace: float) -> None:
        """As Driver says."""
        with self._first_process(sandbox) as pidfd:
            if pidfd is not None:
                await self._end(sandbox, pidfd, grace)
        await self._clear_processes(sandbox)
        await unmount_root(self._place(sandbox).root)
        await self._networks.remove(sandbox)

    async def _end(self, sandbox: SandboxId, pidfd: int, grace: float) -> None:
        self._cgroup(sandbox).thaw()  # a frozen process hears nothing, not even KILL
        if grace > 0:
            with contextlib.suppress(HostError):  # it is killed, then
                await self._release(sandbox)
        asked = grace > 0 and _tell(self._place(sandbox), guest.shutdown(grace))
        if not (asked and await ended(pidfd, grace + _SHUTDOWN_EXTRA)):
            await kill_first_process(pidfd)

    async def _clear_processes(self, sandbox: SandboxId) -> None:
        """Nothing of it runs afterwards, and no runtime knows it. Idempotent."""
        group = self._cgroup(sandbox)
        await kill_all(group, self._place(sandbox))
        await group.remove()
        await asyncio.to_thread(self._forget, sandbox)

    def _forget(self, sandbox: SandboxId) -> None:
        oci_memory.forget(self._place(sandbox))
        for runtime in self._runtimes.usable:
            runtime.forget(sandbox)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._place(sandbox).bundle)

    async def remove(self, sandbox: SandboxId) -> None:
        """As Driver says."""
        await self.stop(sandbox, 0)
        self._files.pop(sandbox, None)
        self._relays.forget(sandbox)
        await asyncio.to_thread(self._remove_files, sandbox)

    def _remove_files(self, sandbox: SandboxId) -> None:
        place = self._place(sandbox)
        if left := mounts.mounts_below(place.path):
            raise HostError(f"{left[0].target} is still mounted", "unmount it, then remove the sandbox again")
        if place.path.exists():
            shutil.rmtree(place.path)
        self._store.remove_sandbox(sandbox)
        self._records.remove(sandbox)

    async def commit(self, sandbox: SandboxId) -> LayerDigest:
        """As Driver says."""
        if await self.status(sandbox) is DriverStatus.RUNNING:
            raise Conflict("the sandbox is running", "pause or stop it first")
        record = self._records.get(sandbox)
        return await asyncio.to_thread(self._store.commit, sandbox, record.uid_base)

    # -- files
    # --------------------------------------------------------------------------------------------------------

    def files(self, spec: SandboxSpec) -> GuestFiles:
        """As Driver says."""
        files = self._files.get(spec.id)
        if files is None:
            base = self._records.get(spec.id).uid_base
            files = self._host_files(spec.id, base)
            self._files[spec.id] = files
        runtime = self._runtime(spec.runtime)
        if not runtime.traits.own_kernel:
            return files
        with self._first_process(spec.id) as pidfd:
            return files if pidfd is None else ExecGuestFiles(files, run_inside(runtime, spec.id))

    def _host_files(self, sandbox: SandboxId, uid_base: int) -> HostGuestFiles:
        notes = self._unfinished.of(sandbox)
        return HostGuestFiles(lambda: self._open_root(sandbox), uid_base, self._file_threads, notes)

    async def tidy_files(self) -> None:
        """As Driver says."""
        for sandbox in map(SandboxId, self._unfinished.owners()):
            record = self._records.find(sandbox)
            own_kernel = record is not None and self._runtime(record.runtime).traits.own_kernel
            with self._first_process(sandbox) as pidfd:
                if own_kernel and pidfd is not None:
                    continue  # it would not see that; a next daemon finds it stopped
            await self._host_files(sandbox, 0).tidy()

    def _open_root(self, sandbox: SandboxId) -> int:
        """The root as the sandbox sees it, in a thread. gVisor's mounts are in its own kernel: there is only
        the root."""
        record = self._records.get(sandbox)
        with self._first_process(sandbox) as pidfd:
            if pidfd is not None and not self._runtime(record.runtime).traits.own_kernel:
                with contextlib.suppress(FileNotFoundError):  # it has just ended
                    return os.open(f"/proc/{pid_of(pidfd)}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # One that ends just now is unmounted in the middle of this.
        while (root := mounts.open_mounted(self._place(sandbox).root)) is None:
            asyncio.run_coroutine_threadsafe(self._mount_stopped(sandbox, record), self._host[2]).result()
        return root

    async def _mount_stopped(self, sandbox: SandboxId, record: Record) -> None:
        """The root of a stopped sandbox, until it is started or removed."""
        async with self._mounting:
            await asyncio.to_thread(self._place(sandbox).make)
            await self._mount_root(sandbox, record)

    # -- names
    # --------------------------------------------------------------------------------------------------------

    @property
    def _host(self) -> tuple[Layout, HostFacts, asyncio.AbstractEventLoop]:
        if self._opened is None:
            raise HostError("the driver has not been opened")
        return self._opened

    def _runtime(self, name: str) -> Runtime:
        runtime = self._runtimes.get(name)
        if runtime is None:
            problem = self._runtimes.problems.get(name, "Corral does not know it")
            raise Unsupported(f"runtime {name} is not usable on this host: {problem}", "see `corral doctor`")
        return runtime

    def _runtime_of(self, sandbox: SandboxId) -> Runtime:
        return self._runtime(self._records.get(sandbox).runtime)

    def _place(self, sandbox: SandboxId) -> Place:
        if not is_id(sandbox):
            raise HostError(f"{sandbox!r} is not a sandbox's id")
        return Place(self._run_dir / "sandboxes" / sandbox)

    def _spool(self, sandbox: SandboxId) -> Path:
        return self._store.spool_dir(sandbox)

    def _cgroup_name(self, sandbox: SandboxId) -> str:
        return f"{self._cgroup_root}/{sandbox}"

    def _cgroup(self, sandbox: SandboxId) -> Cgroup:
        return self._host[0].group(self._cgroup_name(sandbox))

    def _first_process(self, sandbox: SandboxId) -> AbstractContextManager[int | None]:
        return first_process(self._place(sandbox).pid, self._cgroup_name(sandbox))

    def _require_running(self, sandbox: SandboxId) -> None:
        with self._first_process(sandbox) as pidfd:
            if pidfd is None:
                raise _not_running()


@contextlib.contextmanager
def _fifos(place: Path) -> Iterator[tuple[int, int]]:
    """PID 1's stdin and stdout."""
    with contextlib.ExitStack() as opened:
        fds: list[int] = []
        for name in (IN_FIFO, OUT_FIFO):
            fds.append(os.open(place / name, os.O_RDWR | os.O_CLOEXEC))
            opened.callback(os.close, fds[-1])
        yield fds[0], fds[1]


def _not_running() -> Conflict:
    return Conflict("the sandbox is not running", "start it: `corral start NAME`")


def _tell(place: Place, frame: bytes) -> bool:
    """Send PID 1 a frame, beside whoever has the link; False if it cannot be told."""
    try:
        fd = os.open(place.path / IN_FIFO, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, frame)
    except OSError:  # it has not read for long
        return False
    finally:
        os.close(fd)
    return True
