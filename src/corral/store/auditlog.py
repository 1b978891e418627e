"""The audit log as a whole: its end in the database, and its older parts in files.

Records move in this order: written to a file and on the disk, then taken out of the database in the transaction that notes
where the rest begins. A crash between leaves them in both; the next move writes the file anew.
"""

import asyncio
from datetime import datetime
from pathlib import Path

from corral.errors import HostError
from corral.model.audit import AuditCheck
from corral.store import audit
from corral.store.audit import Place
from corral.store.auditparts import PartCheck, PartWriter, check_parts
from corral.store.database import Database
from corral.store.keys import Keys

PART = 50_000
"""Records of a file at most."""


class AuditChain:
    """Checks the log, and moves what is old into `directory` (None: there is no such place)."""

    def __init__(self, database: Database, keys: Keys, directory: Path | None) -> None:
        self._database = database
        self._keys = keys
        self._directory = directory
        self._moving = asyncio.Lock()

    async def verify(self) -> AuditCheck:
        """Check all of it. Other calls go on meanwhile; what they append is not checked."""
        async with self._moving:
            while True:
                begins = await self._database.run(audit.start, self._keys)
                found = await self._verify_from(begins)
                # Another daemon on this database may have moved records meanwhile.
                if begins == await self._database.run(audit.start, self._keys):
                    return found

    async def _verify_from(self, begins: Place | None) -> AuditCheck:
        if begins is None:
            return AuditCheck(0, "the note where the log begins was altered")
        parts = await self._parts(begins)
        kept = sum(one.last - one.first + 1 for one in parts)
        fault = next((one.fault for one in parts if one.fault), "")
        if fault:
            return AuditCheck(kept, fault)
        upto = await self._database.run(audit.last_sequence, self._keys)
        place = Place(begins.sequence, begins.hash)
        limit = 2**62 if upto is None else upto
        while not fault and (rows := await self._database.run(audit.batch, place.sequence, limit)):
            fault = place.fault(rows)
        if not fault and (upto is None or place.sequence != upto):
            fault = "the end of the log is missing, or it was rewritten"
        return AuditCheck(kept + place.sequence - begins.sequence, fault, begins.sequence - kept)

    async def _parts(self, begins: Place) -> list[PartCheck]:
        """The files' parts before that place; what is in the database as well counts as that alone."""
        if self._directory is None or begins.sequence == 0:
            return []
        directory = self._directory
        found = await asyncio.to_thread(lambda: list(check_parts(directory, self._keys)))
        return [one for one in found if one.fault or one.last <= begins.sequence]

    async def move(self, before: datetime) -> int:
        """Move records from before that time out of the database, but never the last one; how many. Raises HostError for a
        log that was altered, of which nothing is moved.
        """
        moved = 0
        async with self._moving:
            while self._directory is not None and (count := await self._move_part(self._directory, before)):
                moved += count
        return moved

    async def _move_part(self, directory: Path, before: datetime) -> int:
        begins = await self._database.run(audit.start, self._keys)
        if begins is None:
            raise _altered("the note where it begins is not as it was sealed")
        last = await self._database.run(audit.last_before, before)
        upto = min(last, begins.sequence + PART)
        if upto <= begins.sequence:
            return 0
        place = Place(begins.sequence, begins.hash)
        writer = await asyncio.to_thread(PartWriter, directory, begins)
        try:
            while rows := await self._database.run(audit.batch, place.sequence, upto):
                if fault := place.fault(rows):
                    raise _altered(fault)
                await asyncio.to_thread(writer.add, rows)
            if place.sequence != upto:
                raise _altered(f"record {place.sequence + 1} is missing")
            await asyncio.to_thread(writer.finish, self._keys, place)
        finally:
            await asyncio.to_thread(writer.abandon)
        await self._database.run_durable(audit.drop, self._keys, begins, place)
        return place.sequence - begins.sequence


def _altered(fault: str) -> HostError:
    return HostError(
        f"the audit log was altered: {fault}",
        "see `corral audit --verify`; nothing is moved until it is restored",
    )
