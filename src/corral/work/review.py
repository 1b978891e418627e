"""Which of the files that came out of a sandbox want a look before the host's tools meet them. No I/O."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MAX_LISTED = 1000
"""Flagged paths that are kept; their number is always told."""

_SYMLINK, _SUBMODULE, _EXECUTABLE = "120000", "160000", "100755"

_RUN_ON_HOST = re.compile(
    rb"""(?isx) (?: ^ | /) (?:
        \.git/ .*                                   # fsck refuses it; listed should it ever pass
      | (?: \.githooks | \.husky ) / .* | hooks / (?: (?: pre | post | prepare ) - [a-z-]+ | commit-msg | update )
      | \.pre-commit-config\.ya?ml | lefthook\.ya?ml
      | \.vscode / (?: tasks | settings | launch | extensions ) \.json | [^/]+\.code-workspace
      | \.idea / .* | \.devcontainer / .* | \.devcontainer\.json
      | \.envrc | \.direnv/ .* | \.mise\.toml | mise\.toml | \.tool-versions
      | (?: GNU )? makefile | [^/]+\.mk | justfile | Taskfile\.ya?ml | CMakeLists\.txt | Rakefile
      | \.claude / .* | \.claude\.json | \.mcp\.json | \.cursor / .* | \.codex / .* | \.gemini / .* | \.opencode / .*
      | opencode\.jsonc? | \.windsurf / .* | CLAUDE\.md | AGENTS\.md | \.cursorrules
      | \.github / workflows / .* | \.gitlab-ci\.yml | \.circleci / .* | Jenkinsfile | \.ci / .*
      | package\.json | \.npmrc | \.yarnrc(?:\.yml)? | \.yarn / .* | \.pnpmfile\.cjs
      | setup\.py | conftest\.py | sitecustomize\.py | [^/]+\.pth | noxfile\.py | tox\.ini
      | build\.rs | \.cargo / .* | build\.gradle(?:\.kts)? | gradle / wrapper / .* | gradlew | pom\.xml | \.mvn / .*
      | \.vimrc | \.exrc | \.nvimrc | \.lldbinit | \.gdbinit | \.dir-locals\.el | \.editorconfig
      | \.bazelrc | BUILD(?:\.bazel)? | flake\.nix | shell\.nix | Dockerfile | (?: docker- )? compose\.ya?ml
    ) $"""
)
_GIT_BEHAVIOUR = re.compile(rb"(?i)(?:^|/)\.(?:gitattributes|gitmodules|lfsconfig|gitconfig)$")


class Flag(StrEnum):
    """Why a changed file wants a look."""

    RUNS_ON_HOST = "runs-on-host"
    """Build tools, editors, agents or git can execute what it says when the tree is opened, built or
    committed to.
    """
    CHANGES_GIT = "changes-git"
    """It changes what git does with other files, or where submodules come from."""
    SYMLINK = "symlink"
    SUBMODULE = "submodule"
    EXECUTABLE = "executable"
    """It became executable."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed path: file modes in octal as git prints them (`000000`: absent)."""

    path: bytes
    old_mode: str
    new_mode: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A path, with what is not printable escaped, and why it is listed."""

    path: str
    flags: tuple[Flag, ...]


def flags_of(change: Change) -> tuple[Flag, ...]:
    """Why the change wants a look; empty for an ordinary one. A removed file runs nowhere."""
    found = []
    if change.new_mode != "000000":
        if _RUN_ON_HOST.search(change.path):
            found.append(Flag.RUNS_ON_HOST)
        if change.new_mode == _SYMLINK:
            found.append(Flag.SYMLINK)
        if change.new_mode == _EXECUTABLE and change.old_mode != _EXECUTABLE:
            found.append(Flag.EXECUTABLE)
    if _GIT_BEHAVIOUR.search(change.path):
        found.append(Flag.CHANGES_GIT)
    if _SUBMODULE in (change.old_mode, change.new_mode):
        found.append(Flag.SUBMODULE)
    return tuple(found)


def parse_raw(header: bytes, path: bytes) -> Change:
    """A change from the two fields that `git diff-tree --raw -z --no-renames` prints for it. Raises
    ValueError.
    """
    old, new, *_ = header.decode("ascii").removeprefix(":").split(" ")
    return Change(path, old, new)


def shown(path: bytes) -> str:
    """A path for people: what is not printable text is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def findings(changes: Iterable[Change]) -> list[Finding]:
    """Every change that wants a look."""
    return [Finding(shown(change.path), flags) for change in changes if (flags := flags_of(change))]
