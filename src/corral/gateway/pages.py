"""What a sandbox can read about its own network: http://gateway.corral/, /policy and /denials (G-315, G-318)."""

from collections.abc import Mapping

from aiohttp import web

from corral.gateway.box import Box
from corral.gateway.replies import page, plain
from corral.gateway.vault import Credential
from corral.model.egress import HostRule
from corral.model.secrets import Provider
from corral.policy.egress import GATEWAY_HOST
from corral.wire.link import SecretSpec

_BASE = f"http://{GATEWAY_HOST}"

WELCOME = f"""This is the gateway of a Corral sandbox. It is the only way out of the sandbox.

{_BASE}/policy    what this sandbox may reach
{_BASE}/denials   what it was refused lately, and why
{_BASE}/s/NAME    a model API; the key is on the host, the sandbox's token stands for it
{_BASE}/git/HOST/OWNER/NAME  a git repository; git is set up here to use it for https://HOST/OWNER/NAME
{_BASE}/ask       how to ask for more: `corral-ask host api.example.com "why"`, `corral-ask budget 5 "why"`

Everything else is refused at once, and says why. A person answers what you ask for while you wait.
"""


def serve(box: Box, path: str, secrets: Mapping[str, Credential]) -> web.Response:
    """The page at `path`."""
    if path == "/":
        return plain(200, WELCOME)
    if path == "/policy":
        return page(policy(box, secrets))
    if path == "/denials":
        return page(denials(box))
    return plain(404, f"There is no page {path[:200]} here. See {_BASE}/", reason="not-found")


def policy(box: Box, secrets: Mapping[str, Credential]) -> dict[str, object]:
    """The sanitised policy: hosts and ports, and the model APIs that the grant covers."""
    return {
        "default": "deny",
        "allowed": [_shown(rule) for rule in box.policy.allowing],
        "denied": [_shown(rule) for rule in box.policy.denying],
        "model_apis": [
            {"name": name, "api": found.spec.provider.value, "base_url": base_url(found.spec)}
            for name, found in sorted(secrets.items())
            if found.spec.provider.is_model
        ],
        "repositories": [{"name": one.name, "access": one.access.value} for one in box.repos],
    }


def _shown(rule: HostRule) -> dict[str, object]:
    return {"host": rule.host, "ports": list(rule.ports)}


def base_url(spec: SecretSpec) -> str:
    """The base URL that SDKs of the provider want."""
    suffix = "/v1" if spec.provider in (Provider.OPENAI, Provider.OPENROUTER) else ""
    return f"{_BASE}/s/{spec.name}{suffix}"


def denials(box: Box) -> dict[str, object]:
    """The latest refusals, newest first."""
    return {
        "denials": [
            {
                "at": item.at.isoformat(timespec="milliseconds"),
                "service": item.kind,
                "host": item.host,
                "port": item.port,
                "reason": item.message,
                "rule": item.reason,
                "how_to_allow": item.how_to_allow,
            }
            for item in reversed(box.audit.denials)
        ]
    }
