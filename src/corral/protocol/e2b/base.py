"""How E2B's shapes travel: camel case, unknown fields of requests ignored, unset fields of replies left out."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

ENVD_VERSION = "0.6.13"
"""What clients may expect of a sandbox: all of the protocol up to this version of its daemon's."""
ENVD_PORT = 49983


class Wire(BaseModel):
    """A message of either direction."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, ser_json_bytes="base64"
    )

    def to_json(self) -> bytes:
        """JSON without the fields that are not set."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()

    def to_dict(self) -> dict[str, Any]:
        """The same as a JSON value."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
