"""The agents that Corral knows, as one table.

All run unattended: the sandbox is the boundary, so an agent asks nothing inside it. None looks for updates or reports
usage: in a sandbox that reaches only its gateway each such attempt would be a refused connection at best.
"""

from collections.abc import Mapping
from types import MappingProxyType

from corral.agents.preset import AgentPreset, ProviderSetup
from corral.errors import NotFound
from corral.model.secrets import Provider

_CLAUDE = AgentPreset(
    name="claude",
    title="Claude Code",
    package="@anthropic-ai/claude-code",
    version="2.1.332",
    command="claude",
    node=0,
    providers={
        Provider.ANTHROPIC: ProviderSetup(
            # A token, not ANTHROPIC_API_KEY: of a key it asks at the first start whether to use it.
            env={"ANTHROPIC_BASE_URL": "$base_url", "ANTHROPIC_AUTH_TOKEN": "$token"},
        ),
    },
    env={
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_FEEDBACK_COMMAND": "1",
        "CLAUDE_CODE_DISABLE_FEEDBACK_SURVEY": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
        # Without these two it refuses to run unattended as root, and asks whether the directory is trusted.
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_SANDBOXED": "1",
    },
    files={
        ".claude.json": {
            "hasCompletedOnboarding": True,
            "bypassPermissionsModeAccepted": True,
            "autoUpdates": False,
            "hasSeenAutoDefaultNudge": True,
            "hasSeenAutoDefaultNotice": True,
        },
        ".claude/settings.json": {
            "permissions": {"defaultMode": "bypassPermissions"},
            "skipDangerousModePermissionPrompt": True,
            # The check of a page's host asks a server that a sandbox does not reach.
            "skipWebFetchPreflight": True,
            "theme": "dark",
        },
    },
    run=("claude", "--print", "--dangerously-skip-permissions", "--", "$prompt"),
    chat=("claude", "--dangerously-skip-permissions"),
    pick=("--model", "$model"),
    session_dir=".claude/projects",
)

# The background daemon copies the whole program into the home and outlives the terminal; plugins and apps are looked
# for at hosts that a sandbox does not reach.
_CODEX_CONFIG = """\
model_provider = "corral"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.corral]
name = "Corral"
base_url = "$base_url/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
supports_websockets = false

[analytics]
enabled = false

[feedback]
enabled = false

[features]
daemon_auto_start = false
plugins = false
remote_plugin = false
apps = false

[tui]
show_tooltips = false

[notice]
hide_full_access_warning = true

[projects."$workdir"]
trust_level = "trusted"
"""

_CODEX = AgentPreset(
    name="codex",
    title="Codex",
    package="@openai/codex",
    version="0.171.0",
    command="codex",
    node=16,
    providers={
        Provider.OPENAI: ProviderSetup(env={"OPENAI_BASE_URL": "$base_url/v1", "OPENAI_API_KEY": "$token"}),
    },
    files={".codex/config.toml": _CODEX_CONFIG},
    run=(
        "codex",
        "exec",
        "--dangerously-bypass-approvals-and-sandbox",
        "--skip-git-repo-check",
        "--",
        "$prompt",
    ),
    chat=("codex", "--dangerously-bypass-approvals-and-sandbox"),
    pick=("--model", "$model"),
    session_dir=".codex/sessions",
)


def _opencode(provider: Provider, key: str, url: str, model: str) -> ProviderSetup:
    options = {"baseURL": "$base_url/v1", "apiKey": f"{{env:{key}}}"}
    config = {
        "enabled_providers": [provider.value],
        "model": model,
        "provider": {provider.value: {"options": options}},
    }
    return ProviderSetup(
        env={key: "$token", url: "$base_url/v1"}, files={".config/opencode/opencode.json": config}
    )


_OPENCODE = AgentPreset(
    name="opencode",
    title="OpenCode",
    package="opencode-ai",
    version="1.18.33",
    command="opencode",
    node=0,
    providers={
        Provider.ANTHROPIC: _opencode(
            Provider.ANTHROPIC, "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "anthropic/claude-sonnet-4-5"
        ),
        Provider.OPENAI: _opencode(Provider.OPENAI, "OPENAI_API_KEY", "OPENAI_BASE_URL", "openai/gpt-5.1"),
    },
    env={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_SHARE": "1",
    },
    files={
        ".config/opencode/opencode.json": {
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
        },
    },
    run=("opencode", "run", "--auto", "--", "$prompt"),
    chat=("opencode",),
    pick=("--model", "$provider/$model"),
    session_dir=".local/share/opencode",
    surplus=("node_modules",),
)


def _pi(provider: Provider, env: Mapping[str, str], url: str, model: str) -> ProviderSetup:
    return ProviderSetup(
        env=env,
        files={
            ".pi/agent/models.json": {"providers": {provider.value: {"baseUrl": url}}},
            ".pi/agent/settings.json": {"defaultProvider": provider.value, "defaultModel": model},
        },
    )


_PI = AgentPreset(
    name="pi",
    title="Pi",
    package="@earendil-works/pi-coding-agent",
    version="1.6.0",
    command="pi",
    node=22,
    providers={
        Provider.ANTHROPIC: _pi(
            Provider.ANTHROPIC,
            {"ANTHROPIC_BASE_URL": "$base_url", "ANTHROPIC_API_KEY": "$token"},
            "$base_url",
            "claude-sonnet-4-5",
        ),
        Provider.OPENAI: _pi(
            Provider.OPENAI,
            {"OPENAI_BASE_URL": "$base_url/v1", "OPENAI_API_KEY": "$token"},
            "$base_url/v1",
            "gpt-5.1",
        ),
    },
    env={"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"},
    files={
        ".pi/agent/settings.json": {
            "defaultProjectTrust": "always",
            "enableInstallTelemetry": False,
            "enableAnalytics": False,
        },
    },
    run=("pi", "--print", "--", "$prompt"),
    chat=("pi",),
    pick=("--model", "$provider/$model"),
    session_dir=".pi/agent/sessions",
)

PRESETS: Mapping[str, AgentPreset] = MappingProxyType(
    {preset.name: preset for preset in (_CLAUDE, _CODEX, _OPENCODE, _PI)}
)
"""All presets by name."""


def find_preset(name: str) -> AgentPreset:
    """The preset of this name. Raises NotFound, naming all."""
    if name not in PRESETS:
        raise NotFound(f"there is no agent {name[:80]!r}", f"use one of {', '.join(PRESETS)}")
    return PRESETS[name]
