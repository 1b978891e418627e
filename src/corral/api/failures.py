"""From whatever went wrong to the API's one error body: the only such boundary."""

import logging
from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corral.errors import (
    Conflict,
    CorralError,
    Forbidden,
    InternalError,
    InvalidInput,
    NotFound,
    TooLarge,
    Unauthenticated,
)
from corral.protocol.base import Error

log = logging.getLogger(__name__)

_BY_STATUS: dict[int, tuple[type[CorralError], str, str | None]] = {
    401: (Unauthenticated, "no valid API key was given", None),
    403: (Forbidden, "this is not allowed", None),
    404: (NotFound, "there is no such path in the API", "see /openapi.json for what there is"),
    405: (InvalidInput, "the path does not know this method", "see /openapi.json for what there is"),
    409: (Conflict, "the request conflicts with the present state", None),
    413: (TooLarge, "the request body is too large", "send less, or stream it as a file"),
}


def public_error(error: BaseException) -> CorralError:
    """The public error for any exception. What is not public is logged here and told as a defect without detail."""
    if isinstance(error, CorralError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error.errors())
    if isinstance(error, HTTPException):
        return error_of_status(error.status_code)
    log.error("unexpected failure while serving the API", exc_info=error)
    return InternalError("the daemon failed in an unexpected way")


def error_of_status(status: int) -> CorralError:
    """The public error for an error of the framework's, of which only the status is taken."""
    if status >= 500:
        return InternalError("the daemon failed in an unexpected way")
    cls, message, hint = _BY_STATUS.get(status, (InvalidInput, "the request is not valid", None))
    return cls(message, hint)


def error_response(error: CorralError) -> Response:
    """The JSON response of an error."""
    headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None
    return JSONResponse(error.to_dict(), status_code=error.status, headers=headers)


async def handle(_: Request, error: Exception) -> Response:
    """FastAPI's exception handler for everything."""
    return error_response(public_error(error))


def _invalid(problems: Sequence[Any]) -> InvalidInput:
    """The first few problems of a request, by field; the values themselves are not repeated: they may be secrets."""
    told = []
    for problem in problems[:5]:
        place = ".".join(str(part)[:80] for part in problem["loc"][1:])
        what = "is not a field of this request" if problem["type"] == "extra_forbidden" else problem["msg"]
        told.append(f"{place or 'body'}: {what[:200]}")
    more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
    return InvalidInput("; ".join(told) + more, "correct these fields; /openapi.json describes them")


def documented(*classes: type[CorralError]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of the errors that every route can answer with, and of these."""
    general: tuple[type[CorralError], ...] = (
        InvalidInput,
        Unauthenticated,
        Forbidden,
        NotFound,
        Conflict,
        TooLarge,
        InternalError,
    )
    found: dict[int | str, dict[str, Any]] = {}
    for cls in [*general, *classes]:
        text = (cls.__doc__ or cls.code).strip().splitlines()[0]
        former = found.get(cls.status)
        found[cls.status] = {
            "model": Error,
            "description": f"{former['description']} {text}" if former else text,
        }
    return found
