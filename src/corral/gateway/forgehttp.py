"""One call to a forge's API, with a key that goes to its own host alone."""

import aiohttp
from aiohttp import hdrs
from yarl import URL

from corral.errors import InvalidInput, UpstreamFailed
from corral.gateway.dial import CONNECT_TIMEOUT, Dialer
from corral.gateway.redact import Forms, Redactor
from corral.wire.forges import ForgeAnswer, ForgeCall

_SECONDS = 60.0
_MOST = 100 * 1024


async def exchange(call: ForgeCall, key: str, forms: Forms, base_url: str, dialer: Dialer) -> ForgeAnswer:
    """The answer to one call. Raises CorralError. `key` goes to the host of `base_url`, which is its secret's, or GitHub's
    API for GitHub's own, and to no other; `forms` of it are taken out of the answer.
    """
    url, base = URL(call.url, encoded=True), URL(base_url)
    known = {(base.scheme, base.host, base.port)}
    if base.host == "github.com":
        known.add(("https", "api.github.com", 443))
    if (url.scheme, url.host, url.port) not in known:
        raise InvalidInput("a forge's API is at another host than its secret", "this is a defect")
    headers: dict[str, str] = {
        hdrs.AUTHORIZATION: f"Bearer {key}",
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
                call.method,
                url,
                data=call.body.encode() or None,
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
    redactor = Redactor(forms)
    clean = redactor.feed(raw) + redactor.finish()
    # Plain characters only: what is said on the link stays within its limit.
    text = clean.decode("ascii", "replace").replace("\ufffd", "?")
    return ForgeAnswer(status, "".join(c if c >= " " else " " for c in text))
