"""A `corral.toml` for a repository, from the files that are seen at its top. No I/O.

Texts of the repository are anybody's: what is taken over from them is quoted as TOML, and nothing of it is run here.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corral.model.project import MAX_SCRIPT
from corral.policy.composed import composed

DEVCONTAINER = (".devcontainer/devcontainer.json", ".devcontainer.json")
COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
SEEN = (
    *("package.json", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock"),
    *("pyproject.toml", "requirements.txt", "uv.lock", "poetry.lock", "setup.py"),
    *(
        "Cargo.toml",
        "Cargo.lock",
        "go.mod",
        "go.sum",
        "pom.xml",
        "mvnw",
        "build.gradle",
        "build.gradle.kts",
        "gradle.lockfile",
        "gradlew",
    ),
    *("Gemfile.lock", "Dockerfile", *DEVCONTAINER, *COMPOSE),
)
"""Files that `suggest` wants to know of."""
MAX_TEXT = 256 * 1024
MAX_FEATURES = 20


@dataclass(slots=True)
class _Suggestion:
    """What was found. `lacking` are packages that the base has not, by what they are for; `needs` are comments on more."""

    steps: list[tuple[str, list[str]]] = field(default_factory=list)
    allow: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    services: list[tuple[str, str, int | None]] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)
    needs: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def add(self, what: str, run: str, files: Iterable[str], allow: str) -> None:
        self.seen.append(what)
        self.steps.append((run, list(files)))
        if allow not in self.allow:
            self.allow.append(allow)


def suggest(files: Mapping[str, str]) -> str:
    """The text of a `corral.toml`. `files`: texts of those of `SEEN` that are there, by path."""
    found = _Suggestion()
    for look in (_node, _python, _rust, _go, _java, _devcontainer, _compose, _dockerfile):
        look(files, found)
    return _written(found)


# -- what is seen ---------------------------------------------------------------------------------------------------


def _node(files: Mapping[str, str], found: _Suggestion) -> None:
    if "package.json" not in files:
        return
    locks: tuple[tuple[str, str], ...] = (
        ("pnpm-lock.yaml", "corepack pnpm install --frozen-lockfile"),
        ("yarn.lock", "corepack yarn install --immutable || corepack yarn install --frozen-lockfile"),
        ("npm-shrinkwrap.json", "npm ci"),
        ("package-lock.json", "npm ci"),
    )
    for lock, command in locks:
        if lock in files:
            found.add(f"Node ({lock})", command, ("package.json", lock), "@npm")
            break
    else:
        found.add("Node (no lock file)", "npm install", ("package.json",), "@npm")
    scripts = _object(_json(files["package.json"]).get("scripts"))
    if isinstance(scripts.get("dev"), str):
        found.services.append(("dev", "npm run dev", _port(scripts["dev"])))


def _python(files: Mapping[str, str], found: _Suggestion) -> None:
    venv = "python3 -m venv .venv && .venv/bin/pip install"
    if "uv.lock" in files:
        run = f"{venv} uv && .venv/bin/uv sync --frozen --inexact"
        found.add("Python (uv.lock)", run, ("pyproject.toml", "uv.lock"), "@pypi")
    elif "poetry.lock" in files:
        run = (
            "python3 -m venv ~/.poetry && ~/.poetry/bin/pip install poetry && "
            "POETRY_VIRTUALENVS_IN_PROJECT=true ~/.poetry/bin/poetry install"
        )
        found.add("Python (poetry.lock)", run, ("pyproject.toml", "poetry.lock"), "@pypi")
    elif "requirements.txt" in files:
        found.add("Python (requirements.txt)", f"{venv} -r requirements.txt", ("requirements.txt",), "@pypi")
    elif "pyproject.toml" in files and "project" in _toml(files["pyproject.toml"]):
        found.add("Python (pyproject.toml)", f"{venv} -e .", ("pyproject.toml",), "@pypi")
    elif "setup.py" in files:
        found.add("Python (setup.py)", f"{venv} -e .", ("setup.py",), "@pypi")


def _rust(files: Mapping[str, str], found: _Suggestion) -> None:
    if "Cargo.toml" in files:
        lock = ("Cargo.lock",) if "Cargo.lock" in files else ()
        locked = " --locked" if lock else ""
        found.add("Rust (Cargo.toml)", f"cargo fetch{locked}", ("Cargo.toml", *lock), "@crates")
        found.lacking["Rust"] = "cargo rustc"


def _go(files: Mapping[str, str], found: _Suggestion) -> None:
    if "go.mod" in files:
        sums = ("go.sum",) if "go.sum" in files else ()
        found.add("Go (go.mod)", "go mod download", ("go.mod", *sums), "@go")
        found.lacking["Go"] = "golang"


def _java(files: Mapping[str, str], found: _Suggestion) -> None:
    gradle = next((name for name in ("build.gradle", "build.gradle.kts") if name in files), None)
    if "pom.xml" in files:
        run = f"{'./mvnw' if 'mvnw' in files else 'mvn'} --batch-mode dependency:go-offline"
        found.add("Java (pom.xml)", run, ("pom.xml",), "@maven")
        found.lacking["Java"] = "default-jdk-headless" + ("" if "mvnw" in files else " maven")
    elif gradle is not None:
        run = f"{'./gradlew' if 'gradlew' in files else 'gradle'} --no-daemon dependencies"
        lock = ("gradle.lockfile",) if "gradle.lockfile" in files else ()
        found.add(f"Java ({gradle})", run, (gradle, *lock), "@gradle")
        found.lacking["Java"] = "default-jdk-headless" + ("" if "gradlew" in files else " gradle")


def _devcontainer(files: Mapping[str, str], found: _Suggestion) -> None:
    name = next((name for name in DEVCONTAINER if name in files), None)
    if name is None:
        return
    document = _json(_without_comments(files[name]))
    found.seen.append(name)
    if isinstance(image := document.get("image"), str):
        found.needs.append(
            f"the devcontainer starts from {_one_line(image)}: `corral template build NAME --image {_one_line(image)}`,\n"
            '# then `template = "NAME"` below'
        )
    build = _object(document.get("build"))
    file = build.get("dockerfile", document.get("dockerFile"))
    if isinstance(file, str):
        where = _one_line(f"{name.rpartition('/')[0] or '.'}/{file}")
        found.needs.append(
            f"the devcontainer is built from {where}: `corral template build NAME -f {where} --context .`,\n"
            '# then `template = "NAME"` below'
        )
    for feature in list(_object(document.get("features")))[:MAX_FEATURES]:
        found.needs.append(
            f"the devcontainer has the feature {_one_line(feature)}: install what it is in a template"
        )
    for key in ("onCreateCommand", "updateContentCommand", "postCreateCommand"):
        for command in _commands(document.get(key)):
            found.steps.append((command, []))
    for key in ("containerEnv", "remoteEnv"):
        for variable, value in _object(document.get(key)).items():
            if (
                re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable)
                and isinstance(value, str)
                and "${" not in value
            ):
                found.env[variable] = value
    ports = document.get("forwardPorts")
    for port in ports if isinstance(ports, list) else []:
        if isinstance(port, int) and not isinstance(port, bool):
            found.needs.append(f"the devcontainer forwards port {port}")


def _compose(files: Mapping[str, str], found: _Suggestion) -> None:
    name = next((name for name in COMPOSE if name in files), None)
    if name is None:
        return
    found.seen.append(name)
    for service in composed(files[name][:MAX_TEXT]):
        what = f"the service {service.name}{f' from {service.image}' if service.image else ''}"
        if service.packaged is None:
            found.needs.append(
                f"{name} has {what}: a sandbox has no container engine in it;\n"
                "# install what it is in a template (docs/templates.md), and start it as a [service] below"
            )
        else:
            found.lacking[what] = service.packaged.packages
            found.services.append((service.name, service.packaged.run, service.packaged.port))


def _dockerfile(files: Mapping[str, str], found: _Suggestion) -> None:
    if "Dockerfile" in files:
        found.needs.append(
            "there is a Dockerfile: `corral template build NAME --context .` makes a template of it,\n"
            '# then `template = "NAME"` below'
        )


def _built(lacking: Mapping[str, str]) -> str:
    packages = " ".join(dict.fromkeys(" ".join(lacking.values()).split()))
    return (
        f"the base has not: {', '.join(lacking)}. Build a template with it, such as\n"
        f'#   printf "FROM base\\nRUN apt-get update && apt-get install -y {packages}\\n" |\n'
        "#     corral template build dev -f - --allow @debian\n"
        '# then `template = "dev"` below'
    )


# -- reading --------------------------------------------------------------------------------------------------------


def _json(text: str) -> Mapping[str, Any]:
    try:
        return _object(json.loads(text[:MAX_TEXT]))
    except (ValueError, RecursionError):
        return {}


def _toml(text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text[:MAX_TEXT])
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _without_comments(text: str) -> str:
    """JSON with comments and trailing commas, as editors write it, as JSON."""
    token = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    plain = token.sub(lambda found: found[0] if found[0].startswith('"') else " ", text[:MAX_TEXT])
    trailing = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])')
    return trailing.sub(lambda found: found[0] if found[0].startswith('"') else "", plain)


def _commands(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = " ".join(_shell_word(word) for word in value)
    if isinstance(value, str):
        return [value] if value.strip() and "\0" not in value and len(value) <= MAX_SCRIPT else []
    return [command for part in _object(value).values() for command in _commands(part)]


def _shell_word(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else "'" + word.replace("'", "'\"'\"'") + "'"


def _port(text: str) -> int | None:
    match = re.search(r"(?:--port|-p|PORT=)[ =]?([0-9]{2,5})\b", text)
    return int(match[1]) if match and 0 < int(match[1]) < 65536 else None


def _one_line(text: str) -> str:
    return re.sub(r"[^\w./:@-]", "", text)[:200]


# -- writing --------------------------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are a part of TOML's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _listed(items: Iterable[str]) -> str:
    return f"[{', '.join(_quoted(item) for item in items)}]"


def _section(write: Callable[[str], None], found: _Suggestion) -> None:
    write("[setup]" if found.steps else "# [setup]")
    if found.allow:
        write("# What its steps may reach; sandboxes made later may not, unless [policy] says so.")
        write(f"allow = {_listed(found.allow)}")
    elif found.steps:
        write('# allow = ["@npm", "@pypi", "example.org"]')
    write("# Start from the former setup while it is being done again:" if found.steps else "")
    write("# serve-stale = true\n" if found.steps else '# allow = ["@npm"]\n')
    for run, names in found.steps:
        write("[[setup.step]]")
        write(f"run = {_quoted(run)}")
        if names:
            write(f"files = {_listed(names)}   # done again when one of them changes")
        write("")


def _written(found: _Suggestion) -> str:
    lines: list[str] = []
    write = lines.append
    write(
        "# What Corral's sandboxes for this repository are like: `corral create --repo .`, `corral run AGENT … --repo .`."
    )
    write(f"# Written by `corral init`, which saw: {', '.join(found.seen) or 'nothing that it knows'}.\n")
    for need in (*([_built(found.lacking)] if found.lacking else ()), *found.needs):
        write(f"# Note: {need}.")
    write('\n# template = "base"            # Default: the agent\'s, or base.')
    write('# isolation = "gvisor"         # Default: container.')
    write(
        '# carry = [".gitconfig"]       # Files of your home for the sandbox: settings, never credentials.\n'
    )
    write("[env]" if found.env else "# [env]")
    for key, value in found.env.items():
        write(f"{key} = {_quoted(value)}")
    write('\n# [limits]\n# memory = "4G"\n# cpus = 2\n')
    write("# What sandboxes may reach and use. A person agrees to it once, and again when it changes.")
    write('# [policy]\n# allow = ["@github"]\n# secrets = ["anthropic"]\n')
    write("# Done once, and kept: what git ignores here stays (dependencies, build results).")
    _section(write, found)
    for name, run, port in found.services:
        write("# Runs in each sandbox from its start.")
        write(f"# [service.{name}]\n# run = {_quoted(run)}")
        write(f"# port = {port or 3000}   # ready once something listens there\n")
    return "\n".join(lines) + "\n"
