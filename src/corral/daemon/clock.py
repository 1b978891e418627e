"""The real clock."""

from datetime import UTC, datetime


class SystemClock:
    """Time of the host."""

    def now(self) -> datetime:
        """Aware, UTC."""
        return datetime.now(UTC)
