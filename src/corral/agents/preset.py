"""What an agent preset is, and how its templates are filled.

A preset is data. Texts in it hold the placeholders `$base_url`, `$token`, `$home` and `$workdir` (a literal dollar is
`$$`), in commands `$prompt`, `$model` and `$provider`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Any

from corral.errors import InvalidInput
from corral.model.secrets import Provider, SecretForm

HOME = "/home/user"
_CACHE = "/var/tmp/corral-npm-cache"  # noqa: S108 (in a sandbox, whose only user it is)


@dataclass(frozen=True, slots=True)
class Connection:
    """How a sandbox reaches a provider: the gateway's URL for a secret, without `/v1`, and the sandbox's token."""

    secret: str
    provider: Provider
    base_url: str
    token: str = field(repr=False)
    form: SecretForm = SecretForm.VALUE


@dataclass(frozen=True, slots=True)
class HomeFile:
    """A file to be there before the agent's first start. `path` is absolute in the sandbox."""

    path: str
    content: str
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class ProviderSetup:
    """What an agent needs to use one provider.

    `env` is laid over the preset's; `files` (path below the home → content) is merged into the preset's.
    """

    env: Mapping[str, str]
    files: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentPreset:
    """A coding agent: how it is installed, configured and run.

    `package` and `version` name a package of the npm registry and the version that was tried; `command` is the program
    that it installs; `node` the least major version of Node that it needs, 0 where it ships a program of its own.
    `surplus` are paths below the package that are not needed once it is installed.
    `providers` are in order of preference. `files` maps paths below the home to content: text, or a mapping, written
    as JSON. `run` and `chat` are the headless and the interactive command; `pick` is put before their last words to
    choose a model. `session_dir` holds the agent's conversations, below the home.
    """

    name: str
    title: str
    package: str
    version: str
    command: str
    node: int
    providers: Mapping[Provider, ProviderSetup]
    run: tuple[str, ...]
    chat: tuple[str, ...]
    pick: tuple[str, ...]
    session_dir: str
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    surplus: tuple[str, ...] = ()

    def install_commands(self) -> tuple[tuple[str, ...], ...]:
        """Commands that install it, to be run in order as root in a sandbox that reaches the npm registry."""
        # npm 12 runs a package's install script only where it is named. The cache is one of our own, so that removing
        # it takes nothing else along.
        options = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", f"--cache={_CACHE}")
        install = ("npm", "install", "--global", *options, f"--allow-scripts={self.package}")
        paths = [f'"$(npm root --global)"/{self.package}/{path}' for path in self.surplus]
        return (
            (*install, f"{self.package}@{self.version}"),
            ("sh", "-c", " ".join(["rm -rf", _CACHE, *paths])),
            (self.command, "--version"),
        )

    def setup(self, provider: Provider) -> ProviderSetup:
        """What it needs for `provider`. Raises InvalidInput if it cannot use it."""
        if provider not in self.providers:
            usable = ", ".join(self.providers)
            raise InvalidInput(
                f"{self.title} cannot use a secret of provider {provider}", f"use a secret of: {usable}"
            )
        return self.providers[provider]

    def environment(self, connection: Connection, home: str = HOME) -> dict[str, str]:
        """Environment variables for its processes."""
        env = {**self.env, **self.setup(connection.provider).env}
        values = {"base_url": connection.base_url.rstrip("/"), "token": connection.token, "home": home}
        return {name: fill(text, values) for name, text in env.items()}

    def home_files(self, connection: Connection, home: str = HOME, workdir: str = HOME) -> list[HomeFile]:
        """Files to write, owned by the sandbox's user, before its first start. None holds the token.

        `workdir` is the directory (a repository's top) that it will work in, and is told to trust.
        """
        merged = _merge(self.files, self.setup(connection.provider).files)
        values = {"base_url": connection.base_url.rstrip("/"), "home": home, "workdir": workdir}
        return [HomeFile(f"{home}/{path}", _content(data, values)) for path, data in sorted(merged.items())]

    def headless(
        self, prompt: str, model: str | None = None, provider: Provider | None = None
    ) -> tuple[str, ...]:
        """The command that works on `prompt` and ends; its standard output is for people, the last words last.

        `model` is as the provider names it; `provider` is the one of the connection (default: the preferred).
        """
        return self._command(self.run, prompt, model, provider)

    def interactive(self, model: str | None = None, provider: Provider | None = None) -> tuple[str, ...]:
        """The command that talks with a person on a terminal."""
        return self._command(self.chat, "", model, provider)

    def _command(
        self, words: tuple[str, ...], prompt: str, model: str | None, provider: Provider | None
    ) -> tuple[str, ...]:
        chosen = provider or next(iter(self.providers))
        self.setup(chosen)
        values = {"prompt": prompt, "model": model or "", "provider": chosen.value}
        return tuple(fill(word, values) for word in _with_model(words, self.pick if model else ()))


def _with_model(words: tuple[str, ...], pick: tuple[str, ...]) -> Iterator[str]:
    """`words` with `pick` after the last of them that is no prompt: prompts come last, after `--`."""
    at = words.index("--") if "--" in words else len(words)
    yield from words[:at]
    yield from pick
    yield from words[at:]


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with its placeholders replaced. A placeholder without a value is a defect of the preset: KeyError."""
    return Template(text).substitute(values)


def _fill_data(data: Any, values: Mapping[str, str]) -> Any:
    if isinstance(data, str):
        return fill(data, values)
    if isinstance(data, Mapping):
        return {fill(key, values): _fill_data(value, values) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_fill_data(item, values) for item in data]
    return data


def _content(data: Any, values: Mapping[str, str]) -> str:
    filled = _fill_data(data, values)
    return filled if isinstance(filled, str) else json.dumps(filled, indent=2) + "\n"


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on it, mappings within mappings merged."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
