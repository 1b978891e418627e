"""What child processes write, kept in a file of bounded size.

A gateway writes lines that a sandbox can cause as often as it likes, such as one for each upstream that fails. So it gets a
pipe, and the file belongs to the engine, which puts it aside when it is full.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOG_BYTES = 10 * 1024 * 1024
LOGS_KEPT = 3
"""Older files beside the one that is written to."""
_LAST_WORDS = 5.0
_LONGEST_LINE = 64 * 1024


class ChildLog:
    """One file for any number of processes."""

    def __init__(self, path: Path, size: int = LOG_BYTES) -> None:
        self._file = RotatingFileHandler(path, maxBytes=size, backupCount=LOGS_KEPT, errors="replace")

    @asynccontextmanager
    async def pipe(self) -> AsyncIterator[int]:
        """A descriptor for a child to write to. Leaving waits a moment for what it has written."""
        loop = asyncio.get_running_loop()
        theirs, ours = os.pipe()
        reader = asyncio.StreamReader(_LONGEST_LINE)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(theirs, "rb", 0)
        )
        copying = loop.create_task(self._copy(reader), name="child log")
        try:
            yield ours
        finally:
            os.close(ours)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await asyncio.shield(copying)
            copying.cancel()
            transport.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    async def _copy(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                continue  # a line that is longer than any of ours
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\n")
            self._file.emit(logging.makeLogRecord({"msg": text}))
