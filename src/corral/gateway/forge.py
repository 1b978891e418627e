"""Calls to forges' APIs for people on the host, not for sandboxes: made here, since here are the opened secrets."""

import aiohttp
from aiohttp import hdrs
from yarl import URL

from corral.errors import InvalidInput, NotFound, UpstreamFailed
from corral.gateway.dial import CONNECT_TIMEOUT, Dialer
from corral.gateway.redact import Redactor
from corral.gateway.vault import Vault
from corral.wire import link
from corral.wire.forges import ForgeAnswer

_SECONDS = 60.0
_MOST = 100 * 1024


async def call(request: link.CallForge, vault: Vault, dialer: Dialer) -> ForgeAnswer:
    """The answer to one call. Raises CorralError. The credential goes to the secret's own host, or GitHub's API for
    GitHub's own, and to no other.
    """
    found = vault.find(request.tenant, request.secret)
    if found is None:
        raise NotFound(f"there is no secret {request.secret[:63]!r}", "list what exists: `corral secret ls`")
    url, base = URL(request.call.url, encoded=True), URL(found.spec.base_url)
    known = {(base.scheme, base.host, base.port)}
    if base.host == "github.com":
        known.add(("https", "api.github.com", 443))
    if (url.scheme, url.host, url.port) not in known:
        raise InvalidInput("a forge's API is at another host than its secret", "this is a defect")
    headers: dict[str, str] = {
        hdrs.AUTHORIZATION: f"Bearer {found.spec.value.reveal()}",
        hdrs.ACCEPT: "application/json",
        hdrs.USER_AGENT: "corral",
        hdrs.CONTENT_TYPE: "application/json",
    }
    proxy = dialer.proxies.find(url.scheme, url.host or "", url.port or 0)
    for_proxy, for_tunnel = proxy.credentials(url.scheme) if proxy is not None else ({}, {})
    timeout = aiohttp.ClientTimeout(total=_SECONDS, sock_connect=CONNECT_TIMEOUT)
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=dialer.tls),
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session,
            session.request(
                request.call.method,
                url,
                data=request.call.body.encode() or None,
                headers={**headers, **for_proxy},
                allow_redirects=False,
                proxy=proxy.url if proxy is not None else None,
                proxy_headers=for_tunnel,
            ) as answer,
        ):
            raw = await answer.content.read(_MOST)
            while len(raw) < _MOST and (more := await answer.content.read(_MOST - len(raw))):
                raw += more
            status = answer.status
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise UpstreamFailed(f"{url.host} cannot be reached: {type(error).__name__}") from None
    redactor = Redactor(found.forms, request.secret)
    clean = redactor.feed(raw) + redactor.finish()
    # Plain characters only: what is said on the link stays within its limit.
    text = clean.decode("ascii", "replace").replace("\ufffd", "?")
    return ForgeAnswer(status, "".join(c if c >= " " else " " for c in text))
