"""A create that is sent twice makes one sandbox.

The key of a request, and a digest of its body, are noted in the sandbox that it makes: what is known of a key lasts as long
as the sandbox, and survives a restart.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from corral.api.e2b.calls import Call
from corral.api.e2b.failures import Refusal
from corral.model.ids import TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox
from corral.protocol.e2b.sandboxes import NewSandbox

_KEY, _BODY = "e2b.key", "e2b.key-body"
_FORM = re.compile(r"[a-z0-9-]{1,255}")


def key_of(call: Call) -> str | None:
    """The request's key. Raises Refusal."""
    key = call.request.headers.get("idempotency-key")
    if key is not None and not _FORM.fullmatch(key):
        raise Refusal(400, "validation error: Idempotency-Key has 1 to 255 of a-z, 0-9 and -")
    return key


def note(key: str | None, body: NewSandbox) -> dict[str, str]:
    """What is noted in the new sandbox."""
    if key is None:
        return {}
    return {_KEY: key, _BODY: hashlib.sha256(body.to_json()).hexdigest()}


def without_key(attributes: Mapping[str, str]) -> dict[str, str]:
    """What a copy of a sandbox inherits of its notes."""
    return {key: value for key, value in attributes.items() if key not in (_KEY, _BODY)}


class Keys:
    """Keys of requests under way, before their sandboxes are there to tell."""

    def __init__(self) -> None:
        self._held: set[tuple[TenantId, str]] = set()

    @contextmanager
    def holding(self, tenant: TenantId, key: str | None) -> Iterator[None]:
        """Around a create. Raises Refusal while another one with the same key is under way."""
        if key is None:
            yield
            return
        if (tenant, key) in self._held:
            raise Refusal(409, "the request of this Idempotency-Key is under way", "idempotency_in_progress")
        self._held.add((tenant, key))
        try:
            yield
        finally:
            self._held.discard((tenant, key))


async def former(call: Call, noted: dict[str, str]) -> Sandbox | None:
    """The sandbox that was made by an earlier request with the same key. Raises Refusal."""
    if not noted:
        return None
    for sandbox in call.engine.sandboxes.list(call.tenant):
        ended = sandbox.state in (State.FAILED, State.REMOVING)
        if ended or sandbox.spec.attributes.get(_KEY) != noted[_KEY]:
            continue
        if sandbox.spec.attributes.get(_BODY) != noted[_BODY]:
            raise Refusal(
                409, "the Idempotency-Key was used with another request", "idempotency_request_mismatch"
            )
        if sandbox.state is State.CREATING:
            raise Refusal(409, "the request of this Idempotency-Key is under way", "idempotency_in_progress")
        return sandbox
    return None
