"""Shapes of templates on the control plane."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints

from corral.protocol.e2b.sandboxes import Int32, Wire

Name = Annotated[str, StringConstraints(max_length=512)]
Tags = Annotated[list[Name], Field(max_length=100)]


class NewTemplate(Wire):
    """A build to be registered, of all versions of the call."""

    name: Name | None = None
    alias: Name | None = None
    tags: Tags | None = None
    cpu_count: Int32 | None = None
    memory_mb: Int32 | None = None
    min_free_disk_mb: Annotated[Int32, Field(ge=0)] | None = Field(default=None, alias="minFreeDiskMb")


class Step(Wire):
    """A step of a build."""

    type: Annotated[str, StringConstraints(max_length=32)]
    args: list[Annotated[str, StringConstraints(max_length=128 * 1024)]] = Field(default_factory=list)
    files_hash: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None = None
    force: bool = False


class RegistryPassword(Wire):
    """A login of any registry."""

    type: Literal["registry"]
    username: Name
    password: SecretStr


class GoogleRegistry(Wire):
    """A service account's key, as JSON."""

    type: Literal["gcp"]
    service_account_json: SecretStr


class AmazonRegistry(Wire):
    """Keys of AWS."""

    type: Literal["aws"]


class StartBuild(Wire):
    """What to build."""

    from_image: Name | None = None
    from_template: Name | None = None
    from_image_registry: Annotated[
        RegistryPassword | GoogleRegistry | AmazonRegistry | None, Field(discriminator="type")
    ] = None
    force: bool = False
    steps: Annotated[list[Step], Field(max_length=1000)] = Field(default_factory=list)
    start_cmd: Annotated[str, StringConstraints(max_length=64 * 1024)] | None = None
    ready_cmd: Annotated[str, StringConstraints(max_length=64 * 1024)] | None = None


class AssignTags(Wire):
    """Let tags point to the build that `target` names."""

    target: Name
    tags: Tags


class DeleteTags(Wire):
    """Take tags away."""

    name: Name
    tags: Tags


class UpdateTemplate(Wire):
    """Change who may use a template."""

    public: bool | None = None
