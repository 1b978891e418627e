"""Requests to AWS: a sandbox signs with a key that says nothing, the gateway signs again with the real one (block J)."""

import hashlib
from collections.abc import AsyncIterator, Sequence

from multidict import CIMultiDict

from corral.errors import Forbidden
from corral.gateway.buffered import Buffered
from corral.gateway.inject import Bound, signs
from corral.wire import sigv4

MAX_HASHED = 16 * 1024 * 1024
"""Bytes of a body that is gathered, since its hash must be known before it is sent."""

Data = bytes | AsyncIterator[bytes] | None


def signer(bound: Sequence[Bound], target: str, headers: CIMultiDict[str]) -> Bound | None:
    """The secret by whose placeholder a request is signed. Raises Forbidden for a form that cannot be signed again."""
    authorization = headers.get("Authorization", "")
    for one in bound:
        if not signs(one, target, authorization):
            continue
        why = sigv4.refusal_of_form(target, authorization, headers.get(sigv4.CONTENT_HASH, ""))
        if why is not None:
            raise Forbidden(why, "sign the request in its header, with the hash of its body")
        return one
    return None


async def sign(
    one: Bound, method: str, target: str, host: str, headers: CIMultiDict[str], data: Data, buffered: Buffered
) -> Data:
    """The body, with `headers` signed for it by the real key. Raises Forbidden, TooManyBytesError."""
    if len(headers.getall("Authorization", [])) != 1:
        raise Forbidden("the request is signed more than once", "sign it once")
    found = sigv4.parse(headers["Authorization"])
    if found.key_id != one.pairs[0][0]:
        raise Forbidden("the request is signed with another key", "use the key of this sandbox's environment")
    sigv4.check_destination(found, host)
    declared = sigv4.payload_hash(headers.get(sigv4.CONTENT_HASH, ""))
    first, rest = await _beginning(data, buffered)
    if sigv4.gives_credentials(found.service, target, list(headers.items()), first):
        raise Forbidden("this call's answer would hold credentials", "have it made on the host")
    if rest is not None and declared is None:
        raise Forbidden(
            f"a body over {MAX_HASHED} bytes without its hash cannot be signed", f"send {sigv4.CONTENT_HASH}"
        )
    if rest is None and declared != sigv4.UNSIGNED:
        actual = hashlib.sha256(first).hexdigest()
        if declared not in (None, actual):
            raise Forbidden("the body has another hash than the one declared", "send what was signed")
        declared = actual
    fields = sigv4.resign(method, target, list(headers.items()), found, _key(one), declared or sigv4.UNSIGNED)
    headers.clear()
    headers.extend(fields)
    if rest is None:
        return None if data is None else first
    return _checked(first, rest, declared or sigv4.UNSIGNED)


def _key(one: Bound) -> sigv4.Key:
    parts = [secret.reveal() for _, secret in one.pairs]
    return sigv4.Key(*parts)


async def _beginning(data: Data, buffered: Buffered) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """A body's first bytes, and the rest of one that is larger than what is gathered."""
    if data is None or isinstance(data, bytes):
        return data or b"", None
    parts = bytearray()
    async for piece in data:
        buffered.add(len(piece))
        parts += piece
        if len(parts) > MAX_HASHED:
            return bytes(parts), data
    return bytes(parts), None


async def _checked(first: bytes, rest: AsyncIterator[bytes], declared: str) -> AsyncIterator[bytes]:
    """The body as it comes, its last piece only once its hash is known to be the declared one (G-152)."""
    digest = hashlib.sha256(first)
    waiting = first
    async for piece in rest:
        yield waiting
        digest.update(piece)
        waiting = piece
    if declared not in (sigv4.UNSIGNED, digest.hexdigest()):
        raise Forbidden("the body has another hash than the one declared", "send what was signed")
    yield waiting
