"""Shapes of templates on the control plane."""

from typing import Annotated

from pydantic import Field, StringConstraints

from corral.protocol.e2b.sandboxes import Wire

Name = Annotated[str, StringConstraints(max_length=512)]
Tags = Annotated[list[Name], Field(max_length=100)]


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
