"""What a template is built from: stages of steps, as a Dockerfile or a builder gives them, and what is known of a build.

Texts of steps may hold references to variables (`$NAME`, `${NAME:-default}`); they are expanded when the step is
carried out, for only then is the environment of the base known. A text is a Dockerfile's word, with its quotes and escapes,
but where a step is `literal`: then only references are replaced, and all else stays as it is.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from corral.model.grants import ModelRules
from corral.model.ids import TemplateId, TenantId
from corral.model.sandbox import Isolation, Limits
from corral.model.secrets import Secret

SCRATCH = "scratch"
"""The base of a stage that starts from nothing."""


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """What opens a registry of images, in place of the logins that the host has."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command. With `by_shell` it is one text for the shell in force, else a program and its arguments.

    `user` (default: the one in force) holds for it alone. What it leaves below the directories `passing` is not kept,
    where they were not there before.
    """

    command: tuple[str, ...]
    by_shell: bool = False
    user: str = ""
    passing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InlineFile:
    """A file whose content stands in the recipe; `expand`: variables in it are replaced."""

    name: str
    content: str
    expand: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy files to `target`, which is relative to the working directory; with a slash at its end it is a directory.

    `sources` are paths or patterns below the root of the context, or of what `origin` names: another stage, a template,
    or an image. Of a directory its content is copied. `context` is the archive that was uploaded for this step (default:
    that of the build). `owner` is `user[:group]`, `mode` is set on all that is copied. `unpack`: archives are unpacked.
    `links`: a symlink that a source names stays one; else what it leads to is copied.
    """

    sources: tuple[str, ...]
    target: str
    origin: str = ""
    context: str = ""
    owner: str = ""
    mode: int | None = None
    files: tuple[InlineFile, ...] = ()
    unpack: bool = False
    exclude: tuple[str, ...] = ()
    links: bool = False
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Download `url` to `target` (as for `Copy`), under the build's egress policy. `checksum` is `sha256:…` or empty."""

    url: str
    target: str
    owner: str = ""
    mode: int | None = None
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Env:
    """Set variables, for later steps and for sandboxes."""

    values: tuple[tuple[str, str], ...]
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Arg:
    """A variable of the build alone; `default` where the build gives no value."""

    name: str
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Workdir:
    """The working directory from here on, made where it is missing, then owned by `owner` (default: root)."""

    path: str
    owner: str = ""
    literal: bool = False


@dataclass(frozen=True, slots=True)
class User:
    """Who runs commands from here on: a login name, `uid` or `uid:gid`. `sudo`: the template's user may become root, where
    the image lets it."""

    name: str
    sudo: bool = False
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Shell:
    """The shell that later commands given as a text are run by."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """What runs in every sandbox of the template from its start. `fixed`: `command` is an entry point, to which a later
    command is appended as arguments, as a Dockerfile's ENTRYPOINT and CMD are."""

    command: tuple[str, ...]
    by_shell: bool = False
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The command that succeeds once what was started is ready, within `seconds`, all of which one try may take. None: as
    services of sandboxes are waited for."""

    command: tuple[str, ...]
    by_shell: bool = False
    seconds: float | None = None


Step = Run | Copy | Fetch | Env | Arg | Workdir | User | Shell | Start | Ready


@dataclass(frozen=True, slots=True)
class Line:
    """A step with the text that it is shown by, and where it stands in its file (0: nowhere)."""

    step: Step
    text: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """`base`: `scratch`, an earlier stage, a template, or the reference of an OCI image."""

    base: str
    lines: tuple[Line, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Stages in order; the last is what becomes the template. An earlier stage that it does not need is left out."""

    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A template to build. `args` are the build's values of `Arg`. `context` is the archive that was uploaded for it.

    `allow` and `secrets` are what its commands may reach and use through the gateway, as for a sandbox; by default
    nothing. `fresh`: carry out every step again, whatever is known from before. `tags`: further names of the template.
    `limits` are those of the sandboxes that its commands run in, `sandbox_limits` the template's. `login` opens the
    registries of images that stages start from. `settle`: seconds that the build lets run what the template starts, where
    no command tells that it is ready. `models` hold for all sandboxes of the template, under its base's.
    """

    name: str
    recipe: Recipe
    context: str = ""
    args: dict[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    limits: Limits = field(default_factory=lambda: Limits(pids=4096))
    isolation: Isolation | None = None
    fresh: bool = False
    tags: tuple[str, ...] = ()
    sandbox_limits: Limits | None = None
    login: RegistryLogin | None = None
    settle: float = 0.0
    models: ModelRules | None = None


class BuildStatus(StrEnum):
    """Where a build is."""

    WAITING = "waiting"
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class BuildLine:
    """A line of a build's log. `step` counts from 1; 0 is what is done before and after all steps. `output`: it is what
    a command printed: the sandbox's word. `failure`: it tells why the build ended without a template."""

    number: int
    at: datetime
    step: int
    text: str
    output: bool = False
    failure: bool = False


@dataclass(frozen=True, slots=True)
class Build:
    """A build as it stands. `step` is the one under way, of `steps` in all. `error` is an error's body once it failed."""

    id: str
    tenant: TenantId
    name: str
    status: BuildStatus
    created_at: datetime
    step: int = 0
    steps: int = 0
    cached: int = 0
    finished_at: datetime | None = None
    template: TemplateId | None = None
    error: dict[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether nothing of it will change any more."""
        return self.status in (BuildStatus.READY, BuildStatus.FAILED, BuildStatus.CANCELLED)
