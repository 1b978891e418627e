"""Credentials: a value that cannot be printed by accident, and what the vault knows of it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from corral.errors import InvalidInput
from corral.model.binding import Binding
from corral.model.ids import TenantId

MIN_SECRET = 8
MAX_SECRET = 64 * 1024


class Secret:
    """A credential's value. Its repr, str, format and JSON are redacted; `reveal` is called in two places only:
    where the vault encrypts it, and where the gateway writes it into a request.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def checked(cls, value: str) -> "Secret":
        """A Secret of `value` without surrounding white space, or raise InvalidInput."""
        value = value.strip()
        if not MIN_SECRET <= len(value) <= MAX_SECRET:
            raise InvalidInput(
                f"a secret of {len(value)} characters is not accepted", f"use {MIN_SECRET} to {MAX_SECRET}"
            )
        if any(ord(c) < 0x20 or ord(c) == 0x7F or ord(c) > 0x7E for c in value):
            raise InvalidInput(
                "the secret holds control or non-ASCII characters", "give the key alone, on one line"
            )
        return cls(value)

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "***"

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(("Secret", self._value))


class Provider(StrEnum):
    """What a secret opens: a model API, which decides endpoints, header spellings, usage forms and prices; or a git
    host, which decides how the credential is written; or (HOST) the hosts of its `Binding`.
    """

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    HOST = "host"
    GEMINI = "gemini"
    OPENROUTER = "openrouter"
    GITHUB = "github"
    GITLAB = "gitlab"
    BITBUCKET = "bitbucket"
    GIT = "git"

    @property
    def is_model(self) -> bool:
        """Whether it is a model API, which only the metered service reaches."""
        return self in MODEL_PROVIDERS

    @property
    def is_git(self) -> bool:
        """Whether it opens repositories."""
        return self in GIT_PROVIDERS


GIT_PROVIDERS = frozenset({Provider.GITHUB, Provider.GITLAB, Provider.BITBUCKET, Provider.GIT})
MODEL_PROVIDERS = frozenset({Provider.ANTHROPIC, Provider.OPENAI, Provider.GEMINI, Provider.OPENROUTER})


@dataclass(frozen=True, slots=True)
class ApiKeyInfo:
    """What may be shown of an API key. `id` tells keys of one label apart, and nothing of the key."""

    id: str
    label: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose request it is, and the API key that shows it; none over this host's own socket."""

    tenant: TenantId
    key: ApiKeyInfo | None = None

    @property
    def who(self) -> str:
        """How it is written down who had something done."""
        if self.key is None:
            return "this host"
        return f"tenant {self.tenant}, key {self.key.label} ({self.key.id})"


class SecretForm(StrEnum):
    """What the vault holds of a secret.

    `value`: the key itself. `command`: a command, as JSON list, that prints it. `claude`: a subscription's long-lived
    token. `chatgpt`: the tokens of a ChatGPT login, as JSON, which the host renews. `github-app`: the id and private key of
    a GitHub App, as JSON, by which the gateway has a token for each repository.
    """

    VALUE = "value"
    COMMAND = "command"
    CLAUDE = "claude"
    CHATGPT = "chatgpt"
    GITHUB_APP = "github-app"


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """What may be shown of a secret. `provider` and `base_url`, or `binding`, say where the gateway uses it.

    `problem` says why it cannot be used now; empty where it can.
    """

    tenant: TenantId
    name: str
    provider: Provider
    base_url: str
    created_at: datetime
    updated_at: datetime
    binding: Binding | None = None
    form: SecretForm = SecretForm.VALUE
    problem: str = ""
