"""A repository's `corral.toml`: found, agreed to, and made into the options of a create."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from corral.errors import Forbidden, InvalidInput
from corral.model.project import FILE, MAX_FILE, Project, Setup, parse_project
from corral.model.service import Service
from corral.sdk.contexts import Context

Consent = Callable[[tuple[str, ...]], bool]
"""Asked whether a project may have what it asks for, line by line."""

_SECRETIVE = (
    *("**/*credential*", "**/*secret*", "**/*token*", "**/auth.json", "**/.env", "**/.env.*"),
    *("**/*.pem", "**/*.key", "**/id_rsa*", "**/id_ed25519*", "**/*history*", "**/*.sqlite*"),
)
"""Names that are not carried from a home: they may hold what must not enter a sandbox."""


def find_project(repo: Path | str) -> tuple[Path, Project] | None:
    """The top of the repository at or above `repo`, and its project; None without a repository or a file there.

    Raises InvalidInput for a file that is malformed.
    """
    top = _top(Path(repo).expanduser().resolve())
    if top is None or not (top / FILE).is_file():
        return None
    try:
        with (top / FILE).open("rb") as file:
            text = file.read(MAX_FILE + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{top / FILE} cannot be read: {error}", "see its mode and encoding") from None
    return top, parse_project(text, project_name(top))


def project_name(top: Path) -> str:
    """What a repository's setup is known by: made of its directory's name."""
    name = re.sub(r"[^a-z0-9]+", "-", top.name.lower()).strip("-")[:40].strip("-")
    return name or "project"


def _top(path: Path) -> Path | None:
    return next((place for place in (path, *path.parents) if (place / ".git").exists()), None)


def create_options(project: Project, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `Client.create_sandbox` from a project and what was `given`, which wins; lists are joined."""
    merged = dict(given)
    for key, value in (("template", project.template), ("isolation", project.isolation)):
        if merged.get(key) is None and value is not None:
            merged[key] = value
    merged["env"] = {**project.env, **(given.get("env") or {})} or None
    merged["limits"] = {**project.limits, **(given.get("limits") or {})} or None
    merged["allow"] = tuple(dict.fromkeys((*project.allow, *(given.get("allow") or ()))))
    for key, own in (("deny", project.deny), ("push_rules", project.push)):
        if own:
            merged[key] = tuple(dict.fromkeys((*(given.get(key) or ()), *own)))
    if project.budget is not None:
        merged["budget_at_most"] = project.budget
    if project.secrets:
        merged["secrets"] = tuple(dict.fromkeys((*project.secrets, *(given.get("secrets") or ()))))
    if project.setup is not None:
        merged["setup"] = _setup(project.setup)
    merged["services"] = [_service(item) for item in project.services]
    return merged


def _setup(setup: Setup) -> dict[str, Any]:
    steps = [
        {"run": step.run, "files": list(step.files), **({"user": step.user} if step.user else {})}
        for step in setup.steps
    ]
    return {
        "name": setup.name,
        "steps": steps,
        "allow": list(setup.allow),
        "serve_stale": setup.serve_stale,
    }


def _service(service: Service) -> dict[str, Any]:
    given: dict[str, Any] = {
        "name": service.name,
        "command": list(service.command),
        "env": service.env,
        "patience": service.patience,
    }
    if service.ready:
        given["ready"] = list(service.ready)
    if service.user:
        given["user"] = service.user
    return given


class Agreements:
    """What was agreed to for each repository: kept for this user, by the repository's path and what it asked for."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or Path.home() / ".config" / "corral" / "agreed.json"

    def require(self, top: Path, project: Project, consent: Consent) -> None:
        """Return if what the project asks for was agreed to, or `consent` agrees now. Raises Forbidden."""
        asks = project.asks
        digest = hashlib.sha256("\n".join(asks).encode()).hexdigest()
        known = self._read()
        if not asks or known.get(str(top)) == digest:
            return
        if not consent(asks):
            raise Forbidden(
                f"{top / FILE} wants to {'; '.join(asks)}; nobody has agreed to that",
                "look at it, then agree with --trust; or leave it out with --no-project",
            )
        self._write({**known, str(top): digest})

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, known: dict[str, str]) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
        temporary.replace(self._file)


def carried(project: Project) -> Iterator[bytes] | None:
    """What the project wants of the user's home, as an archive for the sandbox's; None for nothing. What looks like a
    credential is left out."""
    home = Path.home()
    paths = [path for path in project.carry if (home / path).exists()]
    return Context(home, _SECRETIVE, only=paths).archive() if paths else None
