"""What an agent preset is, and how its templates are filled.

A preset is data. Texts in it hold the placeholders `$base_url`, `$token` and `$home` (a literal dollar is `$$`), in
commands also `$prompt` and `$model`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Any

from corral.errors import InvalidInput
from corral.model.secrets import Provider

HOME = "/home/user"


@dataclass(frozen=True, slots=True)
class Connection:
    """How a sandbox reaches a provider: the gateway's URL for a secret, without `/v1`, and the sandbox's token."""

    secret: str
    provider: Provider
    base_url: str
    token: str = field(repr=False)


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
    as JSON. `run` and `shell` are the headless and the interactive command; `pick` is put before their last words to
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
    shell: tuple[str, ...]
    pick: tuple[str, ...]
    session_dir: str
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    surplus: tuple[str, ...] = ()

    def install_commands(self) -> tuple[tuple[str, ...], ...]:
        """Commands that install it, to be run in order as root in a sandbox that reaches the npm registry."""
        install = (
            "npm",
            "install",
            "--global",
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--loglevel=error",
        )
        # npm 12 runs a package's install script only where it is named.
        scripts = f"--allow-scripts={self.package}"
        steps: list[tuple[str, ...]] = [(*install, scripts, f"{self.package}@{self.version}")]
        if self.surplus:
            paths = " ".join(f'"$(npm root --global)"/{self.package}/{path}' for path in self.surplus)
            steps.append(("sh", "-c", f"rm -rf {paths}"))
        return (*steps, ("rm", "-rf", "/root/.npm"), (self.command, "--version"))

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
        values = _values(connection, home)
        return {name: fill(text, values) for name, text in env.items()}

    def home_files(self, connection: Connection, home: str = HOME) -> list[HomeFile]:
        """Files to write, owned by the sandbox's user, before its first start. None holds the token."""
        merged = _merge(self.files, self.setup(connection.provider).files)
        values = _values(connection, home)
        del values["token"]
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
        return self._command(self.shell, "", model, provider)

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


def _values(connection: Connection, home: str) -> dict[str, str]:
    return {"base_url": connection.base_url.rstrip("/"), "token": connection.token, "home": home}


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
