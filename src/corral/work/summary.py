"""What was done in a sandbox's repository, in short: changed files and commits. All of it is the sandbox's word."""

from datetime import datetime

from corral.model.ids import check_guest_path
from corral.model.receipt import MAX_COMMITS, MAX_FILES, ChangedFile, MadeCommit, Work
from corral.work import guest
from corral.work.names import is_object_id
from corral.work.ports import GuestShell

SECONDS = 15.0
"""For all of it: it is taken while somebody waits for the sandbox to be removed."""
_MAX_PATH, _MAX_TEXT = 1024, 200
_END = "\0end of files\0"

_SUMMARY = guest.Script(
    f"""
cd -- "$1" || exit 91
copy=$(mktemp -d) || exit 1
trap 'rm -rf -- "$copy"' EXIT
index=$(git rev-parse --git-path index) || exit 1
[ ! -f "$index" ] || cp -- "$index" "$copy/index" || exit 1
GIT_INDEX_FILE="$copy/index"
export GIT_INDEX_FILE
git -c core.fsmonitor=false -c core.splitIndex=false add --intent-to-add --ignore-errors -A -- . 2>/dev/null
git --no-pager -c core.fsmonitor=false diff --no-ext-diff --no-textconv --no-color --no-renames --numstat -z \
    "$2" -- || exit 1
printf '\\0end of files\\0'
git rev-list --count "$2..HEAD" || exit 1
git --no-pager log -z --no-show-signature --format='%H%n%an%n%s' --max-count={MAX_COMMITS} "$2..HEAD"
""",
    "sum up the repository in the sandbox",
)


async def summarise(shell: GuestShell, directory: str, now: datetime) -> Work:
    """The sum. Raises UpstreamFailed, Conflict, Timeout."""
    place = check_guest_path(directory)
    out = await guest.run(shell, _SUMMARY, place, guest.BASE_REF, timeout=SECONDS)
    return parse(out.decode("utf-8", "replace"), now)


def parse(text: str, now: datetime) -> Work:
    """What the script printed; what makes no sense is left out."""
    files_text, _, rest = text.partition(_END)
    files = [found for line in files_text.split("\0") if (found := _file(line)) is not None]
    count, _, log = rest.partition("\n")
    commits = [made for entry in log.split("\0") if (made := _commit(entry)) is not None]
    total = int(count) if count.isascii() and count.isdecimal() and len(count) < 9 else len(commits)
    return Work(
        now, tuple(files[:MAX_FILES]), tuple(commits[:MAX_COMMITS]), len(files), max(total, len(commits))
    )


def _file(line: str) -> ChangedFile | None:
    parts = line.strip("\n").split("\t", 2)
    if len(parts) != 3 or not parts[2]:
        return None
    added, deleted = (int(n) if n.isascii() and n.isdecimal() and len(n) < 12 else None for n in parts[:2])
    return ChangedFile(parts[2][:_MAX_PATH], added, deleted)


def _commit(entry: str) -> MadeCommit | None:
    lines = entry.strip("\n").split("\n")
    if len(lines) < 2 or not is_object_id(lines[0]):
        return None
    subject = lines[2] if len(lines) > 2 else ""
    return MadeCommit(lines[0], lines[1][:_MAX_TEXT], subject[:_MAX_TEXT])
