"""Secrets that a command of the operator's prints, such as a password manager's."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from corral.engine.ports import OpenedSecret
from corral.errors import CorralError, HostError, InvalidInput
from corral.host.process import run
from corral.model.ids import TenantId
from corral.model.secrets import Secret

AGAIN_SECONDS = 300.0
"""After that the command is asked again."""
STALE_SECONDS = 3600.0
"""For that long the last answer is used while the command fails."""
_TIMEOUT = 30.0
_MAX_WORDS = 64


@dataclass(frozen=True, slots=True)
class _Answer:
    command: str
    value: Secret
    at: float


def parse_command(text: str) -> tuple[str, ...]:
    """The words of a command that was stored as a JSON list. Raises InvalidInput."""
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    plain = isinstance(words, list) and all(isinstance(word, str) and "\0" not in word for word in words)
    if not plain or not 0 < len(words) <= _MAX_WORDS or not words[0]:
        raise InvalidInput(
            "the command is not a list of words", 'give a JSON list, such as ["op", "read", "op://…"]'
        )
    return tuple(words)


class CommandSource:
    """`ports.SecretSource` by running a program, without a shell. Its output alone is the key.

    It runs as the daemon does, with the daemon's environment, where password managers look for their sessions.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._answers: dict[tuple[TenantId, str], _Answer] = {}

    async def present(self, secret: OpenedSecret, *, anew: bool) -> OpenedSecret:
        """See `ports.SecretSource`."""
        key = (secret.tenant, secret.name)
        command = secret.value.reveal()
        known = self._answers.get(key)
        if known is not None and known.command != command:
            known = None
        if known is None or anew or self._now() - known.at >= AGAIN_SECONDS:
            try:
                known = self._answers[key] = _Answer(command, await _ask(command), self._now())
            except CorralError:
                if known is None or anew or self._now() - known.at >= STALE_SECONDS:
                    raise
        return replace(secret, value=known.value)


async def _ask(command: str) -> Secret:
    words = parse_command(command)
    ended = await run(words, timeout=_TIMEOUT, env=dict(os.environ), output_limit=128 * 1024)
    if not ended.ok:
        why = "did not end in time" if ended.timed_out else f"ended with exit code {ended.exit_code}"
        # Its outputs stay unseen: either could hold the key.
        raise HostError(f"the command {words[0]!r} that prints this secret {why}", f"try it: {words[0]} …")
    try:
        return Secret.checked(ended.stdout.decode())
    except UnicodeDecodeError:
        raise InvalidInput(
            f"the command {words[0]!r} printed no text", "it must print the key alone"
        ) from None
