"""From whatever went wrong to the error body that clients of the E2B API read."""

from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from corral.api.failures import public_error
from corral.errors import CorralError, NoCapacity

_PERMANENT = {429, 502, 503, 504}


class Refusal(Exception):
    """An answer with an error status, `message` as clients know it."""

    def __init__(self, status: int, message: str, error_code: str | None = None, **extra: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"code": status, "message": message, **extra}
        if error_code is not None:
            self.body["error_code"] = error_code


def not_there(sandbox: str) -> Refusal:
    """An unknown sandbox, or another tenant's."""
    return Refusal(404, f"Sandbox \"{sandbox}\" doesn't exist or you don't have access to it")


def not_running(sandbox: str) -> Refusal:
    """Traffic for a sandbox that does not run."""
    return Refusal(502, "The sandbox was not found", sandboxId=sandbox)


def not_supported(what: str, hint: str = "") -> Refusal:
    """A part of the E2B API that Corral does not have."""
    return Refusal(501, f"{what} is not supported by Corral{f': {hint}' if hint else ''}")


def response_of(error: Exception) -> Response:
    """The response to an error. What is not public is logged and told without detail."""
    if isinstance(error, ValidationError):
        error = Refusal(400, f"validation error: {_problems(error)}")
    if not isinstance(error, Refusal):
        error = _refusal(public_error(error))
    # Clients try again after these unless told that it is no use.
    headers = {"should-retry": "false"} if error.status in _PERMANENT else None
    return JSONResponse(
        error.body, error.status, headers=headers, media_type="application/json; charset=utf-8"
    )


def _refusal(error: CorralError) -> Refusal:
    status = {408: 504, 413: 400}.get(error.status, error.status)
    if isinstance(error, NoCapacity) and error.of_tenant:
        status = 429  # clients tell a limit of their own from a host that is full
    return Refusal(status, f"{error.message} ({error.hint})")


def _problems(error: ValidationError) -> str:
    told = [f"{'.'.join(map(str, item['loc']))[:80]}: {item['msg'][:200]}" for item in error.errors()[:5]]
    return "; ".join(told)
