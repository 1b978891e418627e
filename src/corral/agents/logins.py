"""Login files of subscriptions, as agents in sandboxes find them: placeholders, for which the gateway has the login."""

from corral.agents.placeholders import claude_credentials, codex_auth
from corral.agents.preset import HOME, HomeFile
from corral.model.secrets import SecretForm

_IN_THE_WAY = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY")
"""Claude Code looks at these before its login file (G-166)."""


def login_file(agent: str, form: SecretForm, token: str) -> HomeFile | None:
    """The file that an agent wants for a secret of this form; None where it wants none."""
    match agent, form:
        case "claude", SecretForm.CLAUDE:
            return HomeFile(f"{HOME}/.claude/.credentials.json", claude_credentials(token))
        case "codex", SecretForm.CHATGPT:
            return HomeFile(f"{HOME}/.codex/auth.json", codex_auth())
        case _:
            return None


def without_keys(agent: str, form: SecretForm, env: dict[str, str]) -> dict[str, str]:
    """The environment of an agent that goes by its login file."""
    if (agent, form) != ("claude", SecretForm.CLAUDE):
        return env
    return {name: value for name, value in env.items() if name not in _IN_THE_WAY}
