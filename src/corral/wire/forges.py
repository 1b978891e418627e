"""What forges' APIs are asked, and what they answer, without I/O: pull requests of GitHub, merge requests of GitLab."""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from corral.errors import Forbidden, InvalidInput, NotFound, Unsupported, UpstreamFailed
from corral.model.secrets import Provider

MAX_TITLE = 250
MAX_BODY = 60_000


@dataclass(frozen=True, slots=True)
class ForgeCall:
    """A request to a forge: an absolute address and, for a POST, a JSON body. `repo`: which repository it is about."""

    method: str
    url: str
    body: str = ""
    repo: str = ""


@dataclass(frozen=True, slots=True)
class ForgeAnswer:
    """What came back."""

    status: int
    body: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A pull request to open: `branch` into `base`, of the repository at `path`."""

    path: str
    branch: str
    base: str
    title: str
    body: str
    draft: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """A pull request that is open. `existed`: it was before."""

    url: str
    number: int
    existed: bool = False


class Forge:
    """One forge's API. `base_url` is the secret's. Raises Unsupported for a server that has none that is known."""

    def __init__(self, provider: Provider, base_url: str) -> None:
        if provider not in (Provider.GITHUB, Provider.GITLAB):
            raise Unsupported(
                f"pull requests cannot be opened at a server of kind {provider}",
                "push the branch with `corral push`, and open one there; or add the secret with --provider github or gitlab",
            )
        self._gitlab = provider is Provider.GITLAB
        base = base_url.rstrip("/")
        if self._gitlab:
            self._api = f"{base}/api/v4"
        else:
            self._api = github_api(base)

    def repository(self, path: str) -> ForgeCall:
        """Asks for a repository, which tells its default branch."""
        return ForgeCall("GET", self._repo(path), repo=path)

    def default_branch(self, answer: ForgeAnswer) -> str:
        """The default branch. Raises what the answer means."""
        value = _value(answer, (200,))
        found = value.get("default_branch") if isinstance(value, dict) else None
        if not isinstance(found, str) or not found:
            raise _strange()
        return found

    def open(self, one: Proposal) -> ForgeCall:
        """Opens a pull request."""
        title, body = one.title[:MAX_TITLE], one.body[:MAX_BODY]
        if self._gitlab:
            value: dict[str, Any] = {
                "source_branch": one.branch, "target_branch": one.base, "description": body,
                "title": f"Draft: {title}" if one.draft else title,
            }  # fmt: skip
            return ForgeCall("POST", f"{self._repo(one.path)}/merge_requests", json.dumps(value), one.path)
        value = {"title": title, "head": one.branch, "base": one.base, "body": body, "draft": one.draft}
        return ForgeCall("POST", f"{self._repo(one.path)}/pulls", json.dumps(value), one.path)

    def opened(self, answer: ForgeAnswer) -> Opened | None:
        """The pull request that was opened; None if there may be one already. Raises what the answer means."""
        if answer.status == (409 if self._gitlab else 422):
            return None
        return self._one(_value(answer, (200, 201)))

    def existing(self, one: Proposal) -> ForgeCall:
        """Asks for the open pull request of a branch."""
        if self._gitlab:
            query = urlencode(
                {"source_branch": one.branch, "target_branch": one.base, "state": "opened", "per_page": 1}
            )
            return ForgeCall("GET", f"{self._repo(one.path)}/merge_requests?{query}", repo=one.path)
        owner = one.path.partition("/")[0]
        query = urlencode({"head": f"{owner}:{one.branch}", "base": one.base, "state": "open", "per_page": 1})
        return ForgeCall("GET", f"{self._repo(one.path)}/pulls?{query}", repo=one.path)

    def found(self, answer: ForgeAnswer, refusal: ForgeAnswer) -> Opened:
        """The one that exists. Raises what the refusal to open another one said if there is none."""
        value = _value(answer, (200,))
        if isinstance(value, list) and value:
            one = self._one(value[0])
            return Opened(one.url, one.number, existed=True)
        raise InvalidInput(
            f"the forge does not open a pull request: {message_of(refusal)}", "see that the branch was pushed"
        )

    def _repo(self, path: str) -> str:
        if self._gitlab:
            return f"{self._api}/projects/{quote(path, safe='')}"
        return f"{self._api}/repos/{quote(path, safe='/')}"

    def _one(self, value: object) -> Opened:
        url, number = ("web_url", "iid") if self._gitlab else ("html_url", "number")
        if (
            not isinstance(value, dict)
            or not isinstance(value.get(url), str)
            or type(value.get(number)) is not int
        ):
            raise _strange()
        return Opened(_clean(value[url]), value[number])


def _value(answer: ForgeAnswer, wanted: tuple[int, ...]) -> Any:
    if answer.status in (401, 403):
        raise Forbidden(
            f"the forge refuses the host's credential: {message_of(answer)}",
            "check what that credential may do",
        )
    if answer.status == 404:
        raise NotFound(
            "the forge knows no such repository for this credential", "check what that credential may read"
        )
    if answer.status not in wanted:
        raise UpstreamFailed(f"the forge answered {answer.status}: {message_of(answer)}")
    try:
        return _json(answer)
    except ValueError:
        raise _strange() from None


def _json(answer: ForgeAnswer) -> Any:
    """Its body. Raises ValueError for one that is no JSON, or deeper than any answer."""
    try:
        return json.loads(answer.body)
    except RecursionError:
        raise ValueError("too deep") from None


def github_api(base_url: str) -> str:
    """Where the API of a GitHub server is."""
    base = base_url.rstrip("/")
    return "https://api.github.com" if urlsplit(base).hostname == "github.com" else f"{base}/api/v3"


def message_of(answer: ForgeAnswer) -> str:
    """What it says, as far as that can be shown."""
    try:
        value = _json(answer)
    except ValueError:
        return f"status {answer.status}"
    if not isinstance(value, dict):
        return f"status {answer.status}"
    errors = value.get("errors")
    texts = [value.get("message")]
    texts += (
        [one.get("message") for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
    )
    return _clean("; ".join(str(one) for one in texts if one)) or f"status {answer.status}"


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:500]


def _strange() -> UpstreamFailed:
    return UpstreamFailed(
        "the forge gave an answer that makes no sense", "see that the secret's base URL is right"
    )
