"""Every removal, and the attacks that none is for."""

from tests.removals.kernel import KERNEL
from tests.removals.network import NETWORK
from tests.removals.requests import REQUESTS
from tests.removals.secrets import SECRETS

REMOVALS = (*NETWORK, *REQUESTS, *SECRETS, *KERNEL)

NOTHING_TO_REMOVE = {
    "kernel-modules": "beside the filter they need rights over the host; tried with them, where the kernel had none of these calls",
    "control-api": "the gateway has no door to the daemon's API that could be opened",
    "own-approval": "an answer comes by the daemon's API alone: the gateway's process has no way to give one",
    "git-hooks": "git of the host gets objects and never a place of a sandbox: it has no configuration or hook to find",
    "processes": "without a process namespace, or with another's /proc, what starts the others does not work at all",
    "open-files": "the kernel holds a process to the host's own limit, which is below what the attack tries on many hosts",
    "holes": "a hole takes no room in any file system that a store can be on",
}
"""Attacks by their names, and why no defence of ours could be taken away so that they succeed."""
