"""Agents in sandboxes: installing them, giving them what they need, starting them."""

import logging
import shlex
from collections.abc import Callable
from dataclasses import replace

from corral.agents.logins import login_file, without_keys, write_login
from corral.agents.preset import AgentPreset, Connection
from corral.agents.presets import PRESETS, find_preset
from corral.engine.environment import (
    bound_environment,
    check_whole_keys,
    git_environment,
    provider_environment,
    service_url,
    trust_environment,
)
from corral.engine.plan import CreateRequest, egress_policy
from corral.engine.ports import Driver, Progress, Store
from corral.engine.processes import Processes, StartRequest
from corral.engine.recovery import BUILD
from corral.engine.sandboxes import Sandboxes
from corral.engine.shell import Shell
from corral.engine.tars import once
from corral.engine.vault import Secrets
from corral.errors import Conflict, HostError, InvalidInput
from corral.model.ids import LayerDigest, TenantId
from corral.model.process import ProcessInfo
from corral.model.sandbox import Limits, Sandbox
from corral.model.secrets import SecretForm, SecretInfo
from corral.model.template import Template
from corral.policy.egress import canonical_host

log = logging.getLogger(__name__)

TERMINAL = "agent"
"""The name of the terminal session that an interactive agent runs in."""
AGENT_TAG = "agent"
INSTALL_SECONDS = 900.0


class AgentService:
    """What the engine knows of agents."""

    def __init__(
        self,
        *,
        store: Store,
        secrets: Secrets,
        driver: Driver,
        sandboxes: Callable[[], Sandboxes],
        processes: Callable[[], Processes],
        npm_registry: Callable[[], str],
    ) -> None:
        """`npm_registry` is the operator's choice of a host, or empty for the one that npm itself is set to."""
        self._store = store
        self._secrets = secrets
        self._driver = driver
        self._sandboxes = sandboxes
        self._processes = processes
        self._npm_registry = npm_registry

    def names(self) -> tuple[str, ...]:
        """Agents that can be named."""
        return tuple(PRESETS)

    # -- what a sandbox gets ----------------------------------------------------------------------------------------

    async def complete(self, tenant: TenantId, request: CreateRequest) -> CreateRequest:
        """The request with the secrets that it is entitled to: those that it names, or those that its agent can use.

        Raises NotFound for a secret that does not exist, Conflict if the agent could use none.
        """
        preset = find_preset(request.agent) if request.agent is not None else None
        if request.secrets is not None:
            named = await self._secrets.named(tenant, request.secrets)
            if preset is not None and named and all(info.binding is not None for info in named):
                # Nobody chose among the agent's own.
                named += await self._usable(tenant, preset)
        elif preset is not None:
            named = await self._usable(tenant, preset)
        else:
            return replace(request, secrets=())
        if preset is not None and _first_usable(preset, named) is None:
            wanted = " or ".join(preset.providers)
            raise Conflict(
                f"{preset.title} needs a secret of provider {wanted}, and there is none",
                f"add one: `corral secret add {next(iter(preset.providers))}`",
            )
        check_whole_keys(named, request.env)
        return replace(request, secrets=tuple(sorted(info.name for info in named)))

    async def environment(self, sandbox: Sandbox) -> dict[str, str]:
        """The variables of every process of a sandbox. The token among them is worth nothing outside of it."""
        spec = sandbox.spec
        env = {**trust_environment(), **spec.env}
        grant = await self._store.grant_of(sandbox.id) if spec.secrets or spec.repos else None
        named = await self._existing(spec.tenant, grant.secrets) if grant and grant.secrets else []
        if grant is None or not (named or spec.repos):
            return {"GIT_TERMINAL_PROMPT": "0", **env}
        token = await self._store.derive_token(grant.id)
        env = {**git_environment(spec.repos, spec.egress, token), **env}
        if not named:
            return env
        seed = await self._store.derive_seed(sandbox.id)
        env = {**bound_environment(named, seed, spec.variables), **env}
        if spec.agent is None:
            return {**provider_environment(named, token), **env}
        connection = _connection(find_preset(spec.agent), named, token.reveal())
        if connection is None:
            return env
        own = find_preset(spec.agent).environment(connection)
        return {**without_keys(spec.agent, connection.form, own), **env}

    async def configure(self, sandbox: Sandbox) -> None:
        """Write the agent's configuration into a new sandbox, so that its first start asks nothing."""
        spec = sandbox.spec
        if spec.agent is None:
            return
        preset = find_preset(spec.agent)
        connection = _connection(preset, await self._existing(spec.tenant, spec.secrets), "")
        if connection is None:
            return
        files = self._driver.files(spec)
        for file in preset.home_files(connection, workdir=spec.workdir):
            await files.write(file.path, once(file.content.encode()), spec.user, file.mode)
        await self._write_login(sandbox, connection.form)

    async def _write_login(self, sandbox: Sandbox, form: SecretForm) -> None:
        """The login file that a subscription's agent looks for, with the sandbox's token of this time."""
        token = await self._store.derive_token((await self._store.grant_of(sandbox.id)).id)
        file = login_file(sandbox.spec.agent or "", form, token.reveal())
        if file is not None:
            await write_login(self._driver.files(sandbox.spec), file, sandbox.spec.user)

    # -- running ----------------------------------------------------------------------------------------------------

    async def start(self, tenant: TenantId, ref: str, prompt: str | None, model: str | None) -> ProcessInfo:
        """Start the sandbox's agent: headless on `prompt`, or without one in a terminal that can be attached."""
        sandbox = self._sandboxes().get(tenant, ref)
        preset = self._preset(sandbox)
        chosen = _first_usable(preset, await self._existing(tenant, sandbox.spec.secrets))
        provider = chosen.provider if chosen else None
        if chosen is not None:
            await self._write_login(sandbox, chosen.form)
        if prompt is not None:
            if not prompt.strip():
                raise InvalidInput("the prompt is empty", "say what the agent shall do")
            argv = preset.headless(prompt, model, provider)
            return await self._processes().start(tenant, ref, StartRequest(argv, tag=AGENT_TAG))
        command = shlex.join(preset.interactive(model, provider))
        argv = ("tmux", "new-session", "-d", "-s", TERMINAL, command)
        result = await self._processes().run(tenant, ref, StartRequest(argv, tag=AGENT_TAG, timeout=30))
        if result.info.exit is None or result.info.exit.code != 0:
            raise Conflict(
                f"the agent's terminal could not be opened: {result.stderr.decode(errors='replace').strip()[:300]}",
                "it may be open already: `corral attach NAME`",
            )
        return result.info

    async def attach_command(self, tenant: TenantId, ref: str) -> tuple[str, ...]:
        """The command that shows the agent's terminal. Raises Conflict where none is open."""
        check = StartRequest(("tmux", "has-session", "-t", TERMINAL), timeout=30)
        result = await self._processes().run(tenant, ref, check)
        if result.info.exit is None or result.info.exit.code != 0:
            raise Conflict(
                "no agent's terminal is open in this sandbox",
                "start one: `corral run AGENT`, without a prompt",
            )
        return ("tmux", "-u", "attach-session", "-t", TERMINAL)

    # -- installing -------------------------------------------------------------------------------------------------

    async def build_layer(
        self, tenant: TenantId, agent: str, base: Template, progress: Progress
    ) -> LayerDigest:
        """Install an agent in a sandbox of `base`, through the gateway; what that added, as a layer."""
        preset = find_preset(agent)
        sandboxes = self._sandboxes()
        progress(f"installing {preset.title} {preset.version} in a sandbox")
        sandbox = await sandboxes.create(
            tenant,
            CreateRequest(
                template=base.id,
                labels={"corral/build": agent},
                limits=Limits(pids=4096),
                attributes={BUILD: agent},
            ),
        )
        try:
            shell = Shell(self._processes(), tenant, sandbox.id, "root")
            registry = self._npm_registry() or await _registry_of_npm(shell)
            policy = egress_policy((registry,))
            await sandboxes.set_egress(tenant, sandbox.id, policy)
            for argv in preset.install_commands():
                progress(f"{preset.title}: {_shortened(shlex.join(argv))}")
                await _install_step(shell, argv, registry)
            await sandboxes.stop(tenant, sandbox.id, 5.0)
            progress(f"{preset.title}: keeping the layer")
            return await self._driver.commit(sandbox.id)
        finally:
            await sandboxes.remove(tenant, sandbox.id)

    # -- parts ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _preset(sandbox: Sandbox) -> AgentPreset:
        if sandbox.spec.agent is None:
            raise Conflict(
                f"sandbox {sandbox.spec.name} was made without an agent", "make one with `corral run AGENT …`"
            )
        return find_preset(sandbox.spec.agent)

    async def _usable(self, tenant: TenantId, preset: AgentPreset) -> list[SecretInfo]:
        return [info for info in await self._secrets.list(tenant) if info.provider in preset.providers]

    async def _existing(self, tenant: TenantId, names: tuple[str, ...]) -> list[SecretInfo]:
        """Those of a grant's secrets that have not been removed since."""
        return [info for info in await self._secrets.list(tenant) if info.name in names]


def _first_usable(preset: AgentPreset, secrets: list[SecretInfo]) -> SecretInfo | None:
    for provider in preset.providers:
        for info in sorted(secrets, key=lambda s: (s.name != provider.value, s.name)):
            if info.provider is provider:
                return info
    return None


def _connection(preset: AgentPreset, secrets: list[SecretInfo], token: str) -> Connection | None:
    chosen = _first_usable(preset, secrets)
    return (
        None
        if chosen is None
        else Connection(chosen.name, chosen.provider, service_url(chosen.name), token, chosen.form)
    )


async def _registry_of_npm(shell: Shell) -> str:
    code, out, err = await shell.run(("npm", "config", "get", "registry"), cwd="/", timeout=60)
    host = out.decode(errors="replace").strip().removeprefix("https://").split("/")[0]
    if code != 0 or not host:
        raise HostError(
            f"npm in the sandbox names no registry: {err.decode(errors='replace').strip()[-300:]}",
            "set one: `corral config set registries.npm HOST`",
        )
    return canonical_host(host)


async def _install_step(shell: Shell, argv: tuple[str, ...], registry: str) -> None:
    # npm's own pauses between attempts make a refused connection look like a slow one for over a minute.
    env = {
        "npm_config_registry": f"https://{registry}/",
        "npm_config_fetch_retry_mintimeout": "1000",
        "npm_config_fetch_retry_maxtimeout": "5000",
    }
    code, out, err = await shell.run(argv, cwd="/root", env=env, timeout=INSTALL_SECONDS)
    if code != 0:
        text = (err or out).decode(errors="replace").strip()[-800:]
        raise HostError(
            f"`{shlex.join(argv)}` failed in the sandbox with exit code {code}: {text}",
            f"check that this host reaches {registry}; `corral doctor` tells whether its addresses are allowed",
        )


def _shortened(command: str, most: int = 100) -> str:
    return command if len(command) <= most else command[: most - 1] + "…"
