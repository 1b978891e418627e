"""What changed in a sandbox's repository since it came there."""

from collections.abc import AsyncIterator

from corral.errors import InvalidInput
from corral.model.ids import check_guest_path
from corral.work import guest
from corral.work.names import is_object_id
from corral.work.ports import GuestShell

# A copy of the index takes the untracked files, so that the sandbox's own stays as it is. `-N` adds their
# names only: no object is written. What cannot be added (a socket, a nested repository) is left out.
_DIFF = guest.Script(
    """
cd -- "$1" || { echo "there is no directory $1" >&2; exit 1; }
copy=$(mktemp -d) || exit 1
trap 'rm -rf -- "$copy"' EXIT
index=$(git rev-parse --git-path index) || exit 1
[ ! -f "$index" ] || cp -- "$index" "$copy/index" || exit 1
export GIT_INDEX_FILE="$copy/index"
git -c core.fsmonitor=false -c core.splitIndex=false add --intent-to-add --ignore-errors -A -- . 2>/dev/null
git --no-pager -c core.fsmonitor=false -c core.quotePath=true diff --no-ext-diff --no-textconv --no-color \
    --binary --src-prefix=a/ --dst-prefix=b/ --find-renames "$2" --
""",
    "compare the repository in the sandbox",
)


async def diff(
    shell: GuestShell,
    directory: str,
    base: str | None = None,
    *,
    timeout: float = 600.0,  # noqa: ASYNC109 - enforced inside the sandbox
) -> AsyncIterator[bytes]:
    """The difference, as a patch, from the commit `base` to the files as they are: committed, uncommitted,
    and untracked but not ignored. By default from the commit that the sandbox started with.

    The text is the sandbox's: whoever shows it on a terminal makes its control characters harmless. Raises
    UpstreamFailed.
    """
    if base is not None and not is_object_id(base):
        raise InvalidInput(f"{base[:80]!r} is not a commit id", "give all 40 (or 64) hexadecimal digits")
    argv = _DIFF.argv(check_guest_path(directory), base or guest.BASE_REF)
    async for data in shell.stream_out(argv, env=guest.ENV, cwd="/", timeout=timeout):
        yield data
