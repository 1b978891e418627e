"""Names of branches, repositories and remotes: what is accepted, and what is made of them. No I/O."""

import re
from urllib.parse import SplitResult, unquote, urlsplit

from corral.errors import InvalidInput

MAX_REF = 200
MAX_URL = 2048
AUTO = "auto"
"""The branch that Corral names: `corral/<sandbox name>`."""

_OBJECT_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_FORBIDDEN_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SCP_LIKE = re.compile(r"(?:[A-Za-z0-9._-]+@)?(?P<host>[A-Za-z0-9.-]+):(?P<path>[^:@\s/][^:@\s]*)")
_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f<>]+")


def is_branch(name: str) -> bool:
    """Whether git accepts `name` for a branch, and Corral too: at most 200 characters."""
    return (
        0 < len(name) <= MAX_REF
        and name not in ("HEAD", "@")
        and not name.startswith(("-", "/", "."))
        and not name.endswith(("/", "."))
        and _FORBIDDEN_IN_REF.search(name) is None
        and name.isprintable()
    )


def check_branch(name: str) -> str:
    """`name`, or raise InvalidInput."""
    if not is_branch(name):
        raise InvalidInput(
            f"branch name {name[:80]!r} is not valid",
            "see `git check-ref-format`: no spaces, `..`, `~^:?*[\\`, nor `-` or `.` at its start",
        )
    return name


def choose_branch(asked: str | None, sandbox: str) -> str:
    """The branch to work on: the one asked for, or `corral/<sandbox>`. Raises InvalidInput."""
    return f"corral/{sandbox}" if asked in (None, AUTO) else check_branch(str(asked))


def is_object_id(text: str) -> bool:
    """Whether `text` is a full SHA-1 or SHA-256 object id."""
    return _OBJECT_ID.fullmatch(text) is not None


def directory_name(source: str) -> str:
    """The directory that a clone of `source`, a path or a URL, is put into."""
    last = source.rstrip("/").rpartition("/")[2]
    if "://" in source:
        last = unquote(last)
    name = _UNSAFE_IN_NAME.sub("-", last.removesuffix(".git")).strip("-.")
    return name[:100].rstrip("-.") or "repo"


def check_clone_url(url: str) -> str:
    """`url`, or raise InvalidInput: a public repository over HTTPS, and nothing that git could take for
    more.
    """
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise _bad_url("it is too long, or holds characters that a URL must encode")
    parts = _split(url)
    if parts.scheme != "https":
        raise _bad_url("only https:// is supported")
    if "@" in parts.netloc:
        raise _bad_url("it holds a user name or password; a secret in a URL would reach the sandbox")
    if not _HOST.fullmatch(parts.hostname or ""):
        raise _bad_url("its host name is malformed")
    if parts.query or parts.fragment or not parts.path.strip("/"):
        raise _bad_url("it must name a repository, without `?` and `#`")
    return url


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _bad_url("it is malformed") from None
    return parts


def _bad_url(why: str) -> InvalidInput:
    return InvalidInput(f"the repository URL is not accepted: {why}", "use https://HOST/OWNER/REPOSITORY")


def informative_origin(url: str) -> str | None:
    """Where a repository comes from, as a sandbox may know it: HTTPS and without credentials; None if it is
    not public.

    SSH addresses become HTTPS ones: a sandbox has no SSH to anywhere.
    """
    if match := _SCP_LIKE.fullmatch(url):
        return _accepted(f"https://{match['host']}/{match['path']}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("https", "ssh") or not parts.hostname or "@" in parts.path:
        return None
    with_port = f":{port}" if port and parts.scheme == "https" else ""
    return _accepted(f"https://{parts.hostname}{with_port}{parts.path}")


def _accepted(url: str) -> str | None:
    try:
        return check_clone_url(url)
    except InvalidInput:
        return None


def identity_value(value: str) -> str | None:
    """A user name or e-mail address as git can write it into a commit; None if it cannot."""
    value = value.strip()
    return value if len(value) <= 256 and _PRINTABLE.fullmatch(value) else None


def clean_text(raw: bytes, limit: int = 500) -> str:
    """The last `limit` characters of a program's message, safe to show: on one line, no control characters."""
    text = raw[-8 * limit :].decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split())[-limit:]
