"""Where logins of subscriptions are made and renewed, and where they are used. Pure.

A sandbox that logged in would hold a credential of its own: what it spends nobody meters, and nobody takes it back. So there
it is refused, whatever the rules say, and told where logins are (G-165, G-170, G-172). Other pages of the same hosts, such
as documentation, are as the rules say.
"""

from collections.abc import Mapping
from urllib.parse import unquote

_LOGINS: Mapping[str, tuple[str, ...]] = {
    "auth.openai.com": ("/oauth/", "/api/accounts/"),
    "console.anthropic.com": ("/oauth/",),
    "platform.claude.com": ("/oauth/",),
}
_USES: Mapping[str, tuple[str, ...]] = {"chatgpt.com": ("/backend-api/",)}

WHERE = "logins are made and kept on the host, not in a sandbox"
HOW = (
    "on the host: `corral secret add codex --login codex --from-file FILE`, or `corral secret add anthropic` with what "
    "`claude setup-token` prints"
)


def has_logins(host: str) -> bool:
    """Whether agents log in at a canonical host."""
    return host in _LOGINS


def is_read(host: str) -> bool:
    """Whether requests to a canonical host are looked at for this."""
    return host in _LOGINS or host in _USES


def is_login(host: str, path: str) -> bool:
    """Whether a request would make a login, or renew one. `path` is as sent, without the query."""
    return _names(_LOGINS.get(host, ()), path)


def is_use(host: str, path: str) -> bool:
    """Whether a request is one to a model, or to an account, by a login."""
    return _names(_USES.get(host, ()), path)


def _names(places: tuple[str, ...], path: str) -> bool:
    """Whether a server that is generous in what it reads could take the path for one of these."""
    read = unquote(path, "latin-1").lower()
    return any(place in f"{read}/" for place in places)
