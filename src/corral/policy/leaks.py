"""Which paths run something, and which lines look like a secret. Linear in the text, whatever the text is."""

import re
from functools import cache
from typing import Any

_RULES: tuple[tuple[str, str], ...] = (
    ("a private key", r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY( BLOCK)?-----"),
    ("an AWS access key", r"\b(AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
    ("an AWS secret key", r"(?i)aws.{0,20}secret.{0,20}['\"= :]([A-Za-z0-9/+=]{40})\b"),
    ("a GitHub token", r"\b(gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{60,100})\b"),
    ("a GitLab token", r"\bgl(pat|dt|rt|cbt|ptt|oas|soat)-[A-Za-z0-9_-]{20,64}\b"),
    ("an Anthropic key", r"\bsk-ant-[a-z0-9]{3,8}-[A-Za-z0-9_-]{20,200}"),
    ("an OpenAI key", r"\bsk-(proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,200}"),
    ("a Google key", r"\bAIza[A-Za-z0-9_-]{35}\b"),
    ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,250}\b"),
    ("a Slack webhook", r"https://hooks\.slack\.com/(services|workflows)/[A-Za-z0-9/_-]{20,}"),
    ("a Stripe key", r"\b[rs]k_live_[A-Za-z0-9]{16,250}\b"),
    ("an npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("a PyPI token", r"\bpypi-AgE[A-Za-z0-9_-]{50,}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z]{34}\b"),
    ("a SendGrid key", r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}\b"),
    ("a DigitalOcean token", r"\bdo[opr]_v1_[a-f0-9]{64}\b"),
    ("a Vault token", r"\bhvs\.[A-Za-z0-9_-]{24,200}\b"),
    ("a Docker token", r"\bdckr_pat_[A-Za-z0-9_-]{20,64}\b"),
    ("an age key", r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b"),
    ("a JSON web token", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    (
        "a password in a URL",
        r"\b[a-z][a-z0-9+.-]{1,20}://[^/\s:@'\"$<{]{1,100}:[^/\s:@'\"$<{]{6,200}@[A-Za-z0-9]",
    ),
    (
        "an assigned secret",
        r"(?i)(api[_-]?key|secret|token|passwd|password|credential)s?['\"]?\s{0,5}(:=|=>|=|:)\s{0,5}"
        r"['\"][A-Za-z0-9/+_=.~-]{20,200}['\"]",
    ),
)

_CI = re.compile(
    r"""(^|/)\.github/(workflows|actions)/ | ^\.gitlab-ci\.ya?ml$ | (^|/)\.gitlab/ci/ | ^\.circleci/ | ^\.travis\.yml$
    | ^Jenkinsfile | ^azure-pipelines | ^\.azure-pipelines/ | ^bitbucket-pipelines\.yml$ | ^\.drone\.ya?ml$
    | ^\.woodpecker | ^\.buildkite/ | ^\.forgejo/(workflows|actions)/ | ^\.gitea/(workflows|actions)/ | ^appveyor\.yml$
    | ^\.appveyor\.yml$ | ^cloudbuild\.ya?ml$ | ^\.cirrus\.yml$ | ^\.semaphore/ | ^\.teamcity/ | ^\.builds?/.*\.yml$
    | ^\.build\.yml$""",
    re.VERBOSE | re.IGNORECASE,
)
_HOOK = re.compile(
    r"""(^|/)\.husky/ | (^|/)\.githooks/ | ^\.pre-commit-config\.ya?ml$ | (^|/)\.vscode/(tasks|settings|launch)\.json$
    | (^|/)\.idea/ | (^|/)\.envrc$ | (^|/)\.claude/ | (^|/)\.mcp\.json$ | (^|/)\.cursor/ | (^|/)\.codex/
    | (^|/)\.devcontainer/ | (^|/)\.gitattributes$ | ^lefthook\.ya?ml$ | (^|/)\.gitconfig$ | (^|/)\.lfsconfig$""",
    re.VERBOSE | re.IGNORECASE,
)


@cache
def _compiled() -> Any:
    import re2  # type: ignore[import-untyped]  # as in `needles`

    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    rules = re2.Set.SearchSet(options)
    for _, pattern in _RULES:
        rules.Add(pattern)
    rules.Compile()
    return rules


def secret_in(text: bytes) -> str | None:
    """What kind of secret a text seems to hold; None for none."""
    found: list[int] = _compiled().Match(text)
    return _RULES[min(found)][0] if found else None


def runs_in_ci(path: str) -> bool:
    """Whether a forge or its runners would run what is at a path."""
    return _CI.search(path) is not None


def runs_at_work(path: str) -> bool:
    """Whether git, an editor, a shell or an agent would run what is at a path once it is checked out (G-279)."""
    return _HOOK.search(path) is not None
