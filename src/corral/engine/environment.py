"""The environment of a sandbox's processes: trust, the gateway's addresses in place of providers', grant tokens."""

from collections.abc import Mapping, Sequence

from corral.errors import InvalidInput
from corral.model.binding import Mode
from corral.model.egress import EgressPolicy
from corral.model.git import RepoGrant
from corral.model.secrets import Provider, Secret, SecretInfo
from corral.policy.egress import Allowed, decide, split_authority
from corral.policy.placeholder import placeholders
from corral.policy.repos import rewrites

TRUST = "/run/corral/trust"
"""Where sandboxes find what they trust: read-only, and there before their first process is."""
CA_BUNDLE = f"{TRUST}/ca.pem"
GATEWAY_CERTIFICATE = "gateway.pem"
JAVA_STORE = "java.p12"
JAVA_PASSWORD = "changeit"  # noqa: S105 (what every key store of Java has)

GATEWAY = "http://gateway.corral"

_BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "NIX_SSL_CERT_FILE",
    "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
)


def trust_environment() -> dict[str, str]:
    """Variables that make every common runtime trust the bundle (G-122, G-125)."""
    store = (
        f"-Djavax.net.ssl.trustStore={TRUST}/{JAVA_STORE} -Djavax.net.ssl.trustStorePassword={JAVA_PASSWORD}"
    )
    return {**dict.fromkeys(_BUNDLE_VARIABLES, CA_BUNDLE), "JAVA_TOOL_OPTIONS": store}


def service_url(secret: str) -> str:
    """Where a sandbox reaches the API that `secret` opens, without a version suffix."""
    return f"{GATEWAY}/s/{secret}"


def git_environment(repos: Sequence[RepoGrant], egress: EgressPolicy, token: Secret) -> dict[str, str]:
    """Git's configuration, so that the repositories' usual addresses lead to the gateway, which git tells its token
    (G-239). It is nowhere in files, so that no template keeps it.
    """
    env = {"GIT_TERMINAL_PROMPT": "0"}
    if not repos:
        return env
    hosts = {one.host for one in repos}
    direct = frozenset(
        host for host in hosts if isinstance(decide(egress, *split_authority(host, 443)), Allowed)
    )
    settings = [(f"url.{new}.insteadOf", old) for new, old in rewrites(repos, direct, GATEWAY)]
    answer = f'echo username=corral; echo "password={token.reveal()}"'
    settings += [
        (f"credential.{GATEWAY}.helper", ""),  # and no other helper, which might keep it
        (f"credential.{GATEWAY}.helper", f'!f() {{ test "$1" = get && {{ {answer}; }}; }}; f'),
    ]
    for number, (key, value) in enumerate(settings):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**env, "GIT_CONFIG_COUNT": str(len(settings))}


_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# A body that is signed in pieces could not be signed again.
_AWS_PLAIN = {
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
}


def bound_environment(
    secrets: Sequence[SecretInfo], seed: Secret, variables: Mapping[str, str]
) -> dict[str, str]:
    """Placeholders of the secrets that go to hosts. `variables` names others than those of the secrets themselves."""
    env: dict[str, str] = {}
    for info in secrets:
        binding = info.binding
        if binding is None or binding.mode in (Mode.SET, Mode.CERTIFICATE):
            continue
        if binding.mode is Mode.AWS:
            env |= (
                dict(zip(_AWS, placeholders(info.name, binding, seed, binding.parts), strict=False))
                | _AWS_PLAIN
            )
        else:
            (env[variables.get(info.name, binding.variable)],) = placeholders(info.name, binding, seed, 1)
    return env


def check_whole_keys(secrets: Sequence[SecretInfo], env: Mapping[str, str]) -> None:
    """Raise InvalidInput for an environment that sets a part of what a key of AWS is and leaves the rest to a secret: what is
    signed by the one half is refused in the name of the other (G-158).
    """
    for info in secrets:
        if info.binding is None or info.binding.mode is not Mode.AWS:
            continue
        given = [name for name in _AWS if name in env]
        if given and not {*_AWS[:2]} <= {*given}:
            raise InvalidInput(
                f"{given[0]} is set beside the secret {info.name!r}, which sets the rest of a key of AWS",
                f"leave {', '.join(given)} out, or the secret",
            )


def provider_environment(secrets: Sequence[SecretInfo], token: Secret) -> dict[str, str]:
    """What the providers' SDKs read: base URLs that are the gateway's, and the grant's token in place of a key.

    Where two secrets are of one provider, the first by name is the default.
    """
    env: dict[str, str] = {}
    for info in sorted(secrets, key=lambda s: s.name):
        url = service_url(info.name)
        match info.provider:
            case Provider.ANTHROPIC:
                env.setdefault("ANTHROPIC_BASE_URL", url)
                env.setdefault("ANTHROPIC_API_KEY", token.reveal())
            case Provider.OPENAI:
                env.setdefault("OPENAI_BASE_URL", f"{url}/v1")
                env.setdefault("OPENAI_API_KEY", token.reveal())
            case Provider.GEMINI:
                env.setdefault("GOOGLE_GEMINI_BASE_URL", url)
                env.setdefault("GEMINI_API_KEY", token.reveal())
            case Provider.OPENROUTER:
                env.setdefault("OPENROUTER_BASE_URL", f"{url}/v1")
                env.setdefault("OPENROUTER_API_KEY", token.reveal())
            case Provider.GITHUB | Provider.GITLAB | Provider.GIT:
                continue
    return env
