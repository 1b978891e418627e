"""Login files that agents accept and that hold nothing: no token in them is good anywhere (G-30, G-161, G-175)."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

_FAR = 4_102_444_800
"""The first second of 2100."""
REFRESH = "corral-placeholder"
"""How the refresh token of such a file ends, and no other one does."""
_NOBODY = "00000000-0000-4000-8000-000000000000"


def _segment(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=").decode()


def jwt(claims: dict[str, Any]) -> str:
    """Three segments with these claims and an end far away. Its signature is none."""
    head = _segment({"alg": "RS256", "typ": "JWT"})
    body = _segment({"exp": _FAR, "iat": 1_735_689_600, **claims})
    return f"{head}.{body}.{base64.urlsafe_b64encode(b'corral placeholder').rstrip(b'=').decode()}"


def codex_auth(now: datetime | None = None) -> str:
    """Codex's `auth.json` of a ChatGPT login (G-169)."""
    account = {
        "chatgpt_account_id": _NOBODY,
        "chatgpt_user_id": _NOBODY,
        "chatgpt_plan_type": "pro",
        "user_id": _NOBODY,
    }
    claims = {"email": "sandbox@corral.invalid", "https://api.openai.com/auth": account}
    tokens = {
        "id_token": jwt(claims),
        "access_token": jwt(claims),
        "refresh_token": REFRESH,
        "account_id": _NOBODY,
    }
    refreshed = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    document = {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": refreshed}
    return json.dumps(document, indent=2) + "\n"


def claude_credentials(token: str) -> str:
    """Claude Code's `.credentials.json` (G-167), with a token that is good at the sandbox's gateway alone."""
    login = {
        "accessToken": f"sk-ant-oat01-{token}",
        "refreshToken": f"sk-ant-ort01-{REFRESH}",
        "expiresAt": _FAR * 1000,
        "scopes": ["user:inference", "user:profile", "user:sessions:claude_code"],
        "subscriptionType": "max",
    }
    return json.dumps({"claudeAiOauth": login}) + "\n"
