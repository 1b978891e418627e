"""What all shapes of the native API share: strictness, limits, and how bytes, times and paths travel as JSON."""

import base64
import binascii
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from corral.errors import InvalidInput
from corral.model.ids import (
    NAME_PATTERN,
    TEMPLATE_PATTERN,
    check_env,
    check_guest_path,
    check_labels,
    check_name,
    check_template_name,
    check_user,
)

MAX_JSON_BODY = 1024 * 1024
"""Bytes of a JSON request body, where a route does not say otherwise."""
MAX_REF = 63
MAX_TEXT = 4096
MAX_PROMPT = 128 * 1024


class Request(BaseModel):
    """A request body. Unknown fields are refused: an option that is not understood is never dropped in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# `defer_build`: a client loads many shapes, and is told two or three.
class Reply(BaseModel):
    """A response body. Clients ignore fields that they do not know, so that an older client talks to a newer daemon."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


def _decode(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(
            "a binary value is not valid base64", "use the standard alphabet with padding"
        ) from None


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise InvalidInput("a text holds a NUL character", "remove it")
    return value


Data = Annotated[
    bytes,
    BeforeValidator(_decode),
    PlainSerializer(_encode, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""Bytes; base64 (standard alphabet, padded) in JSON."""

Time = AwareDatetime
"""An instant; ISO 8601 with offset in JSON, always UTC in replies."""

Name = Annotated[
    str,
    AfterValidator(check_name),
    WithJsonSchema({"type": "string", "maxLength": 63, "pattern": f"^{NAME_PATTERN}$"}),
]
TemplateName = Annotated[
    str,
    AfterValidator(check_template_name),
    WithJsonSchema({"type": "string", "maxLength": 127, "pattern": f"^{TEMPLATE_PATTERN}$"}),
]
"""A name, and a tag if any after a colon."""
User = Annotated[
    str, AfterValidator(check_user), Field(description="Login name, uid or uid:gid in the sandbox.")
]
GuestPath = Annotated[
    str, AfterValidator(check_guest_path), Field(description="Absolute path in the sandbox.")
]
Env = Annotated[dict[str, str], AfterValidator(check_env)]
Labels = Annotated[dict[str, str], AfterValidator(check_labels)]
Text = Annotated[str, AfterValidator(_no_nul), Field(max_length=MAX_TEXT)]
Ref = Annotated[str, Field(min_length=1, max_length=MAX_REF, description="A name or an id.")]


class Error(Reply):
    """Every error of the API: `code` is stable, `message` says what happened, `hint` what to do next."""

    code: str = Field(description="Stable; one of the codes in the documentation.", examples=["not_found"])
    message: str = Field(examples=["there is no sandbox 'brave-otter'"])
    hint: str = Field(examples=["list what exists: `corral ls`"])


class Done(Reply):
    """The request was carried out; there is nothing to tell beyond that."""

    ok: bool = True


class ProgressLine(Reply):
    """One line of what long work is doing now (event `progress`)."""

    message: str
