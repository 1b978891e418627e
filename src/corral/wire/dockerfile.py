"""Dockerfiles, read into recipes. The grammar is BuildKit's, by a library that follows it; this module gives each
instruction its meaning, or refuses it with the line where it stands. No I/O, and no variable is expanded here but those
of FROM lines, which may use only what was given before the first of them.
"""

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from e2b_dockerfile_utils import (
    DockerfileAst,
    DockerfileInstruction,
    DockerfileSyntaxError,
    chomp_heredoc_content,
    parse_dockerfile_ast,
)

from corral.errors import CorralError, InvalidInput, Unsupported
from corral.model.build import (
    Arg,
    Copy,
    Env,
    Fetch,
    InlineFile,
    Line,
    Recipe,
    Run,
    Shell,
    Stage,
    Start,
    Step,
    User,
    Workdir,
)
from corral.policy.building import stage_named
from corral.policy.expansion import expand

MAX_DOCKERFILE = 256 * 1024
_IGNORED = ("LABEL", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER")
_URL = re.compile(r"(?i)https?://")
_GIT = re.compile(r"(?i)(?:git@|ssh://|git://|https?://[^#?]*\.git(?:[#?]|$))")
_PLATFORM_ARGS = ("TARGETPLATFORM", "BUILDPLATFORM", "TARGETOS", "TARGETARCH", "BUILDOS", "BUILDARCH")


@dataclass(slots=True)
class _Open:
    """A stage that is being read."""

    base: str
    name: str
    lines: list[Line] = field(default_factory=list)


class _Reader:
    def __init__(self, ast: DockerfileAst, given: Mapping[str, str], machine: str) -> None:
        self._escape = ast.escape_token
        self._given = given
        self._globals = {**_platform(machine)}
        self.declared: set[str] = set()
        self.stages: list[_Open] = []

    def take(self, instruction: DockerfileInstruction) -> None:
        name = instruction.name
        if name == "FROM":
            self._from(instruction)
            return
        if not self.stages:
            if name != "ARG":
                raise InvalidInput(f"{name} stands before the first FROM", "start with FROM")
            self._global_arg(instruction)
            return
        if name in _IGNORED:
            return
        reader = _STEPS.get(name)
        if reader is None:
            raise Unsupported(
                f"the instruction {name[:40]} is not known here",
                f"known: FROM, {', '.join(sorted((*_STEPS, *_IGNORED)))}",
            )
        for step in reader(instruction):
            if isinstance(step, Arg):
                self.declared.add(step.name)
                if step.default is None and step.name in self._globals:
                    step = Arg(step.name, shlex.quote(self._globals[step.name]))
            text = instruction.original.strip().split("\n", 1)[0]
            self.stages[-1].lines.append(Line(step, text[:200], instruction.start_line))

    def _from(self, instruction: DockerfileInstruction) -> None:
        for flag in instruction.flags:
            if not flag.startswith("--platform="):
                raise _unknown_flag(instruction, flag)
        words = instruction.args
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise InvalidInput("FROM is malformed", "write FROM BASE or FROM BASE AS NAME")
        name = words[2].lower() if len(words) == 3 else ""
        if name and not re.fullmatch(r"[a-z][a-z0-9_.-]{0,127}", name):
            raise InvalidInput(f"stage name {name[:80]!r} is not valid", "start it with a letter")
        base = expand(words[0], self._globals)
        if not base:
            raise InvalidInput("FROM names no base", "give its ARG a value: --build-arg")
        self.stages.append(_Open(base, name))

    def _global_arg(self, instruction: DockerfileInstruction) -> None:
        for step in _args(instruction):
            self.declared.add(step.name)
            value = self._given.get(step.name)
            if value is None and step.default is not None:
                value = expand(step.default, self._globals)
            if value is not None:
                self._globals[step.name] = value


def parse_dockerfile(
    text: str, *, given: Mapping[str, str] | None = None, target: str = "", machine: str = "x86_64"
) -> Recipe:
    """The recipe of a Dockerfile, up to the stage `target` (default: the last). `given`: values for its ARGs.

    Raises InvalidInput, and Unsupported for what Corral does not do, with the number of the line.
    """
    if len(text) > MAX_DOCKERFILE:
        raise InvalidInput(f"the Dockerfile is larger than {MAX_DOCKERFILE} characters", "make it smaller")
    given = given or {}
    try:
        ast = parse_dockerfile_ast(text)
    except DockerfileSyntaxError as error:
        raise InvalidInput(str(error)[:300], "see the line") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the Dockerfile cannot be read: {error}"[:300]) from None
    reader = _Reader(ast, given, machine)
    for instruction in ast.instructions:
        try:
            reader.take(instruction)
        except CorralError as error:
            raise type(error)(f"line {instruction.start_line}: {error.message}", error.hint) from None
    _check_given(given, reader.declared)
    stages = tuple(Stage(stage.base, tuple(stage.lines), stage.name) for stage in reader.stages)
    return Recipe(_up_to(stages, target))


def _up_to(stages: tuple[Stage, ...], target: str) -> tuple[Stage, ...]:
    if not stages:
        raise InvalidInput("the Dockerfile has no FROM", "start it with FROM")
    if not target:
        return stages
    number = stage_named(stages, target)
    if number is None:
        known = ", ".join(stage.name for stage in stages if stage.name) or "none has a name"
        raise InvalidInput(f"there is no stage {target[:80]!r}", f"stages: {known}")
    return stages[: number + 1]


def _check_given(given: Mapping[str, str], declared: set[str]) -> None:
    unknown = sorted(given.keys() - declared - set(_PLATFORM_ARGS))
    if unknown:
        raise InvalidInput(
            f"the Dockerfile has no ARG {unknown[0][:80]}", f"it has: {', '.join(sorted(declared)) or 'none'}"
        )


def _platform(machine: str) -> dict[str, str]:
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    values = (f"linux/{arch}", f"linux/{arch}", "linux", arch, "linux", arch)
    return dict(zip(_PLATFORM_ARGS, values, strict=True))


# -- instructions ---------------------------------------------------------------------------------------------------


def _run(instruction: DockerfileInstruction) -> list[Step]:
    passing: list[str] = []
    for flag in instruction.flags:
        name, _, value = flag.removeprefix("--").partition("=")
        if name == "mount":
            passing += _mount(value)
        elif name == "network" and value == "none":
            raise Unsupported(
                "RUN --network=none is not known here", "a build reaches nothing but what --allow names"
            )
        elif name not in ("network", "security") or value not in ("default", "sandbox"):
            raise _unknown_flag(instruction, flag)
    if instruction.json:
        return [Run(tuple(instruction.args), passing=tuple(passing))]
    return [Run((_script(instruction),), by_shell=True, passing=tuple(passing))]


def _script(instruction: DockerfileInstruction) -> str:
    line = " ".join(instruction.args)
    if not instruction.heredocs:
        return line
    first = instruction.heredocs[0]
    alone = re.fullmatch(r"<<-?\s*(['\"]?)[A-Za-z0-9_.-]+\1", line.strip())
    if alone and len(instruction.heredocs) == 1:
        return chomp_heredoc_content(first.content) if first.chomp else first.content
    bodies = "".join(f"{document.content}{document.name}\n" for document in instruction.heredocs)
    return f"{line}\n{bodies}"


def _mount(text: str) -> list[str]:
    """What a cache or a temporary file system would hold is not kept: the step's own layer leaves it out."""
    options = dict(part.partition("=")[::2] for part in text.split(","))
    kind = options.get("type", "bind")
    target = options.get("target") or options.get("dst") or options.get("destination") or ""
    if kind in ("cache", "tmpfs") and target:
        return [target]
    if kind in ("secret", "ssh"):
        raise Unsupported(
            f"RUN --mount=type={kind}: no secret enters a sandbox",
            "give the build the secret's name, and the gateway adds it to the requests: --secret NAME",
        )
    raise Unsupported(
        f"RUN --mount=type={kind[:20]} is not known here", "use COPY before it; known: cache, tmpfs"
    )


@dataclass(slots=True)
class _CopyFlags:
    origin: str = ""
    owner: str = ""
    mode: int | None = None
    checksum: str = ""
    exclude: list[str] = field(default_factory=list)
    unpack: bool | None = None


def _copy_flags(instruction: DockerfileInstruction) -> _CopyFlags:
    flags = _CopyFlags()
    for flag in instruction.flags:
        name, _, value = flag.removeprefix("--").partition("=")
        match name:
            case "from" if instruction.name == "COPY" and value:
                flags.origin = value
            case "chown":
                flags.owner = value
            case "chmod" if re.fullmatch(r"[0-7]{3,4}", value):
                flags.mode = int(value, 8)
            case "checksum" if instruction.name == "ADD" and re.fullmatch(r"sha256:[0-9a-f]{64}", value):
                flags.checksum = value
            case "exclude":
                flags.exclude.append(value)
            case "link" if value in ("", "true", "false"):
                pass
            case "unpack" if instruction.name == "ADD" and value in ("", "true", "false"):
                flags.unpack = value != "false"
            case _:
                raise _unknown_flag(instruction, flag)
    return flags


def _copy(instruction: DockerfileInstruction) -> list[Step]:
    words = instruction.args
    flags = _copy_flags(instruction)
    if len(words) < 2:
        raise InvalidInput(f"{instruction.name} needs a source and a target", "write COPY SOURCE TARGET")
    documents = {document.name: document for document in instruction.heredocs}
    files, sources, urls = [], [], []
    for word in words[:-1]:
        document = (
            documents.get(word.removeprefix("<<").removeprefix("-").strip("\"' "))
            if word.startswith("<<")
            else None
        )
        if document is not None:
            content = chomp_heredoc_content(document.content) if document.chomp else document.content
            files.append(InlineFile(posixpath.basename(document.name), content, document.expand))
        elif instruction.name == "ADD" and _GIT.match(word):
            raise Unsupported(
                "ADD of a git repository is not known here", "use RUN git clone, with --allow HOST"
            )
        elif instruction.name == "ADD" and _URL.match(word):
            urls.append(word)
        else:
            sources.append(word)
    target = words[-1]
    if len(words) > 2 and not target.endswith("/"):
        target += "/"
    steps: list[Step] = [Fetch(url, target, flags.owner, flags.mode, flags.checksum) for url in urls]
    if files or sources:
        unpack = instruction.name == "ADD" and flags.unpack is not False
        steps.append(
            Copy(
                tuple(sources),
                target,
                origin=flags.origin,
                owner=flags.owner,
                mode=flags.mode,
                files=tuple(files),
                unpack=unpack,
                exclude=tuple(flags.exclude),
            )
        )
    return steps


def _env(instruction: DockerfileInstruction) -> list[Step]:
    _no_flags(instruction)
    words = instruction.args
    pairs = tuple((words[at], words[at + 1]) for at in range(0, len(words) - 2, 3))
    return [Env(pairs)]


def _args(instruction: DockerfileInstruction) -> list[Arg]:
    _no_flags(instruction)
    steps = []
    for word in instruction.args:
        name, separator, default = word.partition("=")
        steps.append(Arg(name, default if separator else None))
    return steps


def _workdir(instruction: DockerfileInstruction) -> list[Step]:
    return [Workdir(_one(instruction))]


def _user(instruction: DockerfileInstruction) -> list[Step]:
    return [User(_one(instruction))]


def _shell(instruction: DockerfileInstruction) -> list[Step]:
    if not instruction.json:
        raise InvalidInput("SHELL is no list", 'write SHELL ["/bin/bash", "-c"]')
    return [Shell(tuple(instruction.args))]


def _start(instruction: DockerfileInstruction) -> list[Step]:
    _no_flags(instruction)
    fixed = instruction.name == "ENTRYPOINT"
    if instruction.json:
        return [Start(tuple(instruction.args), fixed=fixed)]
    line = " ".join(instruction.args)
    return [Start((line,) if line else (), by_shell=bool(line), fixed=fixed)]


def _volume(instruction: DockerfileInstruction) -> list[Step]:
    raise Unsupported("VOLUME is not known here", "leave it out: a sandbox's files are its own")


def _onbuild(instruction: DockerfileInstruction) -> list[Step]:
    raise Unsupported("ONBUILD is not known here", "write its instruction where it is needed")


_STEPS: dict[str, Callable[[DockerfileInstruction], list[Step]]] = {
    "RUN": _run,
    "COPY": _copy,
    "ADD": _copy,
    "ENV": _env,
    "ARG": lambda instruction: list(_args(instruction)),
    "WORKDIR": _workdir,
    "USER": _user,
    "SHELL": _shell,
    "ENTRYPOINT": _start,
    "CMD": _start,
}


def _one(instruction: DockerfileInstruction) -> str:
    _no_flags(instruction)
    if len(instruction.args) != 1 or not instruction.args[0]:
        raise InvalidInput(f"{instruction.name} takes one value", "quote it if it holds spaces")
    return instruction.args[0]


def _no_flags(instruction: DockerfileInstruction) -> None:
    if instruction.flags:
        raise _unknown_flag(instruction, instruction.flags[0])


def _unknown_flag(instruction: DockerfileInstruction, flag: str) -> CorralError:
    return Unsupported(
        f"{instruction.name} {flag[:60]} is not known here", "leave it out, or write it otherwise"
    )
