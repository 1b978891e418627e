"""`corral.toml`: what a repository says of the sandboxes that are made for it. Read from its text, without I/O.

```toml
template = "base"                 # what to start from; default: the agent's, or base
isolation = "container"

[env]                             # variables of every process
NODE_ENV = "development"

[limits]
memory = "4G"
cpus = 2

[policy]                          # asks; a person agrees to them once
allow = ["registry.npmjs.org"]
secrets = ["anthropic"]
deny = ["gist.github.com"]        # what follows only tightens, and needs nobody's consent
push = ["deny:main"]
budget = 5

[setup]                           # done once, and kept as long as its files stay as they are
allow = ["registry.npmjs.org"]    # for setup alone
serve-stale = true                # start from the former one while a new one is made

[[setup.step]]
run = "npm ci"
files = ["package.json", "package-lock.json"]

[service.web]                     # runs in each sandbox from its start
run = "npm run dev"
port = 3000                       # ready once something listens there; or: ready = "command"
```

The file comes with the repository, so it may be anybody's. What it runs, it runs in a sandbox. What would open something
to that sandbox (hosts, secrets, files of the user) is in `Project.asks`, for a person to agree to.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corral.errors import InvalidInput
from corral.model.ids import check_env, check_name, check_template_name, check_user
from corral.model.sandbox import Isolation
from corral.model.service import MAX_SERVICES, Service

FILE = "corral.toml"
MAX_FILE = 64 * 1024
MAX_STEPS = 50
MAX_PATTERNS = 50
MAX_SCRIPT = 16 * 1024
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class SetupStep:
    """A script for the shell, run in the repository. `files` are patterns of git for the files that decide what it does:
    it is done again when one of them changes. Without any it is done again when its own text changes."""

    run: str
    files: tuple[str, ...] = ()
    user: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is done once for a repository, under the name `name`. `allow`: hosts that its steps may reach.
    `serve_stale`: while it is being done again, sandboxes start from what it was before."""

    name: str
    steps: tuple[SetupStep, ...]
    allow: tuple[str, ...] = ()
    serve_stale: bool = False

    def checked(self) -> "Setup":
        """Itself, or raise InvalidInput naming what is wrong."""
        check_name(self.name, "project name")
        if not 0 < len(self.steps) <= MAX_STEPS:
            raise InvalidInput(f"a setup of {len(self.steps)} steps is not possible", f"use 1 to {MAX_STEPS}")
        for step in self.steps:
            if not step.run.strip() or "\0" in step.run or len(step.run) > MAX_SCRIPT:
                raise InvalidInput(
                    "a step of the setup has no command, or a very long one", "give it in `run`"
                )
            if len(step.files) > MAX_PATTERNS or any(not _is_pattern(pattern) for pattern in step.files):
                raise InvalidInput(
                    "the files of a setup step are not valid",
                    "name paths or patterns below the repository's top",
                )
            if step.user:
                check_user(step.user)
        return self


def _is_pattern(text: str) -> bool:
    return bool(text) and text.isprintable() and len(text) <= 1000 and not text.startswith((":", "/", "-"))


MAX_DOLLARS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Project:
    """A repository's file, read and checked. `limits` holds only what was given, as `Limits` has it.

    `deny`, `push` (rules that deny) and `budget` (at most so many millionths of a US dollar) can only tighten what holds
    anyway (G-13).
    """

    template: str | None = None
    isolation: Isolation | None = None
    env: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    carry: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    push: tuple[str, ...] = ()
    budget: int | None = None
    setup: Setup | None = None
    services: tuple[Service, ...] = ()

    @property
    def asks(self) -> tuple[str, ...]:
        """What it wants opened, in words, sorted: it needs a person's consent, since the file came with the repository."""
        setup = self.setup.allow if self.setup else ()
        return tuple(
            sorted(
                {
                    *(f"reach {host}" for host in self.allow),
                    *(f"reach {host} during setup" for host in setup if host not in self.allow),
                    *(f"use the secret {name}" for name in self.secrets),
                    *(f"get ~/{path} of yours" for path in self.carry),
                }
            )
        )


def parse_project(text: str, name: str) -> Project:
    """The project of a file's text; `name` is what its setup is known by. Raises InvalidInput that names the place."""
    if len(text) > MAX_FILE:
        raise _wrong(f"it is larger than {MAX_FILE} characters")
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _wrong(str(error)[:200]) from None
    table = _Table(document, "")
    template = table.take("template", str)
    isolation = table.take("isolation", str)
    project = Project(
        template=None if template is None else check_template_name(template),
        isolation=None if isolation is None else _isolation(isolation),
        env=_env(table.table("env")),
        limits=_limits(table.table("limits")),
        carry=tuple(_carried(path) for path in table.texts("carry")),
        setup=_setup(table.table("setup"), name),
        services=_services(table.table("service")),
        **_policy(table.table("policy")),
    )
    table.end()
    return project


class _Table:
    """A table of the file, of which each key is taken once; what is left is not known."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._left = dict(values)
        self._place = place

    def take(self, key: str, kind: type | tuple[type, ...]) -> Any:
        value = self._left.pop(key, None)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)):
            raise _wrong(f"{self._at(key)} has a wrong type")
        return value

    def table(self, key: str) -> "_Table":
        return _Table(self.take(key, dict) or {}, self._at(key))

    def tables(self, key: str) -> list["_Table"]:
        found = self.take(key, list) or []
        if not all(isinstance(item, dict) for item in found):
            raise _wrong(f"{self._at(key)} is no list of tables", f"write [[{self._at(key)}]]")
        return [_Table(item, self._at(key)) for item in found]

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.take(key, list) or []
        if not all(isinstance(item, str) for item in found):
            raise _wrong(f"{self._at(key)} is no list of texts", f'write {key} = ["…"]')
        return tuple(found)

    def keys(self) -> list[str]:
        return list(self._left)

    def end(self) -> None:
        if self._left:
            raise _wrong(f"there is no {self._at(min(self._left))[:80]}", "see docs/projects.md")

    def _at(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key


def _isolation(text: str) -> Isolation:
    try:
        return Isolation(text)
    except ValueError:
        raise _wrong(f"isolation {text[:40]!r} is not known", f"use {' or '.join(Isolation)}") from None


def _env(table: _Table) -> dict[str, str]:
    return check_env({key: str(table.take(key, (str, int, float))) for key in table.keys()})  # noqa: SIM118


def _limits(table: _Table) -> dict[str, float]:
    found: dict[str, float] = {}
    for key in ("memory", "disk"):
        value = table.take(key, (str, int))
        if value is not None:
            found[key] = value if isinstance(value, int) else _size(value)
    for key in ("cpus", "pids"):
        value = table.take(key, (int, float))
        if value is not None:
            found[key] = value
    table.end()
    return found


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _wrong(f"{text[:40]!r} is not a size", "write for example 512M or 4G")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _policy(table: _Table) -> dict[str, Any]:
    found: dict[str, Any] = {
        "allow": table.texts("allow"),
        "secrets": tuple(check_name(name, "secret name") for name in table.texts("secrets")),
        "deny": table.texts("deny"),
        "push": tuple(_denying(rule) for rule in table.texts("push")),
        "budget": _budget(table.take("budget", (int, float))),
    }
    table.end()
    return found


def _denying(rule: str) -> str:
    if not rule.startswith("deny:"):
        raise _wrong(
            f"policy.push: {rule[:40]!r} does not deny",
            "a repository's file can only tighten: write deny:PATTERN",
        )
    return rule


def _budget(dollars: float | None) -> int | None:
    """Millionths of a US dollar."""
    if dollars is None:
        return None
    if not 0 <= dollars <= MAX_DOLLARS:
        raise _wrong("policy.budget is out of range", f"give US dollars, 0 to {MAX_DOLLARS}")
    return int(dollars * 1_000_000)


def _setup(table: _Table, name: str) -> Setup | None:
    steps = tuple(_step(item) for item in table.tables("step"))
    allow = table.texts("allow")
    stale = bool(table.take("serve-stale", bool))
    table.end()
    return Setup(name, steps, allow, stale).checked() if steps else None


def _step(table: _Table) -> SetupStep:
    step = SetupStep(table.take("run", str) or "", table.texts("files"), table.take("user", str) or "")
    table.end()
    return step


def _services(table: _Table) -> tuple[Service, ...]:
    names = table.keys()
    if len(names) > MAX_SERVICES:
        raise _wrong(f"{len(names)} services are too many", f"use at most {MAX_SERVICES}")
    return tuple(_service(name, table.table(name)) for name in names)


def _service(name: str, table: _Table) -> Service:
    port = table.take("port", int)
    ready = table.take("ready", str)
    if port is not None and not 0 < port < 65536:
        raise _wrong(f"service.{name}.port is out of range", "use 1 to 65535")
    service = Service(
        name=name,
        command=("/bin/sh", "-c", table.take("run", str) or ""),
        ready=_by_shell(ready) if ready else listening(port) if port else (),
        user=table.take("user", str) or "",
        env=_env(table.table("env")),
        patience=float(table.take("patience", (int, float)) or 120),
    )
    table.end()
    if not service.command[2].strip():
        raise _wrong(f"service.{name} has no `run`")
    return service.checked()


def _by_shell(text: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", text)


def listening(port: int) -> tuple[str, ...]:
    """A command that succeeds once something in the sandbox listens on a TCP port. It reads the kernel's own table, so
    the image needs a shell and grep, and nothing is connected to."""
    return _by_shell(
        f"grep -qiE '^ *[0-9]+: [0-9A-F]+:{port:04X} [0-9A-F]+:0000 0A' /proc/net/tcp /proc/net/tcp6"
    )


_REFUSED = re.compile(
    r"(?:^|/)(?:\.ssh|\.gnupg|\.aws|\.kube|\.docker|\.netrc|\.npmrc|\.pypirc|\.git-credentials|\.config/gh|\.config/gcloud|\.azure"
    r"|\.password-store|\.local/share/keyrings)(?:/|$)"
)


def _carried(path: str) -> str:
    clean = path.removeprefix("~/")
    parts = clean.split("/")
    if not clean or clean.startswith("/") or ".." in parts or not clean.isprintable() or len(clean) > 500:
        raise _wrong(f"carry {path[:80]!r} is no path below your home")
    if _REFUSED.search(clean):
        raise _wrong(
            f"carry {path[:80]!r} holds credentials, which never enter a sandbox", "use `corral secret add`"
        )
    return clean


def _wrong(what: str, hint: str = "see docs/projects.md") -> InvalidInput:
    return InvalidInput(f"{FILE}: {what}", hint)
