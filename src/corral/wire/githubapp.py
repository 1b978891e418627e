"""A GitHub App's key, and how a token for one repository is had by it: what GitHub is asked, what it answers. No I/O.

The key signs a statement that is good for some minutes, by which the App is known. With it the App's installation on a
repository is found, and a token asked for that opens this repository alone, and no further than is needed.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from corral.errors import Forbidden, InvalidInput, NotFound, UpstreamFailed
from corral.wire.forges import ForgeAnswer, ForgeCall, github_api, message_of

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN = re.compile(r"[A-Za-z0-9._-]{20,1024}")
_MIN_BITS = 2048
_LINES = 8
_EARLIER = timedelta(seconds=60)
"""So far GitHub's clock may be behind."""
_GOOD_FOR = timedelta(minutes=9)
_HINT = (
    "give the App's id and the .pem file of its key: `corral secret add github --app ID --from-file KEY.pem`"
)


class Need(StrEnum):
    """What a token is for."""

    READ = "read"
    PUSH = "push"
    PULL_REQUEST = "pull request"


@dataclass(frozen=True, slots=True)
class App:
    """An App by its id (or client id) and private key."""

    id: str
    key: rsa.RSAPrivateKey = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "App":
        """From the JSON that the vault holds, `{"app": ID, "key": PEM}`. Raises InvalidInput."""
        try:
            value = json.loads(text)
            id, pem = value["app"], value["key"]
            key = load_pem_private_key(pem.encode("ascii"), None)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UnsupportedAlgorithm):
            raise InvalidInput("this is not the key of a GitHub App", _HINT) from None
        if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < _MIN_BITS:
            raise InvalidInput("the key of a GitHub App is an RSA key", _HINT)
        if len(pem.split("\n")) < _LINES:
            raise InvalidInput("the key of the GitHub App is not in lines", _HINT)
        if not isinstance(id, str) or not _ID.fullmatch(id):
            raise InvalidInput("the id of the GitHub App is not valid", _HINT)
        return cls(id, key)

    def statement(self, now: datetime) -> str:
        """The signed statement (RS256) that the App is asked with for the next minutes."""
        claims = {
            "iat": int((now - _EARLIER).timestamp()),
            "exp": int((now + _GOOD_FOR).timestamp()),
            "iss": self.id,
        }
        signed = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part(claims)}"
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"


def mark(text: str) -> str:
    """A line of the key that `text` (as for `App.parse`) holds, by which a copy of it is found wherever it is."""
    lines = [line.strip() for line in str(json.loads(text)["key"]).splitlines()]
    # Not the first one, which all keys of a size begin with.
    return [line for line in lines if line and not line.startswith("-----")][1]


@dataclass(frozen=True, slots=True)
class Installation:
    """Where an App is installed, and what it may do there by its owner's word."""

    id: int
    permissions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Minted:
    """A token and when it ends."""

    token: str = field(repr=False)
    expires_at: datetime


def find_installation(base_url: str, path: str) -> ForgeCall:
    """Asks which installation covers the repository at `path`."""
    return ForgeCall("GET", f"{github_api(base_url)}/repos/{_repository(path)}/installation")


def installation(answer: ForgeAnswer, name: str) -> Installation:
    """The answer to that. Raises NotFound where there is none, and what else it means."""
    if answer.status == 404:
        raise NotFound(
            f"the GitHub App is not installed on {name}",
            "install it there, or add a token: `corral secret add`",
        )
    value = _object(answer, 200)
    id, permissions = value.get("id"), value.get("permissions")
    if type(id) is not int or not isinstance(permissions, dict):
        raise _strange()
    return Installation(id, {str(key): str(level) for key, level in permissions.items()})


def mint(base_url: str, found: Installation, path: str, need: Need) -> ForgeCall:
    """Asks for a token that opens this repository alone, and for this alone."""
    wanted = {"metadata": "read", "contents": "write" if need is Need.PUSH else "read"}
    if need is Need.PUSH and found.permissions.get("workflows") == "write":
        wanted["workflows"] = "write"
    if need is Need.PULL_REQUEST:
        wanted["pull_requests"] = "write"
    body = {"repositories": [_repository(path).partition("/")[2]], "permissions": wanted}
    url = f"{github_api(base_url)}/app/installations/{found.id}/access_tokens"
    return ForgeCall("POST", url, json.dumps(body))


def minted(answer: ForgeAnswer, name: str) -> Minted:
    """The answer to that. Raises Forbidden where the App may not do what was asked."""
    if answer.status == 422:
        raise Forbidden(
            f"the GitHub App may not do this with {name}: {message_of(answer)}",
            "give the App the permissions Contents and Pull requests, read and write",
        )
    value = _object(answer, 201)
    token, until = value.get("token"), value.get("expires_at")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token) or not isinstance(until, str):
        raise _strange()
    try:
        ends = datetime.fromisoformat(until)
    except ValueError:
        raise _strange() from None
    if ends.tzinfo is None:
        raise _strange()
    return Minted(token, ends)


def _repository(path: str) -> str:
    """Owner and name as the API knows them: a wiki is its repository's."""
    plain = path.removesuffix(".git").removesuffix(".wiki")
    if plain.count("/") != 1:
        raise InvalidInput(f"{path[:80]!r} is no repository of GitHub's", "write OWNER/NAME")
    return plain


def _object(answer: ForgeAnswer, wanted: int) -> dict[str, Any]:
    if answer.status in (401, 403):
        raise Forbidden(
            f"GitHub refuses the App: {message_of(answer)}",
            "check its id and key, and that it is not suspended",
        )
    if answer.status != wanted:
        raise UpstreamFailed(f"GitHub answered {answer.status}: {message_of(answer)}")
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise _strange() from None
    if not isinstance(value, dict):
        raise _strange()
    return value


def _strange() -> UpstreamFailed:
    return UpstreamFailed(
        "GitHub gave an answer that makes no sense", "see that the secret's base URL is right"
    )


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
