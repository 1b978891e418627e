"""Which repository and service a request means (G-231 to G-235)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.model.git import Access, RepoGrant
from corral.policy.repos import BadRoute, Route, Service, find_grant, grant, parse_repo, rewrites, route


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("github.com/O/R", RepoGrant("github.com", "o/r", Access.READ, None, True)),
        ("https://GitHub.com/o/r.git:write", RepoGrant("github.com", "o/r", Access.WRITE, None, True)),
        ("git.test:8443/A/b/c:read", RepoGrant("git.test:8443", "A/b/c")),
        ("git.test:443/a", RepoGrant("git.test", "a")),
        ("git.test/~me/x.wiki.git", RepoGrant("git.test", "~me/x.wiki")),
        (
            "dev.test/o/My%20App%20%282%29/_git/r%C3%a9",
            RepoGrant("dev.test", "o/My%20App%20%282%29/_git/r%C3%A9"),
        ),
    ],
)
def test_what_is_granted(text: str, expected: RepoGrant) -> None:
    assert parse_repo(text) == expected


@pytest.mark.parametrize(
    "text", ["github.com", "github.com/", "a/../b", "g.test/a/../b", "g.test/a//b", "g.test/a/.git", "g.test/a%2fb",
             "g.test/a:admin", "g.test/-x", "g.test/a b", "/a/b", "g.test/a\\b", "g.test/" + "a/" * 30]
)  # fmt: skip
def test_what_is_no_repository(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_repo(text)


@pytest.mark.parametrize(
    "name", ["a%2Fb", "a%5cb", "%2e%2e", "a%00", "a%0a", "%61", "a%25", "a%", "a%2", "a%C3", "a%3fb", "a%23b", "%20", "a%20",
             "a%EF%BC%8Fb", "%EF%BC%8E%EF%BC%8E", "a%E2%80%AEb", "%EF%BD%81"]
)  # fmt: skip
def test_an_escape_stands_for_nothing_that_a_server_could_read_otherwise(name: str) -> None:
    """G-234: no separators, dots, controls or wide forms of these, and nothing that needs no escape."""
    for text in (f"g.test/{name}/b", f"g.test/a/{name}"):
        with pytest.raises(InvalidInput):
            parse_repo(text)
    assert isinstance(route("POST", f"/git/g.test/a/{name}/git-upload-pack", ""), BadRoute)


@pytest.mark.parametrize(
    ("method", "rest", "query", "service", "path"),
    [
        ("GET", "a/b/info/refs", "service=git-upload-pack", Service.READ_REFS, "a/b"),
        ("GET", "a/b.git/info/refs", "service=git-receive-pack", Service.WRITE_REFS, "a/b.git"),
        ("POST", "a/b/c/git-upload-pack", "", Service.FETCH, "a/b/c"),
        ("POST", "a/b/git-receive-pack", "", Service.PUSH, "a/b"),
        ("POST", "a/b.git/info/lfs/objects/batch", "", Service.LFS_BATCH, "a/b.git"),
        ("POST", "a/b.git/info/lfs/locks/17/unlock", "", Service.LFS_LOCK, "a/b.git"),
        ("GET", "a/b/info/lfs/locks", "path=x&limit=1", Service.LFS_LOCKS, "a/b"),
        ("POST", "o/My%20App/_git/r/git-receive-pack", "", Service.PUSH, "o/My%20App/_git/r"),
    ],
)
def test_what_is_served(method: str, rest: str, query: str, service: Service, path: str) -> None:
    found = route(method, f"/git/git.test/{rest}", query)
    assert isinstance(found, Route)
    assert (found.host, found.service, found.path) == ("git.test", service, path)


@pytest.mark.parametrize(
    ("method", "rest", "query"),
    [
        ("GET", "a/b/info/refs", ""),
        ("GET", "a/b/info/refs", "service=git-upload-pack&service=git-receive-pack"),
        ("GET", "a/b/info/refs", "service=git-upload-archive"),
        ("GET", "a/b/info/refs", "x=1&service=git-upload-pack"),
        ("GET", "a/b/info/refs", "service=git%2Dupload-pack"),
        ("POST", "a/b/info/refs", "service=git-upload-pack"),
        ("GET", "a/b/HEAD", ""),
        ("GET", "a/b/objects/info/packs", ""),
        ("GET", "a/b/git-upload-pack", ""),
        ("POST", "a/b/git-upload-archive", ""),
        ("POST", "a/b/git-receive-pack", "x=1"),
        ("POST", "a/../b/git-upload-pack", ""),
        ("POST", "a//b/git-upload-pack", ""),
        ("POST", "a%2f..%2fb/git-upload-pack", ""),
        ("POST", "a/%2e%2e/b/git-upload-pack", ""),
        ("POST", "a/b%2fgit-receive-pack", ""),
        ("POST", "a/b/git%2Dupload-pack", ""),
        ("POST", "%61/b/git-upload-pack", ""),
        ("POST", "a/./git-upload-pack", ""),
        ("POST", "git-upload-pack", ""),
        ("POST", "a/b/info/lfs/../../git-receive-pack", ""),
        ("DELETE", "a/b/git-receive-pack", ""),
        ("GET", "a/b/archive/refs/heads/main.tar.gz", ""),
        ("GET", "a/b/raw/main/x", ""),
        ("GET", "a/b/releases/download/v1/x.zip", ""),
        ("GET", "a/b/-/archive/main/b.zip", ""),
    ],
)
def test_what_is_not_served(method: str, rest: str, query: str) -> None:
    """G-231, G-232, G-247: other services, other spellings, other content of a repository's."""
    assert isinstance(route(method, f"/git/git.test/{rest}", query), BadRoute)


def test_the_case_of_names_is_the_forges_matter() -> None:
    grants = [grant("github.com", "O/R", Access.READ), grant("git.test", "O/R", Access.READ)]
    assert find_grant(grants, "github.com", "o/R.git") is grants[0]
    assert find_grant(grants, "git.test", "O/R") is grants[1]
    assert find_grant(grants, "git.test", "o/r") is None
    assert find_grant(grants, "github.com", "o/r.wiki.git") is None
    assert find_grant(grants, "github.com", "o/r/x") is None
    encoded = [grant("git.test", "o/My%20App", Access.READ)]
    assert find_grant(encoded, "git.test", "o/My%20App.git") is encoded[0]


def test_a_host_that_is_open_anyway_is_rewritten_for_its_granted_repositories_only() -> None:
    grants = [grant("github.com", "o/r", Access.READ), grant("git.test:8443", "a/b", Access.READ)]
    found = {old: new for new, old in rewrites(grants, frozenset({"github.com"}), "http://g")}
    assert found["https://github.com/o/r"] == "http://g/git/github.com/o/r"
    assert found["https://git.test:8443/"] == "http://g/git/git.test:8443/"
    assert found["git@git.test:"] == "http://g/git/git.test:8443/"
    assert "https://github.com/" not in found


@given(st.text(max_size=200), st.text(max_size=80), st.sampled_from(["GET", "POST", "PUT"]))
def test_any_path_has_a_meaning_or_none(path: str, query: str, method: str) -> None:
    found = route(method, f"/git/{path}", query)
    if isinstance(found, Route):
        assert not {"", ".", ".."} & set(found.path.split("/"))
