"""Requests for agents, and for what they did in a repository."""

from typing import Any

from corral.protocol import sandboxes
from corral.protocol.processes import ProcessInfo
from corral.sdk.operations import Call, Download, Request, build, parse, reply
from corral.sdk.requests import get, given, post, url


def start_agent(ref: str, prompt: str | None = None, model: str | None = None) -> Call[ProcessInfo]:
    """Start the sandbox's agent: on a prompt, or waiting in its terminal."""
    body = build(sandboxes.StartAgent, **given(prompt=prompt, model=model))
    return Call(post(url("sandboxes", ref, "agent"), body, quick=False), reply(ProcessInfo))


def agent_terminal(ref: str) -> Call[list[str]]:
    """The command that shows the agent's terminal, to be run in the sandbox with a terminal. Raises Conflict."""
    return Call(get(url("sandboxes", ref, "agent")), lambda body: parse(sandboxes.AgentTerminal, body).argv)


def list_agents() -> Call[list[str]]:
    """Coding agents that sandboxes can be made for."""
    return Call(get(url("agents")), lambda body: parse(sandboxes.AgentList, body).agents)


def diff(ref: str) -> Download:
    """What changed in its repository since it was cloned, as a git diff."""
    return Download(Request("GET", url("sandboxes", ref, "diff"), accept="*/*", timeout=None))


def open_pull_request(
    ref: str,
    *,
    title: str | None = None,
    body: str | None = None,
    base: str | None = None,
    branch: str | None = None,
    draft: bool = False,
) -> Call[sandboxes.OpenedPullRequest]:
    """Open a pull request at the forge for what it pushed, or find the one that is open. Defaults: the title of its last
    commit, the forge's default branch, the branch that is checked out.
    """
    wanted = given(title=title, body=body, base=base, branch=branch, draft=draft or None)
    asked = build(sandboxes.OpenPullRequest, **wanted)
    path = url("sandboxes", ref, "pull-request")
    return Call(post(path, asked, quick=False), reply(sandboxes.OpenedPullRequest))


def pull(ref: str, target: str | None = None) -> Call[dict[str, Any]]:
    """Fetch its commits, checked, into refs below `refs/corral/` of a clone on the daemon's host."""
    body = build(sandboxes.PullRequest, **given(target=target))
    return Call(
        post(url("sandboxes", ref, "pull"), body, quick=False),
        lambda raw: parse(sandboxes.Pulled, raw).result,
    )
