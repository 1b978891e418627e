"""Shapes of what sandboxes may reach."""

from typing import Annotated

from pydantic import Field

from corral.protocol.base import Reply, Request, Text
from corral.protocol.sandboxes import MAX_ALLOW, AllowedHost

Rules = Annotated[list[AllowedHost], Field(max_length=MAX_ALLOW)]


class EgressRule(Reply):
    """A rule, as it is written."""

    rule: str = Field(examples=["GET api.example.com/v1/**"])
    deny: bool = Field(description="It refuses what it matches, whatever allows it.")
    origin: str = Field(description="Where it comes from; empty: given for this sandbox.", examples=["@npm"])


class EgressRules(Reply):
    """All rules of a sandbox."""

    rules: list[EgressRule]


class ChangeEgress(Request):
    """Rules to add, and own rules to take back."""

    allow: Rules = Field(default_factory=list)
    deny: Rules = Field(default_factory=list)
    remove: Rules = Field(default_factory=list, description="Written as the rules of the sandbox are.")


class AskEgress(Request):
    """A request that is not made."""

    method: Text = Field(default="GET", examples=["POST"])
    url: Text = Field(examples=["https://api.example.com/v1/items"])


class EgressVerdict(Reply):
    """Whether a request would be allowed. The address that its name leads to is looked at when it is made only."""

    allowed: bool
    host: str
    port: int
    rule: EgressRule | None = Field(default=None, description="The one that allows it.")
    reason: str = Field(default="", description="Stable; of a refusal.", examples=["host-not-allowed"])
    why: str = ""
    hint: str = ""
    inspected: bool = Field(description="The gateway reads the request; else it passes TLS through unopened.")
    secrets: list[str] = Field(description="Secrets that go to this host.")


class PresetHost(Reply):
    """Rules of a preset, and what they are for."""

    rules: list[str]
    purpose: str


class Preset(Reply):
    """A named list of rules."""

    name: str = Field(examples=["@npm"])
    title: str
    hosts: list[PresetHost]


class PresetList(Reply):
    """All presets."""

    presets: list[Preset]
