"""Lists of hosts that many sandboxes need, by name, each host with its purpose (G-319).

Every one of these is also a way out for data: a package registry takes uploads from whoever has an account there, and so
does a code host. What only reads is limited to reading where that can be told from method and path.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """Rules, and what they are for."""

    rules: tuple[str, ...]
    purpose: str


@dataclass(frozen=True, slots=True)
class Preset:
    """A named list of rules."""

    title: str
    entries: tuple[Entry, ...]


PRESETS: Mapping[str, Preset] = {
    "npm": Preset(
        "packages of Node: npm, pnpm, Yarn",
        (
            Entry(("registry.npmjs.org",), "package index and archives"),
            Entry(("registry.yarnpkg.com",), "the same under Yarn's name"),
        ),
    ),
    "pypi": Preset(
        "packages of Python: pip, uv, Poetry",
        (
            Entry(("pypi.org",), "package index"),
            Entry(("files.pythonhosted.org",), "package archives"),
        ),
    ),
    "crates": Preset(
        "packages of Rust: cargo",
        (
            Entry(("index.crates.io",), "sparse index"),
            Entry(("static.crates.io",), "package archives"),
            Entry(("crates.io",), "redirects to archives, search"),
        ),
    ),
    "go": Preset(
        "modules of Go",
        (
            Entry(("proxy.golang.org",), "module archives"),
            Entry(("sum.golang.org",), "checksum database"),
            Entry(
                ("storage.googleapis.com/proxy-golang-org-prod/**",), "archives that the proxy redirects to"
            ),
        ),
    ),
    "maven": Preset(
        "packages of Java: Maven",
        (Entry(("repo.maven.apache.org", "repo1.maven.org"), "Maven Central"),),
    ),
    "gradle": Preset(
        "packages of Java: Gradle, with its plugins, and itself for gradlew",
        (
            Entry(("repo.maven.apache.org", "repo1.maven.org"), "Maven Central"),
            Entry(("plugins.gradle.org", "plugins-artifacts.gradle.org"), "plugins"),
            Entry(
                ("GET,HEAD services.gradle.org", "GET,HEAD downloads.gradle.org"),
                "Gradle itself, and whither it redirects",
            ),
            Entry(
                (
                    "GET,HEAD github.com/gradle/gradle-distributions/**",
                    "GET,HEAD release-assets.githubusercontent.com",
                ),
                "Gradle itself, from where its releases are kept",
            ),
        ),
    ),
    "debian": Preset(
        "packages of Debian: apt",
        (
            Entry(("deb.debian.org",), "packages"),
            Entry(("security.debian.org",), "security updates"),
        ),
    ),
    "github": Preset(
        "GitHub, to read only: clone, fetch, releases, files, the REST API's GET",
        (
            Entry(
                (
                    "GET,HEAD github.com",
                    "POST github.com/*/*/git-upload-pack",
                    "POST github.com/*/*/info/lfs/objects/batch",
                ),
                "pages, git clone and fetch",
            ),
            Entry(("GET,HEAD api.github.com",), "REST API"),
            Entry(("GET,HEAD raw.githubusercontent.com",), "single files"),
            Entry(("GET,HEAD codeload.github.com",), "archives of repositories"),
            Entry(("GET,HEAD objects.githubusercontent.com",), "release files"),
            Entry(("GET,HEAD release-assets.githubusercontent.com",), "release files"),
            Entry(("GET,HEAD github-cloud.githubusercontent.com",), "large files (LFS)"),
        ),
    ),
}
