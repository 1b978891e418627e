"""A repository that an agent prepared, against whoever looks at its work on the host: `corral diff`, `corral pull`, git."""

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corral import Sandbox

if TYPE_CHECKING:
    from tests.attack.conftest import Range

pytestmark = pytest.mark.root


def git(place: Path, *args: str) -> str:
    """The host's git, as its user runs it."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ("-c", "user.name=Owner", "-c", "user.email=owner@example.com")
    done = subprocess.run(
        ["git", "-C", str(place), *identity, *args], capture_output=True, text=True, check=True, env=env
    )
    return done.stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository of the user's."""
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    (place / "code.py").write_text("print('one')\n")
    git(place, "add", ".")
    git(place, "commit", "-qm", "One")
    return place


def state(repo: Path) -> dict[str, bytes]:
    """Every file of a repository but its objects and what a pull may add."""
    ours = (
        ".git/objects",
        ".git/refs/corral",
        ".git/packed-refs",
        ".git/FETCH_HEAD",
        ".git/logs/refs/corral",
        ".git/shallow",
    )
    found = {}
    for path in repo.rglob("*"):
        name = str(path.relative_to(repo))
        if path.is_file() and not name.startswith(ours):
            found[name] = path.read_bytes()
    return found


# In the sandbox: configuration, hooks, attributes, filters and programs that all want to run `touch MARK`.
_POISON = """
cd ~/project
run='touch MARK'
mkdir -p .vscode .githooks
echo '{"tasks": [{"command": "touch MARK", "runOptions": {"runOn": "folderOpen"}}]}' > .vscode/tasks.json
echo '* filter=evil diff=evil merge=evil' > .gitattributes
echo "print('two')" > code.py
git add -A; git commit -qm 'Two' || exit 1
printf '#!/bin/sh\\n%s\\n' "$run" > /tmp/evil; chmod 755 /tmp/evil
for hook in post-checkout pre-commit post-commit pre-push update post-update reference-transaction post-index-change \\
            pre-receive post-receive upload-pack pre-auto-gc post-rewrite fsmonitor-watchman; do
  cp /tmp/evil .git/hooks/$hook
done
echo '* filter=evil diff=evil' > .git/info/attributes
for key in core.fsmonitor core.sshCommand core.pager diff.external core.editor uploadpack.packObjectsHook diff.evil.textconv \\
           diff.evil.command filter.evil.smudge filter.evil.clean filter.evil.process merge.evil.driver core.gitProxy \\
           gpg.program remote.origin.uploadpack core.askPass core.alternateRefsCommand; do
  git config "$key" "$run"
done
git config alias.status "!$run"; git config alias.diff "!$run"; git config credential.helper "!$run"
git config core.hooksPath /tmp; git config log.showSignature true; git config include.path /tmp/evil.config
git config "url.ext::sh -c '$run'.insteadOf" https:
exit 0
"""


def work(arena: "Range", repo: Path, script: str, isolation: str = "container") -> Sandbox:
    """A sandbox on the repository, in which a script was run."""
    box = arena.box(isolation, repo=str(repo), branch="auto")
    done = box.exec(["bash", "-c", script], timeout=100)
    assert done.exit_code == 0, done.stderr
    return box


def test_poisoned_configuration_and_hooks_run_nothing_on_the_host(
    arena: "Range", isolation: str, repo: Path, tmp_path: Path
) -> None:
    """G-271 to G-274, GIT-14: hooks, filters, drivers, monitors, helpers and aliases of the agent's repository: none runs here."""
    mark = tmp_path / "mark"
    box = work(arena, repo, _POISON.replace("MARK", str(mark)), isolation)
    before = state(repo)
    shown = arena.daemon.cli("diff", box.name, check=False)
    pulled = arena.daemon.cli("pull", box.name, check=False)
    assert not mark.exists()
    assert state(repo) == before
    # Its own poison may make git fail, inside.
    assert "two" in shown.stdout or shown.returncode != 0
    refs = git(repo, "for-each-ref", "--format=%(refname)").split()
    assert [ref for ref in refs if not ref.startswith("refs/corral/")] == ["refs/heads/main"]
    if pulled.returncode == 0:
        # G-279: what would run on the host once it is opened there is said.
        assert ".vscode/tasks.json" in pulled.stdout + pulled.stderr
        git(repo, "log", "--all", "--stat")
        assert not mark.exists()


def test_hostile_trees_are_refused(arena: "Range", repo: Path, tmp_path: Path) -> None:
    """G-276: a tree with `.git/hooks` or `..` in it, made by hand, does not get into the user's clone."""
    script = """
cd ~/project
blob=$(printf '#!/bin/sh\\ntouch MARK\\n' | git hash-object -w --stdin)
hooks=$(printf '100755 blob %s\\tpost-checkout\\n' $blob | git mktree)
inner=$(printf '040000 tree %s\\thooks\\n' $hooks | git mktree)
evil=$(printf '040000 tree %s\\t.GIT\\n' $inner | git mktree)
commit=$(git commit-tree -p HEAD -m evil $evil)
git update-ref HEAD $commit
"""
    box = work(arena, repo, script.replace("MARK", str(tmp_path / "mark")))
    before = state(repo)
    done = arena.daemon.cli("pull", box.name, check=False)
    assert done.returncode != 0
    assert state(repo) == before
    assert "refs/corral" not in git(repo, "for-each-ref")


def test_refs_and_paths_that_lead_elsewhere(arena: "Range", repo: Path, host_secret: Path) -> None:
    """G-269, G-270: a `.git` that is a link or a file, alternates that name host directories, refs that look like options."""
    scripts = (
        f"cd ~/project && rm -rf .git && ln -s {host_secret.parent} .git",
        f"cd ~/project && mv .git /tmp/g && echo 'gitdir: {repo}/.git' > .git",
        f"cd ~/project && echo {repo}/.git/objects > .git/objects/info/alternates && rm -rf .git/objects/??",
        "cd ~/project && echo 'ref: refs/heads/--upload-pack=touch /tmp/x' > .git/HEAD",
        "cd ~/project && printf 'ref: ../../../../etc/passwd\\n' > .git/HEAD",
        "cd ~/project && git symbolic-ref HEAD refs/heads/x; ln -sf /etc/shadow .git/HEAD",
        "rm -rf ~/project && ln -s / ~/project",
        "mkdir -p ~/bin && printf '#!/bin/sh\\nyes\\n' > ~/bin/git && chmod 755 ~/bin/git; echo 'PATH=~/bin:$PATH' >> ~/.profile",
    )  # fmt: skip
    before = state(repo)
    for script in scripts:
        box = work(arena, repo, script)
        for command in ("diff", "pull"):
            done = arena.daemon.cli(command, box.name, check=False)
            assert host_secret.read_text() not in done.stdout + done.stderr, script
        box.kill()
    assert state(repo) == before
    arena.alive()


def test_a_git_of_the_agents_own_making_answers(arena: "Range", repo: Path, host_secret: Path) -> None:
    """Principle 1: what a replaced `git` in the sandbox says, and how much, is data: refused or bounded, never obeyed."""
    box = work(arena, repo, "true")
    for fake in (
        "yes",
        "head -c 50000000 /dev/urandom",
        f"echo --upload-pack=cat {host_secret}",
        "sleep 0",
        "kill -9 $$",
    ):
        box.exec(
            ["sh", "-c", f"printf '#!/bin/sh\\n{fake}\\n' > /tmp/git && cp /tmp/git /usr/bin/git"],
            user="root",
            check=True,
        )
        before = state(repo)
        done = arena.daemon.cli("pull", box.name, check=False)
        assert done.returncode != 0, fake
        assert state(repo) == before
    arena.alive()


def test_a_hostile_users_repository_runs_nothing_at_create(
    arena: "Range", repo: Path, tmp_path: Path
) -> None:
    """G-271, GIT-14: a repository from elsewhere, with hooks and monitors of its own, given to `--repo`."""
    mark = tmp_path / "mark"
    hook = f"#!/bin/sh\ntouch {mark}\n"
    for name in (
        "post-checkout",
        "pre-commit",
        "reference-transaction",
        "post-index-change",
        "pre-auto-gc",
        "fsmonitor-watchman",
    ):
        path = repo / ".git" / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(hook)
        path.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "diff.external", "filter.evil.clean", "filter.evil.smudge", "core.pager",
                "uploadpack.packObjectsHook", "core.alternateRefsCommand"):  # fmt: skip
        git(repo, "config", key, f"touch {mark}")
    (repo / ".gitattributes").write_text("* filter=evil\n")
    box = arena.box(repo=str(repo), branch="auto")
    assert not mark.exists()
    assert "code.py" in box.exec("ls ~/project").stdout
    assert not mark.exists()
