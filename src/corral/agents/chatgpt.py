"""A ChatGPT login that belongs to this host: kept, renewed, and shown to sandboxes only as placeholders.

The login's document is Codex's `auth.json`. Its access token is good for some days; with the refresh token another pair
is had, after which the former refresh token is dead. So whoever renews must be alone: one renewal at a time for each
login, the new tokens in the store before they are used, and no login that a Codex of the host goes on using.
"""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from corral.engine.ports import OpenedSecret
from corral.errors import Conflict, CorralError, InvalidInput, UpstreamFailed
from corral.model.ids import TenantId
from corral.model.secrets import Secret

_log = logging.getLogger(__name__)

TOKEN_URL = "https://auth.openai.com/oauth/token"  # noqa: S105 (an address)
CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"
RENEW_AHEAD = timedelta(minutes=30)
_CLAIMS = "https://api.openai.com/auth"
_DEAD = frozenset(
    {
        "invalid_grant",
        "refresh_token_expired",
        "refresh_token_reused",
        "refresh_token_invalidated",
        "token_expired",
    }
)
_TIMEOUT = 30.0
_MAX_ANSWER = 256 * 1024
_AGAIN = (
    "log in again for this host alone: `CODEX_HOME=/root/corral-login codex login`, "
    "then `corral secret add NAME --login codex --from-file /root/corral-login/auth.json`"
)


@dataclass(frozen=True, slots=True)
class Login:
    """What of the document is used. Times are those that the access token says."""

    access: str
    refresh: str
    id: str
    account: str
    issued_at: datetime
    expires_at: datetime

    def document(self) -> str:
        """The login as it is kept: one line of JSON."""
        tokens = {
            "id_token": self.id,
            "access_token": self.access,
            "refresh_token": self.refresh,
            "account_id": self.account,
        }
        return json.dumps({"tokens": tokens}, separators=(",", ":"))


def parse_login(text: str) -> Login:
    """The login in Codex's `auth.json`. Raises InvalidInput for a document without one."""
    try:
        tokens = json.loads(text)["tokens"]
        access, refresh, id = (tokens[name] for name in ("access_token", "refresh_token", "id_token"))
        account = tokens.get("account_id") or _claims(id)[_CLAIMS]["chatgpt_account_id"]
        found = [access, refresh, id, account]
        if not all(
            isinstance(item, str) and item and item.isascii() and item.isprintable() for item in found
        ):
            raise ValueError
        claims = _claims(access)
        return Login(access, refresh, id, account, _time(claims.get("iat", 0)), _time(claims["exp"]))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        raise InvalidInput("this is no ChatGPT login", "give the auth.json that `codex login` made") from None


def _claims(token: str) -> Mapping[str, Any]:
    payload = token.split(".")[1]
    try:
        value = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except binascii.Error:
        raise ValueError from None
    if not isinstance(value, dict):
        raise ValueError
    return value


def _time(seconds: Any) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


class ChatGptSource:
    """`ports.SecretSource` for logins. `save` puts a renewed one into the store before it is used."""

    def __init__(
        self,
        current: Callable[[TenantId, str], Awaitable[OpenedSecret | None]],
        save: Callable[[OpenedSecret], Awaitable[None]],
        now: Callable[[], datetime],
        token_url: str = TOKEN_URL,
    ) -> None:
        self._current = current
        self._save = save
        self._now = now
        self._token_url = token_url
        self._locks: dict[tuple[TenantId, str], asyncio.Lock] = {}
        self._dead: set[int] = set()

    async def present(self, secret: OpenedSecret, *, anew: bool) -> OpenedSecret:
        """See `ports.SecretSource`. A login that is not in the store yet is looked at, and not renewed."""
        login = parse_login(secret.value.reveal())
        due = self._now() >= login.expires_at - RENEW_AHEAD
        if anew or due:
            login = await self._renewed(secret, login, anew=anew)
        return replace(secret, value=Secret(login.access), account=login.account)

    async def _renewed(self, secret: OpenedSecret, login: Login, *, anew: bool) -> Login:
        """The login with new tokens; as it is where they cannot be had and it is still good (G-163, G-164)."""
        async with self._locks.setdefault((secret.tenant, secret.name), asyncio.Lock()):
            kept = await self._current(secret.tenant, secret.name)
            newest = (
                parse_login(kept.value.reveal()) if kept is not None and kept.form is secret.form else None
            )
            if newest is None or newest.issued_at < login.issued_at:
                return self._unless_over(login, "it is over")
            if anew and newest.issued_at > login.issued_at:
                raise Conflict("this login is older than the one that is kept", _AGAIN)
            if newest.refresh != login.refresh and self._now() < newest.expires_at - RENEW_AHEAD:
                return newest
            if hash(newest.refresh) in self._dead:
                return self._unless_over(newest, "its refresh token was refused")
            try:
                renewed = await self._ask(newest)
            except CorralError as error:
                _log.warning("the login of secret %s was not renewed: %s", secret.name, error.message)
                if anew:
                    raise
                return self._unless_over(newest, error.message)
            await self._save(replace(secret, value=Secret(renewed.document()), account=""))
            return renewed

    def _unless_over(self, login: Login, why: str) -> Login:
        if self._now() >= login.expires_at:
            raise UpstreamFailed(f"the ChatGPT login cannot be used: {why}", _AGAIN)
        return login

    async def _ask(self, login: Login) -> Login:
        """New tokens from the provider. Raises Conflict where the refresh token is dead, UpstreamFailed otherwise."""
        import aiohttp  # most hosts keep no such login

        form = {"client_id": CLIENT_ID, "grant_type": "refresh_token", "refresh_token": login.refresh}
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=_TIMEOUT), trust_env=True
                ) as session,
                session.post(self._token_url, json=form, allow_redirects=False) as answer,
            ):
                body = await answer.content.read(_MAX_ANSWER)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UpstreamFailed(
                f"the provider cannot be reached ({type(error).__name__})", "try again later"
            ) from None
        if answer.status != 200:
            if _error_of(body) in _DEAD or answer.status == 401:
                self._dead.add(hash(login.refresh))
                raise Conflict("its refresh token was refused", _AGAIN)
            raise UpstreamFailed(f"the provider answered {answer.status}", "try again later")
        return _merged(login, body)


def _merged(login: Login, body: bytes) -> Login:
    """The login with what the answer renews; an answer without a usable token changes nothing."""
    try:
        given = json.loads(body)
        tokens = {
            "access_token": given["access_token"],
            "refresh_token": given.get("refresh_token") or login.refresh,
            "id_token": given.get("id_token") or login.id,
            "account_id": login.account,
        }
        return parse_login(json.dumps({"tokens": tokens}))
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput):
        raise UpstreamFailed("the provider's answer holds no tokens", "try again later") from None


def _error_of(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type")) if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
