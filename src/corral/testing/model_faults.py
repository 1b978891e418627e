"""Faults that a scripted model server makes on demand."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from corral.errors import InvalidInput

FOREVER = -1


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. All zero: nothing.

    `status` answers with this HTTP error (and `retry_after`, seconds, where it is not negative); `cut_after` breaks a
    stream off after so many events. Both hit the next `times` calls (FOREVER: all). `wait` passes before the answer
    begins and `delay` before each event, in seconds, for every call.
    """

    status: int = 0
    retry_after: float = -1
    cut_after: int = -1
    times: int = FOREVER
    wait: float = 0
    delay: float = 0

    @classmethod
    def from_data(cls, data: object) -> "Faults":
        """Faults of a JSON object with some of the fields. Raises InvalidInput."""
        names = {field.name: field.type for field in fields(cls)}
        if not isinstance(data, Mapping) or not set(data) <= set(names):
            raise InvalidInput(
                "the faults are not valid", f"give a JSON object with some of {', '.join(names)}"
            )
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in data.values()):
            raise InvalidInput("a fault is not a number", "give numbers only")
        found = cls(**data)
        if found.status and not 400 <= found.status <= 599:
            raise InvalidInput(f"a fault of status {found.status} is not an error", "use 400 to 599")
        return found

    @property
    def strikes(self) -> bool:
        """Whether the next call is hit by `status` or `cut_after`."""
        return self.times != 0 and (self.status > 0 or self.cut_after >= 0)

    def spent(self) -> "Faults":
        """What is left after one call was hit."""
        return replace(self, times=self.times - 1) if self.times > 0 else self
