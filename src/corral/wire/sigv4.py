"""AWS Signature Version 4, as far as a proxy needs it: a request that was signed with one key is signed with another.

What the client signed is kept (scope, set of header fields, date); key, token and signature are replaced. Pure.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from corral.errors import Forbidden

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
CONTENT_HASH = "x-amz-content-sha256"
TOKEN = "x-amz-security-token"  # noqa: S105 (a field's name)
DATE = "x-amz-date"
# Of these services the path is signed as it is sent; of all others, encoded once more.
_RAW_PATHS = frozenset({"s3", "s3-outposts", "s3-object-lambda", "s3express"})
_UNRESERVED = "-_.~"
_CREDENTIAL = re.compile(r"([A-Za-z0-9]{16,128})/([0-9]{8})/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/aws4_request")
_SIGNED = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+(;[a-z0-9!#$%&'*+.^_`|~-]+)*")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+")
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_ENDPOINTS = {"ses": "email", "bedrock": "bedrock-runtime", "sagemaker": "runtime"}
"""Endpoints of services that are signed under another name."""

Fields = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of AWS, with the token of its session if it belongs to one."""

    id: str
    secret: str
    token: str = ""


@dataclass(frozen=True, slots=True)
class Authorization:
    """What a signed request says of its signature. `signed` are names of header fields, in lower case."""

    key_id: str
    date: str
    region: str
    service: str
    signed: tuple[str, ...]

    @property
    def scope(self) -> str:
        """The scope as it is signed."""
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def refusal_of_form(target: str, authorization: str, content_hash: str) -> str | None:
    """Why a form of signature cannot be made again, or None (G-151)."""
    query = target.partition("?")[2].lower()
    if "x-amz-signature=" in query:
        return "presigned URLs cannot be signed again"
    if authorization.startswith("AWS4-ECDSA-P256-SHA256"):
        return "signatures of version 4A cannot be made again"
    if content_hash.startswith("STREAMING-"):
        return "bodies that are signed in pieces cannot be signed again"
    return None


def parse(authorization: str) -> Authorization:
    """The Authorization field of a signed request. Raises Forbidden for one that is malformed (G-151)."""
    algorithm, _, rest = authorization.strip().partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    credential = _CREDENTIAL.fullmatch(parts.get("Credential", ""))
    signed = parts.get("SignedHeaders", "")
    good = credential and _SIGNED.fullmatch(signed) and _SIGNATURE.fullmatch(parts.get("Signature", ""))
    if (
        algorithm != ALGORITHM
        or credential is None
        or not good
        or set(parts) != {"Credential", "SignedHeaders", "Signature"}
    ):
        raise Forbidden(
            "the request's signature is malformed", "sign it with AWS4-HMAC-SHA256, in the header"
        )
    return Authorization(credential[1], credential[2], credential[3], credential[4], tuple(signed.split(";")))


def check_destination(found: Authorization, host: str) -> None:
    """Raise Forbidden if the scope is one for another service or region than the host's (G-155)."""
    suffix = next((item for item in _AMAZON if host.endswith(item)), None)
    if suffix is None:
        return
    labels = host.removesuffix(suffix).split(".")
    names = {found.service, _ENDPOINTS.get(found.service, found.service)}
    if not any(label == name or label.startswith(f"{name}-") for label in labels for name in names):
        raise Forbidden(
            f"the request is signed for service {found.service}, not for {host}", "sign it for its host"
        )
    regions = [label for label in labels if _REGION.fullmatch(label)]
    if regions and found.region not in regions:
        raise Forbidden(
            f"the request is signed for region {found.region}, not for {host}", "sign it for its host"
        )


def payload_hash(declared: str) -> str | None:
    """The hash that a body must have, UNSIGNED where it may be any, None where nothing is declared. Raises Forbidden."""
    if not declared or declared == UNSIGNED:
        return declared or None
    if not _HASH.fullmatch(declared):
        raise Forbidden("the declared hash of the body is malformed", "declare its SHA-256, in hexadecimal")
    return declared


def resign(
    method: str, target: str, fields: Fields, found: Authorization, key: Key, body_hash: str
) -> list[tuple[str, str]]:
    """The request's fields, signed with `key`. The request must be sent exactly so. Raises Forbidden."""
    others = [(name, value) for name, value in fields if name.lower() not in ("authorization", TOKEN)]
    signed = [name for name in found.signed if name != TOKEN]
    if key.token:
        others.append((TOKEN, key.token))
        signed.append(TOKEN)
    signed.sort()
    request = canonical_request(method, target, others, signed, body_hash, found.service)
    values = [value for name, value in others if name.lower() == DATE]
    if len(values) != 1 or not re.fullmatch(r"[0-9]{8}T[0-9]{6}Z", values[0]) or values[0][:8] != found.date:
        raise Forbidden(f"the request has no {DATE} that fits its scope", "sign it with the field X-Amz-Date")
    text = "\n".join((ALGORITHM, values[0], found.scope, hashlib.sha256(request.encode()).hexdigest()))
    signature = hmac.digest(_signing_key(key.secret, found), text.encode(), "sha256").hex()
    value = f"{ALGORITHM} Credential={key.id}/{found.scope}, SignedHeaders={';'.join(signed)}, Signature={signature}"
    return [*others, ("Authorization", value)]


def canonical_request(
    method: str, target: str, fields: Fields, signed: Sequence[str], body_hash: str, service: str
) -> str:
    """The text that is signed (G-153). Raises Forbidden for a signed field that is not there."""
    path, _, query = target.partition("?")
    named: dict[str, list[str]] = {}
    for name, value in fields:
        named.setdefault(name.lower(), []).append(" ".join(value.split()))
    missing = next((name for name in ("host", *signed) if name not in named), None)
    if missing is not None or "host" not in signed:
        raise Forbidden(f"the signed field {missing or 'host'} is missing", "sign what is sent, the host too")
    lines = [f"{name}:{','.join(named[name])}\n" for name in signed]
    return "\n".join(
        (
            method,
            _canonical_path(path, service),
            _canonical_query(query),
            "".join(lines),
            ";".join(signed),
            body_hash,
        )
    )


def _canonical_path(path: str, service: str) -> str:
    if service in _RAW_PATHS:
        return path
    segments = [quote(segment, safe=_UNRESERVED) for segment in path.split("/") if segment]
    return "/" + "/".join(segments) + ("/" if segments and path.endswith("/") else "")


def _canonical_query(query: str) -> str:
    pairs = [part.partition("=") for part in query.split("&") if part]
    coded = sorted((_strict(name), _strict(value)) for name, _, value in pairs)
    return "&".join(f"{name}={value}" for name, value in coded)


def _strict(text: str) -> str:
    return quote(unquote(text, errors="surrogateescape"), safe=_UNRESERVED, errors="surrogateescape")


def _signing_key(secret: str, found: Authorization) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (found.date, found.region, found.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


_STS_HARMLESS = frozenset({"GetCallerIdentity", "GetAccessKeyInfo", "DecodeAuthorizationMessage"})
_GIVES_KEYS = frozenset(
    {"CreateAccessKey", "CreateServiceSpecificCredential", "CreateLoginProfile", "GetAuthorizationToken"}
)


def gives_credentials(service: str, target: str, fields: Fields, body: bytes) -> bool:
    """Whether a call's answer would hold credentials of its own (G-156). `body` is its beginning."""
    path, _, query = target.partition("?")
    form = f"{query}&{body[:65536].decode('latin-1')}"
    actions = {unquote(part.partition("=")[2]) for part in form.split("&") if part.startswith("Action=")}
    called = next((value.rpartition(".")[2] for name, value in fields if name.lower() == "x-amz-target"), "")
    if service == "sts":
        return not actions or not actions <= _STS_HARMLESS
    if service == "codeartifact" and path.rstrip("/").endswith("/authorization-token"):
        return True
    return bool(_GIVES_KEYS & {*actions, called}) or called.startswith(
        ("GetCredentials", "GetRoleCredentials")
    )
