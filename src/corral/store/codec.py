"""Reading what the store keeps as JSON values: what does not fit was written by another version."""

from typing import TypeVar

from corral.errors import HostError
from corral.wire import codec

T = TypeVar("T")


def decode(cls: type[T], data: object) -> T:
    """See `codec.decode`. Raises HostError for what it cannot read."""
    try:
        return codec.decode(cls, data)
    except codec.MismatchError as error:
        raise HostError(
            f"the stored data cannot be read: {error}",
            "start the version of Corral that wrote the data directory, or a newer one",
        ) from error
