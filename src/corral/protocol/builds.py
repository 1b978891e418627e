"""Shapes of template builds: what to build, how it goes, and its log."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from corral.errors import InvalidInput
from corral.model.build import BuildStatus
from corral.model.sandbox import Isolation
from corral.protocol.base import Env, Name, Reply, Request, TemplateName, Text, Time
from corral.protocol.catalog import TemplateInfo
from corral.protocol.grants import Aliases, ModelPatterns
from corral.protocol.sandboxes import MAX_ALLOW, AllowedHost, LimitsRequest

MAX_DOCKERFILE = 256 * 1024
MAX_SCRIPT = 128 * 1024
MAX_BUILD_BODY = 4 << 20
"""Bytes of a request to build: a recipe with files in it may be long."""
MAX_CONTEXT = 8 << 30

Script = Annotated[str, Field(max_length=MAX_SCRIPT)]
Words = Annotated[list[Script], Field(min_length=1, max_length=1000)]
Command = Annotated[
    Script | Words, Field(description="A text for the shell, or a program and its arguments.")
]
Octal = Annotated[str, Field(pattern="^[0-7]{3,4}$", description="Permission bits in octal.")]
Owner = Annotated[str, Field(max_length=65, description="`user[:group]` of the image. Default: root.")]
Paths = Annotated[list[Text], Field(max_length=1000)]


class RunStep(Request):
    """Run a command in a sandbox of the layers so far."""

    kind: Literal["run"]
    command: Command
    user: Text = Field(default="", description="Default: the user in force.")
    passing: Paths = Field(default_factory=list, description="Directories of which nothing new is kept.")


class CopyStep(Request):
    """Copy files of the context, or of another stage, a template or an image (`origin`)."""

    kind: Literal["copy"]
    sources: Annotated[Paths, Field(min_length=1)]
    target: Text = Field(description="A slash at its end makes it a directory.")
    origin: Text = ""
    context: Text = Field(default="", description="An upload for this step. Default: the build's.")
    owner: Owner = ""
    mode: Octal | None = None
    unpack: bool = Field(default=False, description="Unpack archives among the files.")
    exclude: Paths = Field(default_factory=list)


class FetchStep(Request):
    """Download a file, under the build's egress policy."""

    kind: Literal["fetch"]
    url: Text
    target: Text
    owner: Owner = ""
    mode: Octal | None = None
    checksum: Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")] = ""


class EnvStep(Request):
    """Set variables; references to variables in their values are expanded."""

    kind: Literal["env"]
    values: Annotated[dict[str, Text], Field(max_length=512)]


class ArgStep(Request):
    """A variable of the build alone."""

    kind: Literal["arg"]
    name: Text
    default: Text | None = None


class WorkdirStep(Request):
    """The working directory from here on; made where it is missing."""

    kind: Literal["workdir"]
    path: Text
    owner: Owner = ""


class UserStep(Request):
    """Who runs commands from here on."""

    kind: Literal["user"]
    name: Text


class ShellStep(Request):
    """The shell of later commands."""

    kind: Literal["shell"]
    argv: Words


class StartStep(Request):
    """What runs in every sandbox of the template."""

    kind: Literal["start"]
    command: Command


class ReadyStep(Request):
    """What succeeds once that is ready."""

    kind: Literal["ready"]
    command: Command


AnyStep = Annotated[
    RunStep
    | CopyStep
    | FetchStep
    | EnvStep
    | ArgStep
    | WorkdirStep
    | UserStep
    | ShellStep
    | StartStep
    | ReadyStep,
    Field(discriminator="kind"),
]


class StageSteps(Request):
    """Steps on a base."""

    base: Text = Field(
        default="base", description="`scratch`, an earlier stage, a template, or an OCI image's reference."
    )
    name: Text = ""
    steps: Annotated[list[AnyStep], Field(max_length=1000)] = Field(default_factory=list)


class StartBuild(Request):
    """A template to build: from a Dockerfile, or from stages of which the last becomes the template."""

    name: TemplateName
    dockerfile: Annotated[str, Field(max_length=MAX_DOCKERFILE)] | None = None
    target: Text = Field(default="", description="The Dockerfile's stage to build. Default: the last.")
    stages: Annotated[list[StageSteps], Field(min_length=1, max_length=100)] | None = None
    start: Command | None = Field(default=None, description="In place of what the recipe starts.")
    ready: Command | None = Field(default=None, description="In place of the recipe's own.")
    context: Text = Field(default="", description="Id of an uploaded context.")
    args: Env = Field(default_factory=dict, description="Values of build arguments.")
    allow: list[AllowedHost] = Field(
        default_factory=list, max_length=MAX_ALLOW, description="Hosts that its commands may reach."
    )
    secrets: list[Name] = Field(
        default_factory=list, max_length=64, description="Secrets they may use through the gateway."
    )
    limits: LimitsRequest | None = Field(default=None, description="Of each command's sandbox.")
    isolation: Isolation | None = None
    fresh: bool = Field(default=False, description="Carry out every step, also those that are known.")
    models: ModelPatterns | None = Field(
        default=None, description="Models that its sandboxes may use, which their own rules can only narrow."
    )
    aliases: Aliases | None = Field(
        default=None, description="Model asked for → model sent, in each of them."
    )

    @model_validator(mode="after")
    def _check_recipe(self) -> Self:
        if (self.dockerfile is None) == (self.stages is None):
            raise InvalidInput("the build has no recipe, or two", "give either `dockerfile` or `stages`")
        return self


class BuildInfo(Reply):
    """A build as it stands."""

    id: str
    name: str = Field(description="Of the template.")
    status: BuildStatus
    step: int = Field(description="The one under way, from 1.")
    steps: int
    cached: int = Field(description="Steps whose layers were known.")
    created_at: Time
    finished_at: Time | None = None
    template: str | None = Field(default=None, description="Id of the template, once it is ready.")
    error: dict[str, str] = Field(default_factory=dict, description="The error's body, once it failed.")


class BuildList(Reply):
    """Builds, oldest first."""

    builds: list[BuildInfo]


class BuildLine(Reply):
    """A line of a build's log (event `line`)."""

    number: int
    at: Time
    step: int
    text: str
    output: bool = Field(description="What a command printed: the sandbox's word.")


class BuildEnd(Reply):
    """How a build ended (event `end`), with its template if it is ready."""

    build: BuildInfo
    template: TemplateInfo | None = None


class ContextInfo(Reply):
    """An uploaded context. It is kept for a day after its last use."""

    id: str
    entries: int
    size: int
    skipped: int = Field(description="Device nodes and FIFOs, which were left out.")


class ContextState(Reply):
    """Whether an upload is still there."""

    present: bool


class Forgotten(Reply):
    """How many steps were forgotten."""

    steps: int
