"""What the operator of a daemon decided."""

import ipaddress
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from corral.errors import InvalidInput
from corral.host.statefile import write_state
from corral.model.approval import DEFAULT_LIMIT, DEFAULT_UNATTENDED, MAX_DEADLINE
from corral.model.budget import DEFAULT_CAP, DEFAULT_MODEL_CALLS, DEFAULT_OUTPUT
from corral.model.capacity import Resource, Rules
from corral.model.git import MAX_PACK, PushPolicy
from corral.model.grants import ModelRules
from corral.model.ids import check_name
from corral.model.sandbox import Isolation
from corral.policy.egress import canonical_host
from corral.policy.models import checked_rules, parse_alias
from corral.policy.money import parse_dollars
from corral.policy.push import MAX_RULES, parse_push_rule
from corral.policy.rates import MAX_RATE
from corral.policy.rules import rule_host

_RULES = Rules()
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?")
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_MAX_DAYS = 36_500


def usual_workers() -> int:
    """Gateway processes where nobody says how many: one for two cores, since the engine and sandboxes need some too."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // 2))


@dataclass(frozen=True, slots=True)
class Config:
    """The operator's settings.

    `networks`: private or special CIDR blocks that allowed names may resolve to. `workers`: gateway processes.
    `npm_registry`: the host from which agents are installed; empty means what npm itself is set to. `listen`: `host:port` of
    the TCP API, empty for none.
    `tls_listen`: the same by TLS, with the files `tls_cert` and `tls_key`, or a certificate of this installation's own for
    `domain`, below which sandboxes' ports have names. `dns`: the address on which these names are answered, empty for none.
    `unlimited_disk`: let sandboxes run although the store cannot limit their disk.
    `budget`: millionths of a US dollar that a sandbox without a cap of its own may spend, None for no cap. `output`: tokens
    that a model call which sets no limit may put out. `model_calls`: calls of one sandbox that may be under way.
    `approval_limit` and `approval_unattended`: seconds that a question waits at most, and where nobody listens. `webhook`:
    the URL that is told of approvals, empty for none. `asking`: whose model calls wait for more money.
    The last ones say what sandboxes may take of the host (`rules`); sizes in bytes, None for not counted or no bound.
    `checkpoints_keep` and `checkpoints_size`: how many checkpoints of a project are kept, and of how many bytes.
    `audit_keep`: days for which audit records stay in the database, None for ever; `receipts_keep`: those for
    which a sandbox that is gone is remembered.
    `requests`, `tokens`: model calls and tokens of a sandbox in a minute, None for no limit.
    `models`: patterns of models that may run in any sandbox; `aliases`: `ASKED=SENT`, for all sandboxes.
    The ones that begin with `git` say what holds for pushes of all sandboxes.
    """

    networks: tuple[str, ...] = ()
    workers: int = field(default_factory=usual_workers)
    bypass: tuple[str, ...] = ()
    npm_registry: str = ""
    listen: str = ""
    tls_listen: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    domain: str = ""
    dns: str = ""
    e2b_isolation: str = ""
    unlimited_disk: bool = False
    budget: int | None = DEFAULT_CAP
    output: int = DEFAULT_OUTPUT
    model_calls: int = DEFAULT_MODEL_CALLS
    requests: int | None = None
    tokens: int | None = None
    approval_limit: int = DEFAULT_LIMIT
    approval_unattended: int = DEFAULT_UNATTENDED
    webhook: str = ""
    asking: tuple[str, ...] = ()
    overcommit_memory: float | None = _RULES.overcommit[Resource.MEMORY]
    overcommit_cpus: float | None = None
    overcommit_disk: float | None = _RULES.overcommit[Resource.DISK]
    overcommit_pids: float | None = _RULES.overcommit[Resource.PIDS]
    reserve_memory: int = _RULES.reserve_memory
    reserve_disk: int = _RULES.reserve_disk
    tenant_sandboxes: int | None = None
    tenant_memory: int | None = None
    checkpoints_keep: int | None = None
    checkpoints_size: int | None = None
    audit_keep: int | None = None
    receipts_keep: int | None = None
    idle_pause: float = 0.0
    idle_stop: float = 0.0
    pressure_action: str = "pause"
    pressure_idle: float = 600.0

    @property
    def rules(self) -> Rules:
        """What sandboxes may take of the host."""
        factors = {
            Resource.MEMORY: self.overcommit_memory,
            Resource.CPUS: self.overcommit_cpus,
            Resource.DISK: self.overcommit_disk,
            Resource.PIDS: self.overcommit_pids,
        }
        return Rules(
            {resource: factor for resource, factor in factors.items() if factor is not None},
            self.reserve_memory,
            self.reserve_disk,
            self.tenant_sandboxes,
            self.tenant_memory,
        )

    models: tuple[str, ...] = ("*",)
    aliases: tuple[str, ...] = ()
    git_rules: tuple[str, ...] = ()
    git_authors: tuple[str, ...] = ()
    git_options: tuple[str, ...] = ()
    git_signed: bool = False
    git_pack: int = MAX_PACK

    @property
    def pushes(self) -> PushPolicy:
        """What holds for pushes of all sandboxes."""
        return PushPolicy(
            rules=tuple(map(parse_push_rule, self.git_rules)),
            options=self.git_options,
            authors=self.git_authors,
            max_pack=self.git_pack,
            signed=self.git_signed,
            wait=self.approval_limit,
        )


def _networks(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise InvalidInput("egress.networks is not a list", "give CIDR blocks, separated by commas")
    try:
        return tuple(str(ipaddress.ip_network(str(item).strip())) for item in items if str(item).strip())
    except ValueError as error:
        raise InvalidInput(f"egress.networks: {error}", "give CIDR blocks such as 10.1.0.0/16") from None


def _bypass(value: Any) -> tuple[str, ...]:
    hosts = tuple(map(rule_host, _texts("egress.bypass", value)))
    if odd := [host for host in hosts if host == "*" or "/" in host]:
        raise InvalidInput(
            f"egress.bypass cannot name {odd[0]!r}", "give hosts, or `*.DOMAIN` for those below one"
        )
    return hosts


def _host(value: Any) -> str:
    return canonical_host(str(value)) if value else ""


def _listen(value: Any) -> str:
    text = str(value)
    host, _, port = text.rpartition(":")
    if text and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise InvalidInput(
            f"the address {text[:80]!r} is not valid", "give host:port, such as 127.0.0.1:7070"
        )
    return text


def _file(value: Any) -> str:
    text = str(value)
    if text and not text.startswith("/"):
        raise InvalidInput(f"{text[:80]!r} is not an absolute path", "give the path of a file, from /")
    return text


def _isolation(value: Any) -> str:
    text = str(value)
    if text not in ("", *(item.value for item in Isolation)):
        raise InvalidInput(f"{text[:40]!r} is no isolation", f"give one of {', '.join(Isolation)}")
    return text


def _domain(value: Any) -> str:
    host = _host(value)
    if host and ("." not in host or host.startswith("*") or host[0].isdigit()):
        raise InvalidInput(
            f"the domain {host[:80]!r} is not valid", "give a name such as sandboxes.example.org"
        )
    return host


def _address(value: Any) -> str:
    try:
        return str(ipaddress.IPv4Address(str(value))) if value else ""
    except ValueError:
        raise InvalidInput(f"{str(value)[:80]!r} is not an IPv4 address", "give one of this host") from None


def _url(value: Any) -> str:
    text = str(value).strip()
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
    except ValueError:
        sound = False
    if not sound or not text.isprintable() or len(text) > 2000:
        raise InvalidInput("approvals.webhook is not a URL", "give https://HOST/PATH, without a user")
    return text


def _asking(value: Any) -> tuple[str, ...]:
    """`*` for all, `TENANT` or `TENANT/SANDBOX`; from a list, or from text with commas, `true` or `false`."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        items = [str(value).lower()]
    named = [str(item).strip() for item in items if str(item).strip() not in ("", "false")]
    if "true" in named or "*" in named:
        return ("*",)
    for item in named:
        for part in item.split("/", 1):
            check_name(part, "approvals.budget:")
    return tuple(named)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in ("true", "false"):
        raise InvalidInput(f"{str(value)[:80]!r} is neither true nor false", "give true or false")
    return str(value).lower() == "true"


def _budget(value: Any) -> int | None:
    """US dollars, or `none`; taken back by an empty value. In the file and in answers it is text, as it was given."""
    text = str(value).strip().lower()
    if text in ("", "default"):
        return DEFAULT_CAP
    return None if text == "none" else parse_dollars(text)


def _budget_text(cap: Any) -> str:
    return "none" if cap is None else f"{Decimal(cap) / 1_000_000:f}"


def _number(name: str, default: int, most: int, least: int = 1) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        text = str(value).strip()
        if text == "":
            return default
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise InvalidInput(
                f"{name} {text[:40]!r} is not valid", f"give a whole number from {least} to {most}"
            )
        return int(text)

    return parse


def _factor(name: str, default: float | None) -> Callable[[Any], float | None]:
    def parse(value: Any) -> float | None:
        text = str(value).strip().lower()
        if text in ("", "default"):
            return default
        if text == "none":
            return None
        try:
            factor = float(text)
        except ValueError:
            factor = 0.0
        if not 1 <= factor <= 1_000_000:
            raise InvalidInput(
                f"{name} {text[:40]!r} is not valid",
                "give by how much limits may exceed what there is, from 1; or `none` not to count them",
            )
        return factor

    return parse


def _size(name: str, default: int | None) -> Callable[[Any], int | None]:
    def parse(value: Any) -> int | None:
        text = str(value).strip().lower()
        if text in ("", "default"):
            return default
        if text == "none" and default is None:
            return None
        found = _SIZE.fullmatch(text)
        if found is None or float(found[1]) * _UNITS[found[2]] > 1 << 60:
            raise InvalidInput(f"{name} {text[:40]!r} is not a size", "give bytes, or a size such as 2G")
        return int(float(found[1]) * _UNITS[found[2]])

    return parse


def _count(name: str, most: int = 1_000_000) -> Callable[[Any], int | None]:
    number = _number(name, 0, most)
    return lambda value: None if str(value).strip().lower() in ("none", "default", "") else number(value)


def _time(name: str, default: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        text = str(value).strip().lower()
        if text in ("", "default"):
            return default
        found = _TIME.fullmatch(text)
        if found is None or float(found[1]) * _SECONDS[found[2]] > 365 * 86400:
            raise InvalidInput(
                f"{name} {text[:40]!r} is not a time", "give seconds, or a time such as 30m; 0 for never"
            )
        return float(found[1]) * _SECONDS[found[2]]

    return parse


def _pressure(value: Any) -> str:
    text = str(value).strip().lower() or "pause"
    if text not in ("none", "pause", "stop"):
        raise InvalidInput(f"pressure.action {text[:40]!r} is not valid", "give pause, stop or none")
    return text


def _or_none(value: Any) -> Any:
    return "none" if value is None else value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise InvalidInput(f"{name} is not a list", "give texts, separated by commas")
    return tuple(str(item).strip() for item in items if str(item).strip())


def _push_rules(value: Any) -> tuple[str, ...]:
    found = _texts("git.rules", value)
    if len(found) > MAX_RULES:
        raise InvalidInput(f"{len(found)} push rules are too many", f"give at most {MAX_RULES}")
    for rule in found:
        parse_push_rule(rule)
    return found


def _pack(value: Any) -> int:
    return _size("git.pack", MAX_PACK)(value) or MAX_PACK


def _models(value: Any) -> tuple[str, ...]:
    return checked_rules(ModelRules(_texts("models.allow", value) or ("*",))).allow


def _aliases(value: Any) -> tuple[str, ...]:
    found = _texts("models.aliases", value)
    checked_rules(ModelRules(aliases=tuple(map(parse_alias, found))))
    return found


def _rate(name: str) -> Callable[[Any], int | None]:
    number = _number(name, 1, MAX_RATE)

    def parse(value: Any) -> int | None:
        return None if str(value).strip().lower() in ("", "none") else number(value)

    return parse


_SETTINGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "egress.networks": ("networks", _networks),
    "gateway.workers": ("workers", _number("gateway.workers", usual_workers(), 16)),
    "egress.bypass": ("bypass", _bypass),
    "registries.npm": ("npm_registry", _host),
    "api.listen": ("listen", _listen),
    "tls.listen": ("tls_listen", _listen),
    "tls.cert": ("tls_cert", _file),
    "tls.key": ("tls_key", _file),
    "api.domain": ("domain", _domain),
    "api.dns": ("dns", _address),
    "e2b.isolation": ("e2b_isolation", _isolation),
    "store.unlimited": ("unlimited_disk", _flag),
    "budget.sandbox": ("budget", _budget),
    "budget.output": ("output", _number("budget.output", DEFAULT_OUTPUT, 1_000_000)),
    "models.allow": ("models", _models),
    "models.aliases": ("aliases", _aliases),
    "git.rules": ("git_rules", _push_rules),
    "git.authors": ("git_authors", lambda value: _texts("git.authors", value)),
    "git.options": ("git_options", lambda value: _texts("git.options", value)),
    "git.signed": ("git_signed", _flag),
    "git.pack": ("git_pack", _pack),
    "limits.requests": ("requests", _rate("limits.requests")),
    "limits.tokens": ("tokens", _rate("limits.tokens")),
    "limits.calls": ("model_calls", _number("limits.calls", DEFAULT_MODEL_CALLS, 1024)),
    "overcommit.memory": (
        "overcommit_memory",
        _factor("overcommit.memory", _RULES.overcommit[Resource.MEMORY]),
    ),
    "overcommit.cpus": ("overcommit_cpus", _factor("overcommit.cpus", None)),
    "overcommit.disk": ("overcommit_disk", _factor("overcommit.disk", _RULES.overcommit[Resource.DISK])),
    "overcommit.pids": ("overcommit_pids", _factor("overcommit.pids", _RULES.overcommit[Resource.PIDS])),
    "reserve.memory": ("reserve_memory", _size("reserve.memory", _RULES.reserve_memory)),
    "reserve.disk": ("reserve_disk", _size("reserve.disk", _RULES.reserve_disk)),
    "tenant.sandboxes": ("tenant_sandboxes", _count("tenant.sandboxes")),
    "idle.pause": ("idle_pause", _time("idle.pause", 0.0)),
    "idle.stop": ("idle_stop", _time("idle.stop", 0.0)),
    "pressure.action": ("pressure_action", _pressure),
    "pressure.idle": ("pressure_idle", _time("pressure.idle", 600.0)),
    "checkpoints.keep": ("checkpoints_keep", _count("checkpoints.keep")),
    "checkpoints.size": ("checkpoints_size", _size("checkpoints.size", None)),
    "audit.keep": ("audit_keep", _count("audit.keep", _MAX_DAYS)),
    "receipts.keep": ("receipts_keep", _count("receipts.keep", _MAX_DAYS)),
    "tenant.memory": ("tenant_memory", _size("tenant.memory", None)),
    "approvals.deadline": ("approval_limit", _number("approvals.deadline", DEFAULT_LIMIT, MAX_DEADLINE)),
    "approvals.unattended": (
        "approval_unattended",
        _number("approvals.unattended", DEFAULT_UNATTENDED, MAX_DEADLINE, least=0),
    ),
    "approvals.webhook": ("webhook", _url),
    "approvals.budget": ("asking", _asking),
}
_NONE = (
    "limits.requests",
    "limits.tokens",
    "overcommit.memory",
    "overcommit.cpus",
    "overcommit.disk",
    "overcommit.pids",
    "tenant.sandboxes",
    "tenant.memory",
    "checkpoints.keep",
    "checkpoints.size",
    "audit.keep",
    "receipts.keep",
)
_SHOWN: dict[str, Callable[[Any], Any]] = {"budget.sandbox": _budget_text, **dict.fromkeys(_NONE, _or_none)}


class ConfigFile:
    """`config.json` of the data directory: what was set, so that other settings follow their defaults. Unreadable or unknown
    content refuses: nothing is guessed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chosen: frozenset[str] = frozenset()
        self.value = self._read()

    def get(self) -> dict[str, Any]:
        """All settings by key."""
        values = {key: getattr(self.value, field) for key, (field, _) in _SETTINGS.items()}
        return {key: _SHOWN[key](value) if key in _SHOWN else value for key, value in values.items()}

    def told(self, key: str) -> dict[str, str]:
        """A setting as the audit log is told of it: the path of a webhook's address may be a credential."""
        value = self.get()[key]
        if key == "approvals.webhook":
            value = urlsplit(str(value)).hostname or "none"
        return {"key": key, "value": str(value)[:1000]}

    def set(self, key: str, value: Any) -> None:
        """Check and store one setting. Raises InvalidInput for an unknown key or a bad value."""
        changed = self._with(self.value, key, value)
        former = self.value, self._chosen
        self.value, self._chosen = changed, self._chosen | {key}
        try:
            self._write()
        except OSError:
            self.value, self._chosen = former
            raise

    def _read(self) -> Config:
        config = Config()
        if not self._path.exists():
            return config
        try:
            items = json.loads(self._path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{self._path} cannot be read: {error}", "mend or remove the file") from error
        if not isinstance(items, dict):
            raise InvalidInput(f"{self._path} is not a JSON object", "mend or remove the file")
        for key, value in items.items():
            config = self._with(config, key, value)
        self._chosen = frozenset(items)
        return config

    @staticmethod
    def _with(config: Config, key: str, value: Any) -> Config:
        if key not in _SETTINGS:
            raise InvalidInput(
                f"there is no setting {key[:80]!r}", f"settings: {', '.join(sorted(_SETTINGS))}"
            )
        field, parse = _SETTINGS[key]
        return replace(config, **{field: parse(value)})

    def _write(self) -> None:
        chosen = {key: value for key, value in self.get().items() if key in self._chosen}
        write_state(self._path, json.dumps(chosen, indent=2).encode() + b"\n")
