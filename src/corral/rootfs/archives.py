"""The port `Archives`: uploaded contexts, kept for a day, and layers made from what they hold.

```
DATA/contexts/TENANT/ID/   archive.tar (plain) and index (a line per entry); TENANT and ID are hashes
DATA/contexts/TENANT/new-…/  one that is being read
DATA/contexts/plan-…/      what one copy takes, while it is under way
```

An archive is known by the digest of its plain form, to the tenant that uploaded it alone.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from corral.engine.ports import ArchiveInfo, Placing
from corral.errors import InvalidInput, NotFound
from corral.host.threads import in_thread
from corral.model.ids import LayerDigest, TenantId
from corral.policy.copying import Item, Placed
from corral.rootfs import archive_index, copyin, packing
from corral.rootfs.archive_index import read_index
from corral.rootfs.programs import run_program
from corral.rootfs.store import RootStore
from corral.rootfs.uploads import receive

MAX_UPLOAD = 8 << 30
MAX_PLAIN = 32 << 30
MAX_ENTRIES = 300_000
MAX_NAMES = 64 << 20
MAX_ADDED = 8 << 30
MAX_ADDED_ENTRIES = 1_000_000
"""Of all archives that one copy unpacks, together."""
KEPT_SECONDS = 24 * 3600.0
_PLAN, _NEW = "plan-", "new-"
"""How the directory of a copy's plan begins, which lies beside the tenants' ones, and that of an archive that is being read."""
_ID = re.compile(r"[0-9a-f]{64}")


class ArchiveStore:
    """Implements `corral.engine.ports.Archives` in the data directory of a daemon, over a store that is open."""

    def __init__(self, store: RootStore, data_dir: Path) -> None:
        self._store = store
        self._root = data_dir / "contexts"

    async def save(self, tenant: TenantId, data: AsyncIterator[bytes]) -> ArchiveInfo:
        """Keep an archive for a day."""
        with self._fresh(tenant) as folder:
            source = Path(folder) / "upload"
            await receive(source, data, MAX_UPLOAD)
            return await self._index(tenant, Path(folder), source)

    async def pack(
        self, tenant: TenantId, layers: Sequence[LayerDigest], sources: Sequence[str]
    ) -> ArchiveInfo:
        """Files of layers as an archive."""
        base = await asyncio.to_thread(self._store.ids_of, layers)
        with self._fresh(tenant) as folder:
            source = Path(folder) / "upload"
            async with in_thread(self._store.staging()) as upper:
                request = packing.Request(
                    sources=list(sources),
                    tar=str(source),
                    lowers=[str(self._store.layer_path(layer)) for layer in layers],
                    upper=str(upper),
                    mount=str(_beside(upper)),
                    uid_base=base,
                    max_entries=MAX_ENTRIES,
                    max_bytes=MAX_PLAIN,
                )
                await run_program("packing", request)
            return await self._index(tenant, Path(folder), source)

    async def items(self, tenant: TenantId, archive: str) -> Mapping[str, Item]:
        """What an archive holds, by path."""
        folder = self._folder(tenant, archive)
        found = await asyncio.to_thread(_read_items, folder / "index")
        if found is None:
            raise NotFound("the build's context is not there any more", "upload it again")
        return found

    async def has(self, tenant: TenantId, archive: str) -> bool:
        """Whether an archive is there; it is then kept for another day."""
        folder = self._folder(tenant, archive)
        try:
            os.utime(folder)
        except FileNotFoundError:
            return False
        return True

    async def place(
        self,
        tenant: TenantId,
        archive: str,
        placed: Sequence[Placed],
        below: Sequence[LayerDigest],
        placing: Placing,
    ) -> LayerDigest | None:
        """A layer of files of an archive."""
        base = await asyncio.to_thread(self._store.ids_of, below)
        async with in_thread(self._store.staging()) as upper:
            await asyncio.to_thread(os.chown, upper, base, base)
            with tempfile.TemporaryDirectory(prefix=_PLAN, dir=self._made_root()) as folder:
                plan = Path(folder) / "plan"
                tar = self._folder(tenant, archive) / "archive.tar" if archive else plan
                await asyncio.to_thread(_write_plan, plan, placed)
                request = copyin.Request(
                    tar=str(tar),
                    plan=str(plan),
                    lowers=[str(self._store.layer_path(layer)) for layer in below],
                    upper=str(upper),
                    mount=str(_beside(upper)),
                    uid_base=base,
                    directories=[[item.path, item.owner] for item in placing.directories],
                    target=placing.target,
                    directory=placing.directory,
                    owner=placing.owner,
                    mode=placing.mode,
                    unpack=placing.unpack,
                    max_entries=MAX_ADDED_ENTRIES,
                    max_bytes=MAX_ADDED,
                )
                outcome = await run_program("copyin", request)
            if not outcome["changed"]:
                return None
            _clear_beside(upper)
            return await asyncio.to_thread(self._store.add_layer, upper, below, base)

    async def tidy(self) -> None:
        """Remove archives that were not used for a day, and what a daemon that was killed has left. Nothing may be under way."""
        await asyncio.to_thread(_remove_unfinished, self._root)
        await asyncio.to_thread(_remove_old, self._root)

    # -- parts

    def _made_root(self) -> Path:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._root

    def _fresh(self, tenant: TenantId) -> "tempfile.TemporaryDirectory[str]":
        place = self._made_root() / _tenant(tenant)
        place.mkdir(mode=0o700, exist_ok=True)
        _remove_old(self._root)
        return tempfile.TemporaryDirectory(prefix=_NEW, dir=place)

    def _folder(self, tenant: TenantId, archive: str) -> Path:
        if not _ID.fullmatch(archive):
            raise InvalidInput(
                f"{archive[:80]!r} is not an uploaded context", "upload it, and give the id of the answer"
            )
        return self._root / _tenant(tenant) / archive

    async def _index(self, tenant: TenantId, folder: Path, source: Path) -> ArchiveInfo:
        whole = folder / "whole"
        whole.mkdir(mode=0o700)
        request = archive_index.Request(
            source=str(source),
            tar=str(whole / "archive.tar"),
            index=str(whole / "index"),
            max_entries=MAX_ENTRIES,
            max_bytes=MAX_PLAIN,
            max_names=MAX_NAMES,
        )
        outcome = archive_index.Indexed(**await run_program("archive_index", request))
        final = self._folder(tenant, outcome.digest)
        if final.is_dir():
            os.utime(final)
        else:
            try:
                whole.rename(final)
            except OSError:
                if not final.is_dir():
                    raise
        return ArchiveInfo(outcome.digest, outcome.entries, outcome.size, outcome.skipped)


def _tenant(tenant: TenantId) -> str:
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def _beside(upper: Path) -> Path:
    """Where the program mounts the tree, and the work directory that an overlay needs."""
    (upper.parent / "work").mkdir(exist_ok=True)
    mount = upper.parent / "mount"
    mount.mkdir(exist_ok=True)
    return mount


def _clear_beside(upper: Path) -> None:
    shutil.rmtree(upper.parent / "work")
    (upper.parent / "mount").rmdir()


def _write_plan(path: Path, placed: Sequence[Placed]) -> None:
    with open(path, "w", encoding="ascii") as lines:
        for one in placed:
            lines.write(json.dumps({**asdict(one.item), "path": one.place}) + "\n")


def _read_items(path: Path) -> dict[str, Item] | None:
    try:
        return {item.path: item for item in read_index(str(path))}
    except FileNotFoundError:
        return None


def _remove_old(root: Path) -> None:
    limit = time.time() - KEPT_SECONDS
    for folder in root.glob("*/*"):
        try:
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            continue


def _remove_unfinished(root: Path) -> None:
    for folder in (*root.glob(f"*/{_NEW}*"), *root.glob(f"{_PLAN}*")):
        shutil.rmtree(folder, ignore_errors=True)
