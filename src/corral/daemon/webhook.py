"""Approvals and warnings of budgets told to a URL of the operator's: signed, tried a few times, never waited for by a
sandbox.
"""

import asyncio
import hmac
import logging
import secrets as randomness
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from corral.api import shapes
from corral.host.tasks import TaskOwner
from corral.model.approval import Approval
from corral.model.events import BudgetEvent
from corral.model.secrets import Secret
from corral.protocol.approvals import BudgetWebhookEvent, WebhookEvent

if TYPE_CHECKING:
    import aiohttp

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
    """Posts approvals and warnings to `url()`, if that is set."""

    def __init__(self, url: Callable[[], str], key: Secret, tasks: TaskOwner) -> None:
        self._url = url
        self._key = key
        self._tasks = tasks
        self._under_way = 0

    def listeners(self) -> int:
        """1 if there is a URL."""
        return 1 if self._url() else 0

    def notify(self, approval: Approval) -> None:
        """Start to tell an approval."""
        self._start(f"approval {approval.id}", WebhookEvent(approval=shapes.approval_info(approval)))

    def warn(self, event: BudgetEvent) -> None:
        """Start to tell that much of a budget is spent."""
        warning = shapes.budget_warning(event)
        self._start(
            f"{warning.percent} % of the budget of {warning.name}", BudgetWebhookEvent(budget=warning)
        )

    def _start(self, what: str, told: WebhookEvent | BudgetWebhookEvent) -> None:
        url = self._url()
        if not url:
            return
        if self._under_way >= MAX_UNDER_WAY:
            log.error("%s is not told to the webhook, which is too slow", what)
            return
        body = told.model_dump_json().encode()
        self._tasks.start(self._deliver(url, what, told.event, body), name="webhook")

    async def _deliver(self, url: str, what: str, kind: str, body: bytes) -> None:
        import aiohttp  # where no webhook is set, it is 8 MiB for nothing

        self._under_way += 1
        delivery = randomness.token_hex(8)
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
                for attempt in range(ATTEMPTS):
                    if attempt:
                        await asyncio.sleep(FIRST_DELAY * 2 ** (attempt - 1))
                    if await self._post(session, url, delivery, what, kind, body):
                        return
            log.error("the webhook did not take %s in %d attempts", what, ATTEMPTS)
        finally:
            self._under_way -= 1

    async def _post(
        self, session: "aiohttp.ClientSession", url: str, delivery: str, what: str, kind: str, body: bytes
    ) -> bool:
        """Whether no further attempt is of use."""
        import aiohttp

        headers = {
            "Content-Type": "application/json",
            "Corral-Event": kind,
            "Corral-Delivery": delivery,
            "Corral-Signature": signature(self._key, int(time.time()), body),
        }
        try:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                if response.status < 300:
                    return True
                log.warning("the webhook answered %d to %s", response.status, what)
                return response.status < 500 and response.status not in _PASSING
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("the webhook cannot be reached for %s: %s", what, type(error).__name__)
            return False
