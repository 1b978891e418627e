"""A repository's file at work: setups that are kept, found again and renewed; services; consent."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces, wait_for

from corral import Client, Sandbox
from corral.errors import CommandFailed, InvalidInput
from corral.sdk.projects import create_options, find_project

pytestmark = pytest.mark.root

FILE = '''\
[[setup.step]]
run = """
mkdir -p node_modules packages/a/node_modules
cp lock node_modules/
echo made > packages/a/node_modules/x
date +%N > ~/when
"""
files = ["lock"]
[[setup.step]]
run = "test -f node_modules/lock; echo second > .cache; echo unkept > new; mkdir -p empty/dir"
'''


class Repo:
    """A repository of the test's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")
        (path / ".gitignore").write_text("node_modules\n.cache\n")
        (path / "packages" / "a").mkdir(parents=True)
        (path / "packages" / "a" / "index").write_text("a\n")
        self.commit(FILE, lock="one\n")

    def git(self, *args: str) -> None:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        subprocess.run(["git", "-C", self.path, *identity, *args], check=True, capture_output=True)

    def commit(self, text: str | None = None, **files: str) -> None:
        if text is not None:
            (self.path / "corral.toml").write_text(text)
        for name, content in files.items():
            (self.path / name).write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")

    def create(self, client: Client, **given: object) -> Sandbox:
        found = find_project(self.path)
        assert found is not None
        return Sandbox.create(client=client, **create_options(found[1], {"repo": str(self.path), **given}))


@pytest.fixture
def repo(tmp_path: Path, client: Client) -> Iterator[Repo]:
    yield Repo(tmp_path / "demo")
    for template in client.list_templates():
        if template.name.startswith("setup-"):
            client.remove_template(template.name)
    client.forget_steps()


def test_a_setup_is_done_once_and_kept(client: Client, repo: Repo) -> None:
    first = repo.create(client)
    ls = "cat node_modules/lock packages/a/node_modules/x packages/a/index .cache; git status --porcelain; ls"
    kept = "one\nmade\na\nsecond\ncorral.toml\nlock\nnode_modules\npackages\n"
    assert first.exec(ls, check=True).stdout == kept
    when = first.exec("cat ~/when", check=True).stdout
    repo.commit(other="not named by any step\n")
    second = repo.create(client)
    assert second.exec("cat ~/when other", check=True).stdout == f"{when}not named by any step\n"
    assert second.info.template == first.info.template
    assert [item.name for item in client.list_templates() if item.source == f"setup:{repo.path}"] == [
        client.get_template(first.info.template).name
    ]


def test_what_a_setup_may_reach_its_sandboxes_may_not(client: Client, repo: Repo) -> None:
    """G-320: the names that are open to it are shut when it is done, in what starts from it then and later."""
    look = "getent hosts setup.example.com | cut -d' ' -f1"
    repo.commit(
        f'[setup]\nallow = ["setup.example.com"]\n[[setup.step]]\nrun = "mkdir -p node_modules; {look} > node_modules/found"\n'
    )
    for _ in range(2):
        box = repo.create(client)
        assert box.exec("cat node_modules/found", check=True).stdout.startswith("198.1")
        assert box.exec(look).stdout == ""
        assert [rule for rule in client.get_egress(box.id) if not rule.deny] == []


def test_the_users_repository_knows_nothing_of_sandboxes(client: Client, repo: Repo) -> None:
    """G-274, G-275: it can be pruned and collected while they work, and their work comes out all the same."""
    before = {path: path.read_bytes() for path in (repo.path / ".git").rglob("*") if path.is_file()}
    box = repo.create(client, branch="auto")
    assert {path: path.read_bytes() for path in (repo.path / ".git").rglob("*") if path.is_file()} == before
    repo.git("worktree", "prune", "--expire=now")
    repo.git("gc", "--quiet", "--prune=now")
    commit = "git -c user.name=t -c user.email=t@example.org commit -qm inside"
    box.exec(f"echo more > file && git add -A && {commit} && git fsck --full", check=True)
    client.pull(box.id, str(repo.path))
    shown = subprocess.run(
        ["git", "-C", repo.path, "worktree", "list"], check=True, capture_output=True, text=True
    )
    assert shown.stdout.count("\n") == 1
    repo.git("cat-file", "-e", f"refs/corral/{box.name}^{{commit}}")


def test_a_changed_lock_file_sets_up_anew_and_the_former_branch_is_found_again(
    client: Client, repo: Repo
) -> None:
    when = repo.create(client).exec("cat ~/when", check=True).stdout
    repo.git("switch", "-q", "-c", "other")
    repo.commit(lock="two\n")
    changed = repo.create(client)
    assert changed.exec("cat node_modules/lock", check=True).stdout == "two\n"
    assert changed.exec("cat ~/when", check=True).stdout != when
    repo.git("switch", "-q", "main")
    assert repo.create(client).exec("cat ~/when", check=True).stdout == when
    assert repo.create(client, branch="other").exec("cat node_modules/lock", check=True).stdout == "two\n"


def test_what_git_does_not_ignore_is_told_and_once_ignored_it_is_kept(daemon: Daemon, repo: Repo) -> None:
    (repo.path / ".gitignore").unlink()
    repo.commit(
        '[[setup.step]]\nrun = "mkdir -p lib/sub; echo x > lib/sub/x; cp lock lib/"\nfiles = ["lock"]\n'
    )
    told = daemon.cli("create", "--name", "one", "--repo", str(repo.path), "--trust").stderr
    assert "not kept, since git does not ignore it: lib/" in told
    repo.commit(**{".gitignore": "lib\n"})
    told = daemon.cli("create", "--name", "two", "--repo", str(repo.path)).stderr
    assert "not kept" not in told
    assert daemon.cli("exec", "two", "--", "cat", "lib/sub/x").stdout == "x\n"


def test_later_steps_alone_are_done_again(client: Client, repo: Repo) -> None:
    when = repo.create(client).exec("cat ~/when", check=True).stdout
    repo.commit(FILE.replace("echo second", "echo third"))
    changed = repo.create(client)
    assert changed.exec("cat ~/when .cache", check=True).stdout == f"{when}third\n"


def test_a_stale_setup_serves_while_a_new_one_is_made(client: Client, repo: Repo) -> None:
    stale = FILE.replace("[[setup.step]]", "[setup]\nserve-stale = true\n[[setup.step]]", 1)
    repo.commit(stale)
    repo.create(client)
    repo.commit(lock="two\n")
    told: list[str] = []
    served = repo.create(client, progress=told.append)
    assert served.exec("cat node_modules/lock", check=True).stdout == "one\n"
    assert any("as it was" in line for line in told)
    name = client.get_template(served.info.template).name if served.info.template else ""

    def renewed() -> bool:
        return all(item.id != served.info.template for item in client.list_templates())

    wait_for(renewed, f"the setup {name} was not renewed")
    assert repo.create(client).exec("cat node_modules/lock", check=True).stdout == "two\n"


def test_a_failing_setup_leaves_nothing(daemon: Daemon, client: Client, repo: Repo) -> None:
    repo.commit('[[setup.step]]\nrun = "echo said; exit 3"\n')
    before = traces(daemon)
    with pytest.raises(CommandFailed, match="exit code 3: said"):
        repo.create(client)
    assert client.list_sandboxes() == []
    settled(daemon, before)
    repo.commit('[[setup.step]]\nrun = "true"\nfiles = ["nothing-like-this"]\n')
    with pytest.raises(InvalidInput, match="nothing-like-this"):
        repo.create(client)


def test_services_run_in_the_repository_and_the_create_waits_for_them(client: Client, repo: Repo) -> None:
    repo.commit('[service.web]\nrun = "sleep 0.5; exec python3 -m http.server 8123"\nport = 8123\n')
    with repo.create(client) as box:
        assert box.exec("curl -s localhost:8123/lock", check=True).stdout == "one\n"
        assert "service:web" in [item.tag for item in box.processes()]
        box.stop(0)
        box.start()
        assert box.exec("curl -s localhost:8123/lock", check=True).stdout == "one\n"


def test_the_command_line_asks_before_it_opens_anything(
    daemon: Daemon, client: Client, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".config" / "nvim").mkdir(parents=True)
    (home / ".config" / "nvim" / "init.lua").write_text("settings\n")
    (home / ".config" / "nvim" / "token.txt").write_text("a credential\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CORRAL_CACHE_DIR", os.environ.get("CORRAL_CACHE_DIR", "/root/.cache/corral"))
    repo.commit('carry = [".config/nvim"]\n[policy]\nallow = ["example.org"]\n')
    refused = daemon.cli("create", "--repo", str(repo.path), check=False)
    assert refused.returncode == 3
    assert "reach example.org" in refused.stderr
    assert "get ~/.config/nvim of yours" in refused.stderr
    assert client.list_sandboxes() == []
    daemon.cli("create", "--repo", str(repo.path), "--name", "plain", "--no-project")
    assert client.get_sandbox("plain").allow == []
    daemon.cli("create", "--repo", str(repo.path), "--name", "trusted", "--trust")
    daemon.cli("create", "--repo", str(repo.path), "--name", "again")
    assert [rule.host for rule in client.get_sandbox("again").allow] == ["example.org"]
    carried = Sandbox.connect("again", client=client).exec(
        "cd ~/.config/nvim && ls && cat init.lua", check=True
    )
    assert carried.stdout == "init.lua\nsettings\n"
    repo.commit('[policy]\nallow = ["example.org", "other.example.org"]\n')
    assert daemon.cli("create", "--repo", str(repo.path), check=False).returncode == 3


def test_init_writes_what_create_reads(daemon: Daemon, repo: Repo) -> None:
    (repo.path / "corral.toml").unlink()
    (repo.path / "requirements.txt").write_text("")
    assert daemon.cli("init", str(repo.path)).stdout == f"{repo.path}/corral.toml\n"
    assert "pip install -r requirements.txt" in (repo.path / "corral.toml").read_text()
    assert daemon.cli("init", str(repo.path), check=False).returncode == 5
    found = find_project(repo.path / "packages" / "a")
    assert found is not None
    assert found[0] == repo.path


LOCK = """{"name": "demo", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {
"": {"name": "demo", "version": "1.0.0", "dependencies": {"left-pad": "1.3.0"}},
"node_modules/left-pad": {"version": "1.3.0", "license": "WTFPL",
"integrity": "sha512-XI5MPzVNApjAyhQzphX8BkmKsKUxD4LdyK24iZeQGinBN9yTQT3bFlCBy/aVx2HrNcqQGsdot8ghrjyrvMCoEA=="}}}
"""


@pytest.mark.network
def test_a_node_project_from_the_real_registry(client: Client, repo: Repo) -> None:
    package = '{"name": "demo", "version": "1.0.0", "dependencies": {"left-pad": "1.3.0"}}'
    (repo.path / "package.json").write_text(package)
    (repo.path / "package-lock.json").write_text(LOCK)
    (repo.path / "corral.toml").unlink()
    from corral.sdk.project_guess import write_project

    write_project(repo.path)
    repo.commit()
    for _ in range(2):
        box = repo.create(client)
        assert box.exec("node -p 'require(\"left-pad\")(1, 3)'", check=True).stdout == "  1\n"
    assert len({item.info.template for item in Sandbox.list(client=client)}) == 1
