"""Who may send requests to a port of a sandbox, and what of them the sandbox does not get to see.

The ports of a sandbox that was made here are for those who hold the port's own token: by a header, by a cookie, or once by
the address (`corral url` prints it), which sets the cookie. The ports of a sandbox that was made by E2B's API are open to
those who know its id, as E2B's are, or need the token that its creation answered. Neither token opens anything else, and no
credential of Corral's is ever forwarded (rule G-303).
"""

import hmac
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from corral.engine.engine import Engine
from corral.model.sandbox import Sandbox

HEADER = "corral-port-token"
COOKIE = "corral-port-token"
PARAMETER = "corral-port-token"
TRAFFIC_HEADER = "e2b-traffic-access-token"
NETWORK_NOTE, ALIAS_NOTE = "e2b.network", "e2b.alias"
MAX_COOKIES = 16 * 1024
_OWN_HEADERS = frozenset(
    {
        HEADER.encode(),
        TRAFFIC_HEADER.encode(),
        b"x-api-key",
        b"x-access-token",
        b"e2b-sandbox-id",
        b"e2b-sandbox-port",
    }
)
_KEY = re.compile(rb"(?i)bearer\s+e2b_[0-9a-f]{40}\s*")
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Denied(Exception):
    """A request that may not pass."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Enter(Exception):
    """A request whose address holds the right token: to be sent again to `location`, with a cookie."""

    location: str
    token: str


async def check(engine: Engine, sandbox: Sandbox, port: int, headers: Headers, query: str, path: str) -> None:
    """Return for a request that may pass. Raises Denied, or Enter."""
    if ALIAS_NOTE in sandbox.spec.attributes:
        await _check_shared(engine, sandbox, headers)
        return
    token = (await engine.port_token(sandbox.id, port)).reveal()
    given = [*_values(headers, HEADER.encode()), *cookies(headers, COOKIE)]
    if any(_same(token, item) for item in given):
        return
    if any(_same(token, value) for name, value in _pairs(query) if name == PARAMETER):
        raise Enter(without_token(path, query), token)
    raise Denied(401, "this port is not public: open it by the address that `corral url NAME PORT` prints")


async def _check_shared(engine: Engine, sandbox: Sandbox, headers: Headers) -> None:
    if is_public(sandbox):
        return
    token = (await engine.port_token(sandbox.id, None)).reveal()
    given = _values(headers, TRAFFIC_HEADER.encode())
    told = f"Token header '{TRAFFIC_HEADER}' is missing"
    if given:
        if _same(token, given[0]):
            return
        told = f"Provided token in header '{TRAFFIC_HEADER}' is invalid"
    raise Denied(403, f"Sandbox is secured with traffic access token. {told}")


def is_public(sandbox: Sandbox) -> bool:
    """Whether a sandbox of E2B's API was made so that everybody may reach its ports."""
    noted = json.loads(sandbox.spec.attributes.get(NETWORK_NOTE, "{}"))
    return noted.get("allowPublicTraffic") is not False


def forwarded(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers (lower-case names) without those that are Corral's own, or could be its credentials."""
    kept: Headers = []
    for name, value in headers:
        if name in _OWN_HEADERS or (name == b"authorization" and _KEY.fullmatch(value)):
            continue
        if name == b"cookie":
            value = _other_cookies(value)
            if not value:
                continue
        kept.append((name, value))
    return kept


def without_token(path: str, query: str) -> str:
    """The same address on this host without the token. It never leads to another host."""
    rest = urlencode([(name, value) for name, value in _pairs(query) if name != PARAMETER])
    return "/" + path.lstrip("/\\") + (f"?{rest}" if rest else "")


def cookies(headers: Headers, name: str) -> list[str]:
    """Values of a cookie."""
    found = []
    for text in _values(headers, b"cookie"):
        if len(text) > MAX_COOKIES:
            continue
        jar: SimpleCookie = SimpleCookie()
        try:
            jar.load(text)
        except CookieError:
            continue
        if name in jar:
            found.append(jar[name].value)
    return found


def _other_cookies(value: bytes) -> bytes:
    parts = [part.strip() for part in value.split(b";")]
    return b"; ".join(part for part in parts if part and part.partition(b"=")[0].strip() != COOKIE.encode())


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def _pairs(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=1000, errors="surrogateescape")
    except ValueError:
        return []


def _same(token: str, given: str) -> bool:
    return hmac.compare_digest(token.encode(), given.encode("utf-8", "surrogateescape"))
