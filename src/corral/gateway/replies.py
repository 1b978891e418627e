"""Answers that the gateway gives itself: refusals that an agent can read and act on, and pages of its own."""

import json
from collections.abc import Mapping

from aiohttp import ClientResponse, web
from multidict import CIMultiDict

from corral.gateway.exchange import request_id
from corral.model.secrets import Provider
from corral.policy.egress import GATEWAY_HOST, Denied
from corral.wire.usage import Api

DECISION = "X-Corral-Decision"
REQUEST = "X-Corral-Request"
_OWN = {"Server": "corral"}
_SEE = f"http://{GATEWAY_HOST}/policy lists what is allowed"

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_OPENAI_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}


def _refused(reason: str) -> dict[str, str]:
    """The fields of a refusal: that it is the gateway's own, and what it is called in the audit log."""
    return {**_OWN, DECISION: f"denied; reason={reason}", **({REQUEST: own} if (own := request_id()) else {})}


def denial(refusal: Denied, *, status: int, accept: str, method: str = "", path: str = "") -> web.Response:
    """A refused request, as JSON, or as text for a client that prefers that (G-311, G-314)."""
    body = {
        "error": "denied by the sandbox's gateway",
        "reason": refusal.message,
        "rule": refusal.reason.value,
        "host": refusal.host,
        "port": refusal.port,
        "method": method,
        "path": path,
        "request_id": request_id(),
        "how_to_allow": refusal.how_to_allow,
        "see": _SEE,
    }
    headers = _refused(refusal.reason.value)
    if accept.startswith(("text/plain", "text/html")):
        text = (
            f"Denied by the sandbox's gateway: {refusal.message}.\n"
            f"What to do: {refusal.how_to_allow}.\n{_SEE}. Request {request_id()}.\n"
        )
        return closing(web.Response(status=status, text=text, headers=headers))
    return closing(
        web.Response(status=status, body=_json(body), headers=headers, content_type="application/json")
    )


def plain(status: int, text: str, reason: str = "") -> web.Response:
    """A short text; `reason` marks it as a refusal of the gateway."""
    headers = _refused(reason) if reason else _OWN
    return web.Response(status=status, text=text.rstrip("\n") + "\n", headers=headers)


def page(value: Mapping[str, object]) -> web.Response:
    """A JSON page of the gateway's own."""
    return web.Response(body=_json(value), headers=_OWN, content_type="application/json")


def model_error(
    provider: Provider, status: int, message: str, hint: str, *, reason: str, retry_after: int | None = None
) -> web.Response:
    """A refusal in the shape of a provider's own errors, so that SDKs show the text (G-184, G-189).

    Without `retry_after` it is final, and says so to SDKs, which would otherwise retry some statuses by
    themselves.
    """
    headers = _refused(reason)
    if retry_after is None:
        headers["x-should-retry"] = "false"
    else:
        headers["Retry-After"] = str(retry_after)
        if status == 402:
            # SDKs take this status for final unless they are told.
            headers["x-should-retry"] = "true"
    body = _error_body(provider, status, _text(message, hint), reason)
    return web.Response(status=status, body=_json(body), headers=headers, content_type="application/json")


def error_event(api: Api, message: str, hint: str, *, reason: str) -> bytes:
    """The end of a stream that is cut, as an event of the API's own kind (G-214). It begins with an empty line, so that
    it is an event of its own wherever the stream was.
    """
    text = _text(message, hint)
    if api is Api.ANTHROPIC_MESSAGES:
        name, body = "event: error\n", _error_body(Provider.ANTHROPIC, 402, text, reason)
    elif api is Api.OPENAI_RESPONSES:
        name, body = "event: error\n", {"type": "error", "code": reason, "message": text, "param": None}
    else:
        provider = Provider.GEMINI if api is Api.GEMINI else Provider.OPENAI
        name, body = "", _error_body(provider, 402, text, reason)
    return f"\n\n{name}data: {json.dumps(body)}\n\n".encode()


_GEMINI_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def _text(message: str, hint: str) -> str:
    return f"Corral gateway: {message}. {hint[:1].upper()}{hint[1:]}."


def _error_body(provider: Provider, status: int, text: str, reason: str) -> dict[str, object]:
    if provider is Provider.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": text}}
    if provider is Provider.GEMINI:
        known = _GEMINI_STATUS.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
        return {"error": {"code": status, "message": text, "status": known}}
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": text, "type": kind, "param": None, "code": reason}}


def closing(response: web.Response) -> web.Response:
    """The same, ending the connection: what is left of the request is not read."""
    response.force_close()
    return response


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


class Relayed(web.StreamResponse):
    """An upstream's answer with its own header fields and no others (G-97). Its reason phrase, which nobody reads, is the
    standard's: a server could write a secret there (G-137).

    `at_once` sends them before the body has begun, as streams need; otherwise they leave together, which is
    cheaper.
    """

    def __init__(self, upstream: ClientResponse, headers: CIMultiDict[str], *, at_once: bool = True) -> None:
        super().__init__(status=upstream.status, headers=headers)
        self._send_headers_immediately = at_once

    async def _prepare_headers(self) -> None:
        """aiohttp adds these three to every answer; there is no other place to keep it from that."""
        absent = [name for name in ("Date", "Server", "Content-Type") if name not in self.headers]
        await super()._prepare_headers()
        for name in absent:
            self.headers.popall(name, None)
