"""Every preset is complete, fills without leftovers, and puts no token into a file."""

import json
import re
import tomllib
from dataclasses import replace

import pytest

from corral.agents.preset import AgentPreset, Connection, ProviderSetup, fill
from corral.agents.presets import PRESETS, find_preset
from corral.errors import InvalidInput, NotFound
from corral.model.secrets import Provider

TOKEN = "corral-token-of-this-test"
CASES = [
    pytest.param(preset, provider, id=f"{name}-{provider}")
    for name, preset in PRESETS.items()
    for provider in preset.providers
]


def connection(provider: Provider) -> Connection:
    return Connection("main", provider, "http://gateway.corral/s/main/", TOKEN)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_preset_names_one_tried_version_and_a_command(preset: AgentPreset) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", preset.version)
    assert preset.run[0] == preset.chat[0] == preset.command
    assert preset.providers
    assert not preset.session_dir.startswith("/")


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_installation_pins_the_version_and_removes_only_its_own_cache(preset: AgentPreset) -> None:
    install, clean, check = preset.install_commands()
    assert install[:3] == ("npm", "install", "--global")
    assert install[-1] == f"{preset.package}@{preset.version}"
    cache = next(word.removeprefix("--cache=") for word in install if word.startswith("--cache="))
    removed = clean[-1].removeprefix("rm -rf ").split(" ", 1)
    assert removed[0] == cache
    assert all("$(npm root --global)" in path for path in removed[1:])
    assert check == (preset.command, "--version")


@pytest.mark.parametrize(("preset", "provider"), CASES)
def test_environment_gives_the_token_and_the_gateways_address(
    preset: AgentPreset, provider: Provider
) -> None:
    env = preset.environment(connection(provider))
    assert TOKEN in env.values()
    assert all("$" not in value for value in env.values())
    urls = [value for value in env.values() if value.startswith("http")]
    assert urls
    assert all(url in ("http://gateway.corral/s/main", "http://gateway.corral/s/main/v1") for url in urls)


@pytest.mark.parametrize(("preset", "provider"), CASES)
def test_files_are_below_the_home_private_parse_and_hold_no_token(
    preset: AgentPreset, provider: Provider
) -> None:
    files = preset.home_files(connection(provider), "/home/someone", "/work/tree")
    assert files
    for file in files:
        assert file.path.startswith("/home/someone/.")
        assert file.mode == 0o600
        assert TOKEN not in file.content
        (json if file.path.endswith(".json") else tomllib).loads(file.content)


@pytest.mark.parametrize(("preset", "provider"), CASES)
def test_commands_keep_the_prompt_one_word_that_is_no_option(preset: AgentPreset, provider: Provider) -> None:
    prompt = "--help; $(id) $HOME `x` $$"
    words = preset.headless(prompt, "some-model", provider)
    assert words[-2:] == ("--", prompt)
    assert any(word.endswith("some-model") for word in words[:-2])
    assert prompt not in preset.headless("other", None, provider)
    assert any(word.endswith("some-model") for word in preset.interactive("some-model", provider))
    assert not any("model" in word for word in preset.interactive(None, provider))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_provider_that_it_cannot_use_is_refused_with_those_that_it_can(preset: AgentPreset) -> None:
    for provider in set(Provider) - set(preset.providers):
        with pytest.raises(InvalidInput) as caught:
            preset.environment(connection(provider))
        assert all(usable in caught.value.hint for usable in preset.providers)
        with pytest.raises(InvalidInput):
            preset.headless("x", provider=provider)


def test_codex_trusts_the_working_directory_and_speaks_plain_http() -> None:
    (file,) = PRESETS["codex"].home_files(connection(Provider.OPENAI), workdir="/home/user/tree")
    config = tomllib.loads(file.content)
    server = config["model_providers"][config["model_provider"]]
    assert server["base_url"] == "http://gateway.corral/s/main/v1"
    assert (server["wire_api"], server["supports_websockets"]) == ("responses", False)
    assert config["projects"] == {"/home/user/tree": {"trust_level": "trusted"}}
    assert config["approval_policy"] == "never"


def test_files_of_a_provider_are_merged_into_the_presets() -> None:
    preset = PRESETS["opencode"]
    (file,) = preset.home_files(connection(Provider.OPENAI))
    config = json.loads(file.content)
    assert config["permission"] == "allow"
    assert config["enabled_providers"] == ["openai"]
    assert config["provider"]["openai"]["options"]["baseURL"] == "http://gateway.corral/s/main/v1"


def test_a_token_in_a_file_template_is_a_defect_that_shows() -> None:
    leaky = replace(PRESETS["claude"], providers={Provider.ANTHROPIC: ProviderSetup({}, {".x": "$token"})})
    with pytest.raises(KeyError):
        leaky.home_files(connection(Provider.ANTHROPIC))


def test_filling_does_not_fill_what_it_filled_in() -> None:
    assert fill("$prompt $$model", {"prompt": "$model", "model": "m"}) == "$model $model"


def test_token_is_not_in_the_connections_repr() -> None:
    assert TOKEN not in repr(connection(Provider.OPENAI))


def test_unknown_agent_is_answered_with_all_names() -> None:
    with pytest.raises(NotFound) as caught:
        find_preset("cluade")
    assert all(name in caught.value.hint for name in ("claude", "codex", "opencode", "pi"))
