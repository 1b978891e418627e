"""Shapes of learning what a sandbox wants to reach."""

from pydantic import Field

from corral.protocol.base import Reply, Request


class Lock(Request):
    """End learning."""

    dry_run: bool = Field(default=False, description="Only say what the policy would be.")


class LearnedRule(Reply):
    """A rule of the policy."""

    rule: str
    deny: bool
    origin: str = Field(description="`learned` for what was reached while it learned.")


class LearnedPolicy(Reply):
    """What a sandbox may reach, then or now."""

    learning: bool
    rules: list[LearnedRule]
