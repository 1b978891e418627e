"""What runs inside a sandbox: small shell scripts around git, whose arguments are values and never script
text.

Whatever they print is the sandbox's word. Git in a sandbox may be replaced, configured or broken by who
works there; that hurts only that sandbox.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from corral.errors import Conflict, CorralError, UpstreamFailed
from corral.work.names import clean_text, is_object_id
from corral.work.ports import GuestShell

BASE_REF = "refs/corral/base"
"""In a sandbox's clone: the commit that it started from."""
ENV = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C.UTF-8",
}

KEPT = ".corral-kept"
"""In a directory that a setup has left: the ignored files and directories that are kept there, each ended by NUL."""
TAKE_KEPT = f"""
if [ -f "$target/{KEPT}" ]; then
    xargs -0 -r sh -c '
        target=$1; shift
        for path do
            path=${{path%/}}
            [ -e "$target/$path" ] || [ -L "$target/$path" ] || continue
            ! [ -e "$path" ] && ! [ -L "$path" ] || continue
            mkdir -p -- "./$(dirname -- "$path")"
            mv -T -- "$target/$path" "./$path"
        done' sh "$target" < "$target/{KEPT}"
    rm -rf -- "$target"
fi
"""
"""Of a script in a new clone, before it goes to `$target`: moves into it what is kept there, where nothing is in the way."""

_OCCUPIED = 90
_NO_DIRECTORY = 91
_NO_BRANCH = 92

_PREPARE = f"""
set -eu
umask 022
target=$1 temporary=$2 format=$3
if [ -e "$target" ] || [ -L "$target" ]; then
    [ -d "$target" ] || exit {_OCCUPIED}
    [ -f "$target/{KEPT}" ] || [ -z "$(ls -A -- "$target")" ] || exit {_OCCUPIED}
fi
mkdir -p -- "$(dirname -- "$target")"
[ -z "$format" ] || git init --quiet --object-format="$format" -- "$temporary"
"""

_FINISH = f"""
set -eu
umask 022
target=$1 temporary=$2 branch=$3 commit=$4 name=$5 email=$6 origin=$7
cd -- "$temporary"
git config user.name "$name"
git config user.email "$email"
if [ -n "$origin" ]; then
    git config remote.origin.url "$origin"
    git config remote.origin.fetch '+refs/heads/*:refs/remotes/origin/*'
fi
git update-ref {BASE_REF} "$commit"
git checkout --quiet --no-track -B "$branch" "$commit"
{TAKE_KEPT}
cd /
mv -T -- "$temporary" "$target"
"""

# Of the work tree only what git ignores stays, with a list of it, for a later sandbox to put its own clone around. Prints what
# is new and goes with the rest.
_STRIP = f"""
set -eu
cd -- "$1" || exit {_NO_DIRECTORY}
list=$(mktemp)
git -c core.excludesFile=/dev/null ls-files -z --others --ignored --exclude-standard --directory > "$list"
git ls-files -z --others --exclude-standard --directory
git ls-files -z --cached --others --exclude-standard | xargs -0 -r rm -rf --
rm -rf .git
find . -mindepth 1 -type d -empty -delete
if [ -z "$(ls -A)" ]; then
    cd / && rmdir -- "$1"
else
    cat "$list" > {KEPT}
fi
rm -f "$list"
"""

_STATE = f"""
cd -- "$1" || exit {_NO_DIRECTORY}
if [ -n "$2" ]; then
    ref=refs/heads/$2
else
    ref=$(git symbolic-ref --quiet HEAD) || ref=HEAD
fi
printf '%s\\n' "$ref"
git rev-parse --verify --quiet "$ref^{{commit}}" || exit {_NO_BRANCH}
git rev-parse --verify --quiet '{BASE_REF}^{{commit}}' || echo none
git status --porcelain --untracked-files=normal --ignore-submodules=dirty | wc -l
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script and what it is for, in the words of its error: "cannot <purpose>"."""

    text: str
    purpose: str

    def argv(self, *args: str) -> tuple[str, ...]:
        """The command that runs it."""
        return ("sh", "-c", self.text, "sh", *args)


PREPARE = Script(_PREPARE, "make a repository in the sandbox")
FINISH = Script(_FINISH, "check out the repository in the sandbox")
STATE = Script(_STATE, "read the repository in the sandbox")
SHALLOW = Script('cat > "$1/.git/shallow"', "mark the repository in the sandbox as shallow")
REFS = Script('git -C "$1" update-ref -z --stdin', "make branches in the sandbox")
INDEX = Script('exec git -C "$1" index-pack --stdin >/dev/null', "unpack the repository in the sandbox")
STRIP = Script(_STRIP, "leave of the repository what a setup keeps")
DISCARD = Script('rm -rf -- "$1"', "clear away a repository in the sandbox")


async def run(
    shell: GuestShell,
    script: Script,
    *args: str,
    stdin: AsyncIterator[bytes] | None = None,
    timeout: float = 120.0,  # noqa: ASYNC109 - enforced inside the sandbox
) -> bytes:
    """What a script prints. Raises the error that its failure means."""
    code, out, err = await shell.run(script.argv(*args), env=ENV, cwd="/", stdin=stdin, timeout=timeout)
    if code != 0:
        raise _failure(script, code, err, args[0])
    return out


def _failure(script: Script, code: int, err: bytes, place: str) -> CorralError:
    text = clean_text(err)
    if code == _OCCUPIED:
        return Conflict(f"{place} is in use in the sandbox", "name another directory")
    if code == _NO_DIRECTORY:
        return Conflict(
            f"the sandbox has no directory {place}", "create it with --repo, or see `corral exec NAME ls`"
        )
    if code == _NO_BRANCH:
        return Conflict(
            "the branch asked for is not in the sandbox, or has no commits",
            "see `corral exec NAME git branch`",
        )
    if code == 127:
        return Conflict(
            f"cannot {script.purpose}: git is missing there", "use a template that has git, such as base"
        )
    return UpstreamFailed(
        f"cannot {script.purpose}: {text or f'exit code {code}'}",
        "look at it from inside: `corral shell NAME`",
    )


@dataclass(frozen=True, slots=True)
class GuestBranch:
    """A branch as the sandbox describes it. `ref` is None for a detached HEAD or a name that git would not
    accept.
    """

    ref: str
    commit: str
    base: str | None
    uncommitted: int


async def read_branch(shell: GuestShell, directory: str, branch: str | None) -> GuestBranch:
    """The branch, or what is checked out. Raises Conflict where it is not there, UpstreamFailed for
    nonsense.
    """
    lines = (await run(shell, STATE, directory, branch or "")).decode("utf-8", "replace").split("\n")
    if len(lines) < 4 or not is_object_id(lines[1]) or not lines[3].strip().isdecimal():
        raise UpstreamFailed(
            "the sandbox's git gave an answer that makes no sense",
            "look at it: `corral exec NAME git status`",
        )
    base = lines[2] if is_object_id(lines[2]) else None
    return GuestBranch(lines[0], lines[1], base, min(int(lines[3].strip()[:9]), 10**6))
