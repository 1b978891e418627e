"""Which repository and service a request for git means, decided on values alone."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote, urlsplit

from corral.errors import InvalidInput
from corral.model.git import Access, RepoGrant
from corral.policy.egress import literal, split_authority

MAX_REPOS = 256
FOLDING_HOSTS = frozenset({"github.com", "gitlab.com", "bitbucket.org", "codeberg.org"})
"""Forges for which upper and lower case are the same in a repository's name (G-234)."""
PREFIX = "/git/"

_SEGMENT = re.compile(r"(?:[A-Za-z0-9_~+@.-]|%[0-9A-F]{2}){1,255}")
_LOWER_HEX = re.compile(r"%[0-9a-fA-F]{2}")
_PLAIN, _ENCODED = "~+@", " !&'(),"
"""What stands as it is in a segment besides letters, digits and `_.-`, and what of ASCII may stand encoded."""
_MAX_SEGMENTS = 20
_LOCK_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TRANSFER = re.compile(r"[0-9a-f]{32}")
_REPO_TEXT = "write HOST/OWNER/NAME, with :read or :write behind it"


class Service(StrEnum):
    """What is asked of a repository."""

    READ_REFS = "refs for reading"
    WRITE_REFS = "refs for pushing"
    FETCH = "fetch"
    PUSH = "push"
    LFS_BATCH = "lfs batch"
    LFS_LOCKS = "lfs locks"
    LFS_VERIFY_LOCKS = "lfs verify"
    LFS_LOCK = "lfs lock"
    LFS_TRANSFER = "lfs transfer"

    @property
    def writes(self) -> bool:
        """Whether it is for those who may push: to be told of refs for pushing is to mean to (G-233)."""
        return self in (Service.WRITE_REFS, Service.PUSH, Service.LFS_LOCK, Service.LFS_VERIFY_LOCKS)


@dataclass(frozen=True, slots=True)
class Route:
    """A request's meaning. `host` is canonical, `path` as the client spelled it, `service_path` what stands behind the
    repository in the URL, `query` with its `?`.
    """

    host: str
    path: str
    service: Service
    service_path: str
    query: str = ""


@dataclass(frozen=True, slots=True)
class BadRoute:
    """Why a request means nothing that is served."""

    message: str


def repo_path(text: str) -> str:
    """A repository's path as it is compared: without slashes around it and `.git` at its end, encoded as in a URL where
    that is needed and nowhere else. Raises InvalidInput (G-234).
    """
    path = _LOWER_HEX.sub(lambda found: found[0].upper(), text.strip("/").removesuffix(".git"))
    segments = path.split("/")
    if not 1 <= len(segments) <= _MAX_SEGMENTS or not all(_is_segment(one) for one in segments):
        raise InvalidInput(f"{text[:80]!r} is not the path of a repository", _REPO_TEXT)
    return path


def _is_segment(text: str) -> bool:
    # A name that begins with a dash is an option to whatever program gets to see it.
    plain = _SEGMENT.fullmatch(text) is not None and text not in (".", "..", ".git") and text[0] != "-"
    return plain and ("%" not in text or _is_encoded(text))


def _is_encoded(text: str) -> bool:
    """Whether a segment with escapes is the one way to write a name, and that no server could take for more than one
    segment or another's (G-234).
    """
    try:
        name = unquote(text, errors="strict")
    except UnicodeDecodeError:
        return False
    odd = [c for c in name if not (c in _PLAIN or c in _ENCODED or c in "_.-" or c.isalnum())]
    return (
        not odd
        and name == name.strip()
        and quote(name, safe=_PLAIN) == text
        and unicodedata.normalize("NFKC", name) == name
    )


def authority(text: str) -> str:
    """A git host as grants hold it: canonical, and with its port where that is not 443. Raises InvalidInput."""
    host, port = split_authority(text, 443)
    if literal(host) is not None and ":" in host:
        raise InvalidInput(f"{text[:80]!r} is not a git host", "give a name")
    return host if port == 443 else f"{host}:{port}"


def authority_of(url: str) -> str:
    """The same of an address such as a secret's base URL."""
    parts = urlsplit(url)
    default = 80 if parts.scheme == "http" else 443
    port = parts.port or default
    host = parts.hostname or ""
    return authority(host if port == default else f"{host}:{port}")


def parse_repo(text: str) -> RepoGrant:
    """A grant from `HOST[:PORT]/OWNER/NAME[:read|write]`; `https://` before it is accepted. Raises InvalidInput."""
    rest, access = text.strip().removeprefix("https://"), Access.READ
    head, colon, tail = rest.rpartition(":")
    if colon and "/" in head and "/" not in tail:
        if tail not in tuple(Access):
            raise InvalidInput(f"access {tail[:40]!r} is neither read nor write", _REPO_TEXT)
        rest, access = head, Access(tail)
    host, slash, path = rest.partition("/")
    if not slash:
        raise InvalidInput(f"{text[:80]!r} names no repository", _REPO_TEXT)
    return grant(authority(host), path, access)


def grant(
    host: str, path: str, access: Access, *, secret: str | None = None, fold: bool | None = None
) -> RepoGrant:
    """A grant with its path in the form that is compared. Raises InvalidInput."""
    folding = host in FOLDING_HOSTS if fold is None else fold
    plain = repo_path(path)
    return RepoGrant(host, plain.lower() if folding else plain, access, secret, folding)


def find_grant(grants: Iterable[RepoGrant], host: str, path: str) -> RepoGrant | None:
    """The grant that covers a repository, of which `path` is the client's spelling."""
    plain = repo_path(path)
    for one in grants:
        if one.host == host and one.path == (plain.lower() if one.fold else plain):
            return one
    return None


def route(method: str, path: str, query: str) -> Route | BadRoute:
    """What a request to `/git/HOST/PATH…` means (G-231, G-232). `path` is raw: nothing in it is decoded."""
    text, _, rest = path.removeprefix(PREFIX).partition("/")
    try:
        host = authority(text)
    except InvalidInput as error:
        return BadRoute(error.message)
    for suffix in _SUFFIXES:
        found = suffix(method, rest, query)
        if found is not None:
            service, repo, service_path = found
            try:
                repo_path(repo)
            except InvalidInput as error:
                return BadRoute(error.message)
            return Route(host, repo.strip("/"), service, service_path, f"?{query}" if query else "")
    return BadRoute("only git's smart HTTP protocol and LFS are served here")


_Found = tuple[Service, str, str] | None


def _refs(method: str, rest: str, query: str) -> _Found:
    services = {
        "service=git-upload-pack": Service.READ_REFS,
        "service=git-receive-pack": Service.WRITE_REFS,
    }
    repo, found = _cut(rest, "info/refs")
    service = services.get(query)
    return (service, repo, "info/refs") if found and service and method == "GET" else None


def _packs(method: str, rest: str, query: str) -> _Found:
    for name, service in (("git-upload-pack", Service.FETCH), ("git-receive-pack", Service.PUSH)):
        repo, found = _cut(rest, name)
        if found and method == "POST" and not query:
            return service, repo, name
    return None


def _lfs(method: str, rest: str, query: str) -> _Found:
    repo, middle, last = rest.rpartition("/info/lfs/")
    if not middle:
        return None
    posts = {
        "objects/batch": Service.LFS_BATCH,
        "locks": Service.LFS_LOCK,
        "locks/verify": Service.LFS_VERIFY_LOCKS,
    }
    words = last.split("/")
    if method == "POST" and not query and last in posts:
        return posts[last], repo, f"info/lfs/{last}"
    if method == "GET" and last == "locks" and re.fullmatch(r"[A-Za-z0-9_.%/&=+-]{0,1024}", query):
        return Service.LFS_LOCKS, repo, "info/lfs/locks"
    if method == "POST" and not query and len(words) == 3 and words[::2] == ["locks", "unlock"]:
        return (Service.LFS_LOCK, repo, f"info/lfs/{last}") if _LOCK_ID.fullmatch(words[1]) else None
    if len(words) == 2 and words[0] == "transfer" and _TRANSFER.fullmatch(words[1]):
        return Service.LFS_TRANSFER, repo, words[1]
    return None


_SUFFIXES = (_refs, _packs, _lfs)


def _cut(rest: str, suffix: str) -> tuple[str, bool]:
    return rest.removesuffix(f"/{suffix}"), rest.endswith(f"/{suffix}")


def rewrites(grants: Iterable[RepoGrant], direct: frozenset[str], base: str) -> list[tuple[str, str]]:
    """What git inside has to put in place of which beginnings of URLs: pairs of new and old.

    Hosts in `direct` can be reached without the gateway's service, so only the granted repositories of these are
    rewritten; of all others every repository is, since the service tells why one is refused.
    """
    found: list[tuple[str, str]] = []
    for host, path in dict.fromkeys(
        (one.host, f"/{one.path}" if one.host in direct else "/") for one in grants
    ):
        name = host.partition(":")[0]
        new = f"{base}{PREFIX}{host}{path}"
        found += [(new, f"https://{host}{path}"), (new, f"ssh://git@{name}{path}")]
        found.append((new, f"git@{name}:{path[1:]}"))
    return found
