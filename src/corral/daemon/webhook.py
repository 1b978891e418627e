"""Approvals told to a URL of the operator's: signed, tried a few times, never waited for by a sandbox."""

import asyncio
import hmac
import logging
import secrets as randomness
import time
from collections.abc import Callable

import aiohttp

from corral.api import shapes
from corral.host.tasks import TaskOwner
from corral.model.approval import Approval
from corral.model.secrets import Secret
from corral.protocol.approvals import WebhookEvent

log = logging.getLogger(__name__)

ATTEMPTS = 5
FIRST_DELAY = 1.0
"""Seconds until the second attempt; each further one waits twice as long."""
TIMEOUT = 10.0
MAX_UNDER_WAY = 256
_PASSING = frozenset({408, 425, 429})


def signature(key: Secret, at: int, body: bytes) -> str:
    """The value of `Corral-Signature`: when it was signed (seconds since 1970), and the HMAC-SHA256 over that, a dot and
    the body."""
    digest = hmac.digest(key.reveal().encode(), b"%d." % at + body, "sha256").hex()
    return f"t={at},v1={digest}"


class Webhook:
    """Posts approvals to `url()`, if that is set."""

    def __init__(self, url: Callable[[], str], key: Secret, tasks: TaskOwner) -> None:
        self._url = url
        self._key = key
        self._tasks = tasks
        self._under_way = 0

    def listeners(self) -> int:
        """1 if there is a URL."""
        return 1 if self._url() else 0

    def notify(self, approval: Approval) -> None:
        """Start to tell it."""
        url = self._url()
        if not url:
            return
        if self._under_way >= MAX_UNDER_WAY:
            log.error("approval %s is not told to the webhook, which is too slow", approval.id)
            return
        body = WebhookEvent(approval=shapes.approval_info(approval)).model_dump_json().encode()
        self._tasks.start(self._deliver(url, approval.id, body), name=f"webhook-{approval.id}")

    async def _deliver(self, url: str, approval: str, body: bytes) -> None:
        self._under_way += 1
        delivery = randomness.token_hex(8)
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
                for attempt in range(ATTEMPTS):
                    if attempt:
                        await asyncio.sleep(FIRST_DELAY * 2 ** (attempt - 1))
                    if await self._post(session, url, delivery, approval, body):
                        return
            log.error("the webhook did not take approval %s in %d attempts", approval, ATTEMPTS)
        finally:
            self._under_way -= 1

    async def _post(
        self, session: aiohttp.ClientSession, url: str, delivery: str, approval: str, body: bytes
    ) -> bool:
        """Whether no further attempt is of use."""
        headers = {
            "Content-Type": "application/json",
            "Corral-Event": "approval",
            "Corral-Delivery": delivery,
            "Corral-Signature": signature(self._key, int(time.time()), body),
        }
        try:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                if response.status < 300:
                    return True
                log.warning("the webhook answered %d to approval %s", response.status, approval)
                return response.status < 500 and response.status not in _PASSING
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("the webhook cannot be reached for approval %s: %s", approval, type(error).__name__)
            return False
