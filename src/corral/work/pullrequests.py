"""Opening a pull request for what a sandbox pushed. The sandbox only says what is checked out and what the last commit is
called; the forge is called from the host.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from corral.errors import Conflict
from corral.model.git import RepoGrant
from corral.model.ids import TenantId
from corral.model.sandbox import Sandbox
from corral.model.secrets import SecretInfo
from corral.policy.repos import authority, find_grant
from corral.wire.forges import Forge, ForgeAnswer, ForgeCall, Opened, Proposal
from corral.work import guest
from corral.work.names import check_branch, clean_text
from corral.work.ports import GuestShell

CallForge = Callable[[TenantId, str, ForgeCall], Awaitable[ForgeAnswer]]

_LAST = guest.Script(
    """
cd -- "$1" || exit 91
git symbolic-ref --quiet --short HEAD || exit 90
git log -1 --format=%s HEAD
""",
    "read the branch in the sandbox",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller may say of a pull request; None means the default."""

    title: str | None = None
    body: str | None = None
    base: str | None = None
    branch: str | None = None
    draft: bool = False


async def open_pull_request(
    sandbox: Sandbox,
    repo: RepoGrant,
    secrets: Sequence[SecretInfo],
    shell: GuestShell,
    call: CallForge,
    wanted: Wanted,
) -> Opened:
    """Open a pull request of the sandbox's branch, or find the one that is open.

    Raises Conflict where its repository has no credential, Unsupported for a server without an API that is known, and
    what the forge's answers mean.
    """
    info = next((one for one in secrets if one.name == repo.secret), None)
    if info is None:
        raise Conflict(f"{repo.name} has no credential on the host", "add one: `corral secret add`")
    forge = Forge(info.provider, info.base_url)
    lines = (await guest.run(shell, _LAST, sandbox.spec.workdir)).split(b"\n")
    branch = check_branch(wanted.branch or lines[0].decode("utf-8", "replace"))
    title = wanted.title or clean_text(lines[1] if len(lines) > 1 else b"", 200) or branch

    async def ask(request: ForgeCall) -> ForgeAnswer:
        return await call(sandbox.spec.tenant, info.name, request)

    base = wanted.base or forge.default_branch(await ask(forge.repository(repo.path)))
    if check_branch(base) == branch:
        raise Conflict(f"{branch} is what the pull request would go into", "work on a branch: --branch auto")
    proposal = Proposal(repo.path, branch, base, title, wanted.body or "", wanted.draft)
    refusal = await ask(forge.open(proposal))
    opened = forge.opened(refusal)
    return opened or forge.found(await ask(forge.existing(proposal)), refusal)


def repo_of(sandbox: Sandbox, host_and_path: tuple[str, str] | None) -> RepoGrant:
    """The repository that a sandbox works on: the one that it was made from, or the only one that it may use."""
    grants = sandbox.spec.repos
    if host_and_path is not None:
        found = find_grant(grants, authority(host_and_path[0]), host_and_path[1])
        if found is not None:
            return found
    if len(grants) != 1:
        raise Conflict(
            f"sandbox {sandbox.spec.name} has no one repository to open a pull request for",
            "make it with --repo https://HOST/OWNER/NAME and --git-repo HOST/OWNER/NAME:write",
        )
    return grants[0]
