"""Login files of subscriptions, as agents in sandboxes find them: placeholders, for which the gateway has the login."""

import contextlib
import json

from corral.agents.placeholders import REFRESH, claude_credentials, codex_auth
from corral.agents.preset import HOME, HomeFile
from corral.engine.ports import GuestFiles
from corral.engine.tars import once
from corral.errors import Conflict, NotFound
from corral.model.secrets import SecretForm

_IN_THE_WAY = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY")
"""Claude Code looks at these before its login file (G-166)."""

_MAX_FILE = 64 * 1024


def login_file(agent: str, form: SecretForm, token: str) -> HomeFile | None:
    """The file that an agent wants for a secret of this form; None where it wants none."""
    match agent, form:
        case "claude", SecretForm.CLAUDE:
            return HomeFile(f"{HOME}/.claude/.credentials.json", claude_credentials(token))
        case "codex", SecretForm.CHATGPT:
            return HomeFile(f"{HOME}/.codex/auth.json", codex_auth())
        case _:
            return None


async def write_login(files: GuestFiles, file: HomeFile, user: str) -> None:
    """Write a login file into a sandbox. Raises Conflict where a login is that is none of these: to replace it would lose
    it, and there it is a secret in a sandbox (G-171).
    """
    found = b""
    with contextlib.suppress(NotFound):
        found = b"".join([chunk async for chunk in files.read(file.path, 0, _MAX_FILE)])
    if holds_login(found):
        raise Conflict(
            f"the sandbox holds a login of its own in {file.path}, which no sandbox should",
            "remove it there, and from the template that it may have come with; logins are kept on the host: docs/models.md",
        )
    await files.write(file.path, once(file.content.encode()), user, file.mode)


def holds_login(text: bytes) -> bool:
    """Whether a login file of an agent's holds anything but placeholders. What cannot be read counts as that."""
    if not text.strip():
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return True
    if not isinstance(document, dict):
        return True
    if document.get("OPENAI_API_KEY"):
        return True
    tokens = document.get("claudeAiOauth") or document.get("tokens")
    if not isinstance(tokens, dict):
        return bool(tokens)
    refresh = tokens.get("refreshToken") or tokens.get("refresh_token")
    return bool(tokens) and not str(refresh).endswith(REFRESH)


def without_keys(agent: str, form: SecretForm, env: dict[str, str]) -> dict[str, str]:
    """The environment of an agent that goes by its login file."""
    if (agent, form) != ("claude", SecretForm.CLAUDE):
        return env
    return {name: value for name, value in env.items() if name not in _IN_THE_WAY}
