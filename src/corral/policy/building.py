"""What the steps of a template build mean: the state that they change, and what is to be done for each. No I/O.

A step changes the state (`Env`, `Workdir`, `User` …), or asks for an action that makes a layer (`Run`, `Copy`,
`Fetch`). The key of a layer covers all that decides what it holds, as far as a build can know: the layer below, the
command with its environment, the digests of the files. What a command gets from the network is not in it.
"""

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import assert_never

from corral.errors import InvalidInput
from corral.model.build import (
    Arg,
    Copy,
    Env,
    Fetch,
    InlineFile,
    Ready,
    Recipe,
    Run,
    Shell,
    Stage,
    Start,
    Step,
    User,
    Workdir,
)
from corral.model.grants import ModelRules
from corral.model.ids import check_env, check_guest_path, check_user
from corral.model.template import TemplateConfig
from corral.policy.expansion import MAX_TEXT, expand, expand_literal, expand_plain

DEFAULT_SHELL = ("/bin/sh", "-c")
MAX_STEPS = 1000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory to be there before the next command, and at the end."""

    path: str
    owner: str


@dataclass(frozen=True, slots=True)
class State:
    """What holds at a point of a stage. `final_user` is the one of sandboxes of the template. Root is a
    number here: what starts from nothing has no table of users."""

    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    user: str = "0"
    final_user: str = "0"
    workdir: str = "/"
    sudo: bool = False
    shell: tuple[str, ...] = DEFAULT_SHELL
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    ready_seconds: float | None = None
    pending: tuple[Directory, ...] = ()
    models: ModelRules | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What references to variables are replaced by: the environment wins over the build's own."""
        return {**self.args, **self.env}

    def config(self) -> TemplateConfig:
        """The configuration of a template of this state."""
        return TemplateConfig(
            env=dict(self.env),
            user=self.final_user,
            workdir=self.workdir,
            sudo=self.sudo,
            start_command=(*self.entrypoint, *self.command),
            ready_command=self.ready,
            ready_seconds=self.ready_seconds,
            models=self.models,
        )


@dataclass(frozen=True, slots=True)
class RunAction:
    """Run `argv` in a sandbox."""

    argv: tuple[str, ...]
    user: str
    cwd: str
    env: dict[str, str]
    passing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CopyAction:
    """Copy what `sources` match of the context (or of `origin`) to the absolute path `target`. `directory`: the target
    is one, whatever it is now."""

    sources: tuple[str, ...]
    files: tuple[InlineFile, ...]
    target: str
    directory: bool
    origin: str
    context: str
    owner: str
    mode: int | None
    unpack: bool
    exclude: tuple[str, ...]
    links: bool = False


@dataclass(frozen=True, slots=True)
class FetchAction:
    """Download `url` and put it at `target`."""

    url: str
    target: str
    directory: bool
    owner: str
    mode: int | None
    checksum: str


Action = RunAction | CopyAction | FetchAction


def initial(config: TemplateConfig | None) -> State:
    """The state at the start of a stage on a base of this configuration; None: on nothing.

    What a base starts by itself is not taken over: a template starts what its own recipe says. Where the base's user may
    become root, commands are run as root until a step names a user: most of them install something.
    """
    if config is None:
        return State()
    return State(
        env=dict(config.env),
        user="root" if config.sudo else config.user,
        final_user=config.user,
        workdir=config.workdir,
        sudo=config.sudo,
        models=config.models,
    )


def apply(state: State, step: Step, given: Mapping[str, str]) -> tuple[State, Action | None]:
    """The state after a step, and what is to be done for it. `given`: the values that the build gives to `Arg`s.

    Raises InvalidInput for a step that makes no sense.
    """
    match step:
        case Run():
            return _run(state, step)
        case Copy():
            return replace(state, pending=()), _copy(state, step)
        case Fetch():
            return replace(state, pending=()), _fetch(state, step)
        case Env():
            filled = _expander(step)
            values = {_variable(key): filled(value, state.variables) for key, value in step.values}
            return replace(state, env=check_env({**state.env, **values})), None
        case Arg():
            return _arg(state, step, given), None
        case Workdir():
            path = absolute(_expander(step)(step.path, state.variables), state.workdir)
            pending = (*state.pending, Directory(path, step.owner))
            return replace(state, workdir=path, pending=pending), None
        case User():
            user = user_of(_expander(step)(step.name, state.variables))
            return replace(state, user=user, final_user=user, sudo=state.sudo or step.sudo), None
        case Shell():
            if not step.argv or not step.argv[0]:
                raise InvalidInput("the shell is empty", 'write it as ["/bin/bash", "-c"]')
            return replace(state, shell=step.argv), None
        case Start() if step.fixed:
            return replace(state, entrypoint=_argv(state, step.command, step.by_shell), command=()), None
        case Start():
            return replace(state, command=_argv(state, step.command, step.by_shell)), None
        case Ready():
            ready = _argv(state, step.command, step.by_shell)
            return replace(state, ready=ready, ready_seconds=step.seconds), None
        case _:
            assert_never(step)


def _run(state: State, step: Run) -> tuple[State, RunAction]:
    argv = _argv(state, step.command, step.by_shell)
    if not argv or not argv[0]:
        raise InvalidInput("the command is empty", "give a command to run")
    if sum(len(word) for word in argv) > MAX_TEXT:
        raise InvalidInput(f"the command is longer than {MAX_TEXT} characters", "put it into a file")
    action = RunAction(
        argv=argv,
        user=user_of(step.user) if step.user else state.user,
        cwd=state.workdir,
        env=check_env(state.variables),
        passing=tuple(absolute(expand(path, state.variables), state.workdir) for path in step.passing),
    )
    return replace(state, pending=()), action


def _argv(state: State, command: tuple[str, ...], shell: bool) -> tuple[str, ...]:
    if any("\0" in word for word in command):
        raise InvalidInput("the command holds a NUL character", "remove it")
    return (*state.shell, *command) if shell else command


def _copy(state: State, step: Copy) -> CopyAction:
    variables, filled = state.variables, _expander(step)
    target = filled(step.target, variables)
    sources = tuple(filled(source, variables) for source in step.sources)
    if not target or not (sources or step.files):
        raise InvalidInput("there is nothing to copy, or no place for it", "give sources and a target")
    return CopyAction(
        sources=sources,
        files=tuple(
            replace(item, content=expand_plain(item.content, variables)) if item.expand else item
            for item in step.files
        ),
        target=absolute(target, state.workdir),
        directory=target.endswith(("/", "/.")) or target == "." or len(sources) + len(step.files) > 1,
        origin=filled(step.origin, variables),
        context=step.context,
        owner=owner_of(filled(step.owner, variables)),
        mode=_mode(step.mode),
        unpack=step.unpack,
        exclude=tuple(filled(pattern, variables) for pattern in step.exclude),
        links=step.links,
    )


def _fetch(state: State, step: Fetch) -> FetchAction:
    variables = state.variables
    target = expand(step.target, variables)
    url = expand(step.url, variables)
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s]*", url) or len(url) > 2048:
        raise InvalidInput(f"{url[:120]!r} is not an address", "give an http or https URL")
    return FetchAction(
        url=url,
        target=absolute(target, state.workdir),
        directory=target.endswith("/"),
        owner=owner_of(expand(step.owner, variables)),
        mode=_mode(step.mode),
        checksum=step.checksum,
    )


def _arg(state: State, step: Arg, given: Mapping[str, str]) -> State:
    name = _variable(step.name)
    if name in given:
        return replace(state, args={**state.args, name: given[name]})
    if step.default is None:
        return state
    return replace(state, args={**state.args, name: expand(step.default, state.variables)})


def _variable(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"variable name {name[:80]!r} is not valid",
            "use letters, digits and underscores, not starting with a digit",
        )
    return name


def _mode(mode: int | None) -> int | None:
    if mode is not None and not 0 <= mode <= 0o7777:
        raise InvalidInput(f"mode {mode:o} is not valid", "use three or four octal digits")
    return mode


def user_of(text: str) -> str:
    """The user of a USER step: a group by name is that of /etc/passwd nearly always, and left out."""
    name, _, group = text.partition(":")
    if group and not (name.isdecimal() and group.isdecimal()):
        return check_user(name)
    return check_user(text)


_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?")


def owner_of(text: str) -> str:
    """`user[:group]`, each a name or a number; or empty. Raises InvalidInput."""
    if text and not _OWNER.fullmatch(text):
        raise InvalidInput(f"owner {text[:80]!r} is not valid", "write user, user:group or uid:gid")
    return text


def absolute(path: str, workdir: str) -> str:
    """A path of the image, from the working directory where it is relative; it cannot leave the root."""
    return check_guest_path(posixpath.normpath("/" + posixpath.join(workdir, path)).replace("//", "/"))


def _expander(step: Env | Workdir | User | Copy) -> Callable[[str, Mapping[str, str]], str]:
    return expand_literal if step.literal else expand


def layer_key(tenant: str, below: Sequence[str], pending: Sequence[Directory], *parts: object) -> str:
    """The key (hex) of the layer that an action makes on top of those `below`, for one tenant alone: what a tenant's
    commands left is no other tenant's."""
    document = ["step", 1, tenant, list(below), [asdict(item) for item in pending], *parts]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def stages_needed(recipe: Recipe) -> list[int]:
    """Numbers of the stages that the last one needs, in order, itself included.

    Raises InvalidInput for an empty recipe, one with too many steps, and a stage of a name that comes twice.
    """
    stages = recipe.stages
    if not stages:
        raise InvalidInput("the recipe has no stage", "start it with a base: FROM base")
    if sum(len(stage.lines) for stage in stages) > MAX_STEPS:
        raise InvalidInput("the recipe has too many steps", f"use at most {MAX_STEPS}")
    needed = {len(stages) - 1}
    for number in range(len(stages) - 1, -1, -1):
        if number in needed:
            needed.update(_uses(stages, number))
    return sorted(needed)


def _uses(stages: Sequence[Stage], number: int) -> set[int]:
    stage = stages[number]
    names = [stage.base, *(line.step.origin for line in stage.lines if isinstance(line.step, Copy))]
    return {found for name in names if (found := stage_named(stages[:number], name)) is not None}


def stage_named(stages: Sequence[Stage], name: str) -> int | None:
    """The number of the stage that `name` (or a number as text) means, the last of that name; None for none."""
    if not name:
        return None
    for number in range(len(stages) - 1, -1, -1):
        if stages[number].name and stages[number].name.lower() == name.lower():
            return number
    if re.fullmatch(r"[0-9]{1,3}", name) and int(name) < len(stages):
        return int(name)
    return None
