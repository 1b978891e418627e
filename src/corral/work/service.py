"""Repositories as a service of the engine: brought into new sandboxes, compared, fetched back."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from corral.engine.plan import CreateRequest
from corral.engine.processes import Processes
from corral.engine.sandboxes import Sandboxes
from corral.engine.shell import Shell
from corral.errors import Conflict
from corral.model.ids import TenantId
from corral.model.receipt import Work
from corral.model.sandbox import Sandbox
from corral.model.secrets import SecretInfo
from corral.work import guest
from corral.work.carry import GUEST_HOME, carry
from corral.work.clone import clone_url
from corral.work.diff import diff
from corral.work.inspect import inspect_repo
from corral.work.names import check_clone_url, choose_branch, clean_text, directory_name
from corral.work.pull import pull
from corral.work.pullrequests import CallForge, Wanted, open_pull_request, repo_of
from corral.work.repogrants import with_grants
from corral.work.summary import summarise


class RepositoryService:
    """What the engine knows of repositories. `scratch` is a directory of `quarantine.make_scratch`."""

    def __init__(
        self,
        *,
        sandboxes: Callable[[], Sandboxes],
        processes: Processes,
        scratch: Path,
        secrets: Callable[[TenantId], Awaitable[list[SecretInfo]]],
        call_forge: CallForge,
    ) -> None:
        self._sandboxes = sandboxes
        self._secrets = secrets
        self._call_forge = call_forge
        self._processes = processes
        self._scratch = scratch

    async def complete(self, tenant: TenantId, request: CreateRequest) -> CreateRequest:
        """The request with its repository checked and its working directory set to where that will be, and with the
        credential of each repository that it may use.

        Raises what `inspect_repo` and `with_grants` raise, InvalidInput for a bad URL or branch.
        """
        url = check_clone_url(request.repo) if request.repo is not None and _is_url(request.repo) else None
        if request.repos or url is not None:
            request = with_grants(request, await self._secrets(tenant), url)
        if request.repo is None:
            return request
        choose_branch(request.branch, "sandbox")
        source = request.repo if url is not None else str((await inspect_repo(request.repo)).path)
        workdir = request.workdir or f"{GUEST_HOME}/{directory_name(source)}"
        return replace(request, repo=source, workdir=workdir)

    async def bring_in(self, sandbox: Sandbox, request: CreateRequest) -> None:
        """Put the request's repository into a new sandbox."""
        spec = sandbox.spec
        if spec.repo is None:
            return
        bring = clone_url if _is_url(spec.repo) else carry
        repo = await bring(
            spec.repo, self._shell(sandbox), name=spec.name, branch=spec.branch, directory=spec.workdir
        )
        if request.progress is not None:
            request.progress(f"repository at {repo.directory} on branch {repo.branch}")
            for note in repo.notes:
                request.progress(f"note: {note}")

    async def strip(self, sandbox: Sandbox) -> list[str]:
        """Take all of its repository away but what git ignores there, for a setup to keep; what else was new there."""
        out = await guest.run(self._shell(sandbox), guest.STRIP, sandbox.spec.workdir, timeout=600.0)
        return [clean_text(name) for name in out.split(b"\0") if name]

    async def diff(self, tenant: TenantId, ref: str) -> AsyncIterator[bytes]:
        """What changed since the sandbox got the repository, uncommitted and untracked files included."""
        sandbox = self._with_repo(tenant, ref)
        async for data in diff(self._shell(sandbox), sandbox.spec.workdir):
            yield data

    async def pull(self, tenant: TenantId, ref: str, target: str | None) -> dict[str, Any]:
        """Fetch the sandbox's commits into `refs/corral/<name>` of `target`, or of the repository that it came from."""
        sandbox = self._with_repo(tenant, ref)
        source = str(sandbox.spec.repo)
        if target is None and _is_url(source):
            raise Conflict(
                "this sandbox's repository came from a URL", "say which clone to fetch into: --into PATH"
            )
        result = await pull(
            self._shell(sandbox),
            sandbox.spec.workdir,
            target or source,
            name=sandbox.spec.name,
            scratch=self._scratch,
        )
        return asdict(result)

    async def open_pull_request(
        self,
        tenant: TenantId,
        ref: str,
        title: str | None,
        body: str | None,
        base: str | None,
        branch: str | None,
        draft: bool,
    ) -> dict[str, Any]:
        """Open a pull request for what a sandbox pushed, with the host's credential; where it is."""
        sandbox = self._sandboxes().get(tenant, ref)
        source = urlsplit(sandbox.spec.repo) if sandbox.spec.repo and _is_url(sandbox.spec.repo) else None
        repo = repo_of(sandbox, (source.netloc, source.path) if source else None)
        wanted = Wanted(title, body, base, branch, draft)
        secrets = await self._secrets(tenant)
        found = await open_pull_request(
            sandbox, repo, secrets, self._shell(sandbox), self._call_forge, wanted
        )
        return {"repository": repo.name, **asdict(found)}

    async def summarise(self, sandbox: Sandbox) -> Work:
        """What was done in a sandbox's repository until now, in short."""
        return await summarise(self._shell(sandbox), sandbox.spec.workdir, datetime.now(UTC))

    def _with_repo(self, tenant: TenantId, ref: str) -> Sandbox:
        sandbox = self._sandboxes().get(tenant, ref)
        if sandbox.spec.repo is None:
            raise Conflict(
                f"sandbox {sandbox.spec.name} was made without a repository", "make one with --repo PATH"
            )
        return sandbox

    def _shell(self, sandbox: Sandbox) -> Shell:
        return Shell(self._processes, sandbox.spec.tenant, sandbox.id, sandbox.spec.user)


def _is_url(source: str) -> bool:
    return "://" in source
