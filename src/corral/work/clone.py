"""Cloning a public repository inside a sandbox, through its gateway: the host takes no part but in asking."""

from corral.errors import UpstreamFailed
from corral.model.ids import check_name
from corral.work import guest
from corral.work.carry import TIMEOUT, CarriedRepo, Placing, destination
from corral.work.names import check_clone_url, choose_branch, clean_text, is_object_id
from corral.work.ports import GuestShell

_CLONE = guest.Script(
    "exec git -c protocol.allow=never -c protocol.https.allow=always -c protocol.http.allow=always"
    ' clone --quiet --no-recurse-submodules -- "$1" "$2"',
    "clone",
)
_BRANCH = guest.Script(
    f"""
set -eu
target=$1 temporary=$2 branch=$3 name=$4 email=$5
cd -- "$temporary"
if commit=$(git rev-parse --verify --quiet "refs/remotes/origin/$branch^{{commit}}"); then
    git checkout --quiet -B "$branch" --track "origin/$branch"
else
    commit=$(git rev-parse --verify --quiet 'HEAD^{{commit}}') || {{ echo 'it has no commits' >&2; exit 1; }}
    git checkout --quiet --no-track -B "$branch" "$commit"
fi
git update-ref {guest.BASE_REF} "$commit"
git config user.name "$name"
git config user.email "$email"
printf '%s\\n' "$commit"
if [ -e .gitmodules ]; then echo submodules; else echo -; fi
if git grep --quiet -F -e filter=lfs -- ':(top,glob)**/.gitattributes'; then echo lfs; else echo -; fi
{guest.TAKE_KEPT}
cd /
mv -T -- "$temporary" "$target"
""",
    "check out the clone",
)


async def clone_url(
    url: str,
    shell: GuestShell,
    *,
    name: str,
    branch: str | None = None,
    directory: str | None = None,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - enforced inside the sandbox
) -> CarriedRepo:
    """Clone `url` in the sandbox `name`; `branch` and `directory` as for `carry`.

    Raises InvalidInput for anything but a plain https URL, Conflict where the directory is in use,
    UpstreamFailed with what git said; after a failure nothing is left of the clone.
    """
    chosen = choose_branch(branch, check_name(name))
    target = destination(directory, check_clone_url(url))
    async with Placing(shell, target, "") as temporary:
        code, _, err = await shell.run(_CLONE.argv(url, temporary), env=guest.ENV, cwd="/", timeout=timeout)
        if code != 0:
            raise UpstreamFailed(
                f"cannot clone {url}: {clean_text(err) or f'exit code {code}'}",
                "see that the URL is right; a private repository needs a secret: `corral secret add --help`",
            )
        identity = (f"Corral {name}", f"{name}@corral.invalid")
        out = await guest.run(shell, _BRANCH, target, temporary, chosen, *identity, timeout=timeout)
    return _described(out, target, chosen)


def _described(out: bytes, target: str, branch: str) -> CarriedRepo:
    base, *flags = out.decode("utf-8", "replace").split()
    if not is_object_id(base):
        raise UpstreamFailed(
            "the sandbox's git gave an answer that makes no sense", "remove the sandbox, and create it anew"
        )
    notes = []
    if "submodules" in flags:
        notes.append("submodules were not cloned: run `git submodule update --init` in the sandbox")
    if "lfs" in flags:
        notes.append("files in Git LFS are pointers in the sandbox: run `git lfs pull` there")
    return CarriedRepo(target, branch, base, tuple(notes))
