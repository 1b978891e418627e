"""What all requests of the native API are made of."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from corral.protocol.base import Done
from corral.sdk.operations import Request, encode, parse

EVENTS = "text/event-stream"
Limits = Mapping[str, float]


def url(*parts: str | int, **query: str | bytes | int | Sequence[str] | None) -> str:
    """A path below /v1 with its query; what is None is left out."""
    path = "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
    wanted = given(**query)
    return f"{path}?{urlencode(wanted, doseq=True)}" if wanted else path


def get(path: str) -> Request:
    """A quick GET."""
    return Request("GET", path)


def post(path: str, body: Any = None, method: str = "POST", *, quick: bool = True) -> Request:
    """A request with a JSON body, if any. One that is not quick may take as long as it takes."""
    content = None if body is None else encode(body)
    request = Request(method, path, content, json=body is not None)
    return request if quick else Request(method, path, content, json=body is not None, timeout=None)


def done(body: bytes) -> None:
    """A decoder of answers that tell nothing but that it was done."""
    parse(Done, body)


def given(**values: Any) -> dict[str, Any]:
    """Without what is None."""
    return {key: value for key, value in values.items() if value is not None}
