"""Whose request it is: the unix socket's permissions, or an API key."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from corral.api.guard import over_unix_socket
from corral.engine.ports import Store
from corral.errors import Unauthenticated
from corral.model.ids import DEFAULT_TENANT
from corral.model.secrets import Identity

MAX_KEY = 256


def authenticator(store: Store) -> Callable[[Request], Awaitable[Identity]]:
    """A function that names a request's sender. Over the unix socket, which only root can open, that is
    the default tenant; over TCP a valid API key is required, whatever the request says of itself."""

    async def authenticate(request: Request) -> Identity:
        if over_unix_socket(request.scope):
            return Identity(DEFAULT_TENANT)
        key = _key(request)
        if not 0 < len(key) <= MAX_KEY:
            raise Unauthenticated("this API needs a key")
        identity = await store.identity_of_key(key)
        if identity is None:
            raise Unauthenticated("the API key is not valid", "make one on the host: `corral key create`")
        return identity

    return authenticate


def _key(request: Request) -> str:
    """The API key of `X-API-Key`, as E2B's clients send it, or of a bearer's authorization."""
    if key := request.headers.get("x-api-key", ""):
        return key
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key if scheme.lower() == "bearer" else ""
