"""Tokens of GitHub Apps: one for each repository and purpose, had when first needed, kept in memory until near their end.

The App's key opens all that the App is installed on; what goes to git servers opens one repository, for an hour.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from corral.errors import CorralError
from corral.gateway.dial import Dialer
from corral.gateway.forgehttp import exchange
from corral.gateway.redact import Forms
from corral.gateway.vault import Credential
from corral.model.ids import TenantId
from corral.wire import githubapp
from corral.wire.forges import ForgeAnswer, ForgeCall
from corral.wire.githubapp import App, Need

_LEFT = timedelta(minutes=5)
"""A token with less time than this is not used any more."""
_AGAIN_SECONDS = 30.0
"""A refusal is not asked for again before: a sandbox cannot use up what the forge allows the App in an hour."""
_MOST = 4096


@dataclass(frozen=True, slots=True)
class Token:
    """A token, until when it is good, and what to look for so that it does not come back."""

    value: str = field(repr=False)
    expires_at: datetime
    forms: Forms = field(repr=False)
    had_at: float


@dataclass(slots=True)
class _Kept:
    """One repository's for one purpose. The lock makes many who want it at once ask once."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    token: Token | None = None
    refusal: CorralError | None = None
    refused_at: float = 0.0


_Key = tuple[TenantId, str, str, str, Need]


class AppTokens:
    """All tokens of all Apps."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()

    def forget(self, valid: Container[tuple[TenantId, str, str]]) -> None:
        """Drop what is of no App that is there now: `valid` holds tenant, name and value of secrets."""
        for key in [key for key in self._kept if key[:3] not in valid]:
            del self._kept[key]

    async def token(self, credential: Credential, path: str, need: Need) -> Token:
        """The token for the repository at `path`. Raises CorralError where there is none."""
        spec = credential.spec
        key = (spec.tenant, spec.name, spec.value.reveal(), path.lower(), need)
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        async with kept.lock:
            now, at = datetime.now(UTC), asyncio.get_running_loop().time()
            if kept.token is not None and now < kept.token.expires_at - _LEFT:
                return kept.token
            if kept.refusal is not None and at < kept.refused_at + _AGAIN_SECONDS:
                raise type(kept.refusal)(kept.refusal.message, kept.refusal.hint)
            try:
                kept.token, kept.refusal = await self._minted(credential, path, need, now), None
            except CorralError as error:
                kept.token, kept.refusal, kept.refused_at = None, error, at
                raise
            return kept.token

    def refused(self, token: Token) -> None:
        """A server does not take a token any more, as when the App was installed anew: the next one who wants it gets
        another. One that is new is kept, so that no sandbox has tokens made as fast as it asks.
        """
        if asyncio.get_running_loop().time() >= token.had_at + _AGAIN_SECONDS:
            for kept in self._kept.values():
                if kept.token is token:
                    kept.token = None

    async def _minted(self, credential: Credential, path: str, need: Need, now: datetime) -> Token:
        spec = credential.spec
        statement = App.parse(spec.value.reveal()).statement(now)
        forms = Forms(statement, spec.name)

        async def ask(call: ForgeCall) -> ForgeAnswer:
            return await exchange(call, statement, forms, spec.base_url, self._dialer)

        found = githubapp.installation(await ask(githubapp.find_installation(spec.base_url, path)), path)
        made = githubapp.minted(await ask(githubapp.mint(spec.base_url, found, path, need)), path)
        forms = Forms(made.token, spec.name)
        return Token(made.token, made.expires_at, forms, asyncio.get_running_loop().time())
