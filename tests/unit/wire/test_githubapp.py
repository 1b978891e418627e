"""A GitHub App's statement and the answers it gets."""

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from corral.errors import CorralError, Forbidden, InvalidInput, NotFound, UpstreamFailed
from corral.wire.forges import ForgeAnswer
from corral.wire.githubapp import App, Installation, Need, find_installation, installation, mark, mint, minted

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HERE = Installation(77, {"contents": "write", "metadata": "read"})


@cache
def pem(bits: int = 2048) -> str:
    key = rsa.generate_private_key(65537, bits) if bits else ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def document(**changes: Any) -> str:
    return json.dumps({"app": "12345", "key": pem(), **changes})


def test_the_statement_is_signed_and_good_for_less_than_ten_minutes() -> None:
    app = App.parse(document())
    head, claims, signature = (
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in app.statement(NOW).split(".")
    )
    assert json.loads(head) == {"alg": "RS256", "typ": "JWT"}
    value = json.loads(claims)
    assert value["iss"] == "12345"
    assert datetime.fromtimestamp(value["iat"], UTC) < NOW
    assert datetime.fromtimestamp(value["exp"], UTC) <= NOW + timedelta(minutes=10)
    signed = app.statement(NOW).rpartition(".")[0].encode()
    app.key.public_key().verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
    assert "PRIVATE" not in repr(app)


def test_a_copy_of_the_key_is_found_by_one_of_its_lines() -> None:
    line = mark(document())
    assert pem().count(f"\n{line}\n") == 1
    assert (len(line), line == pem().splitlines()[1]) == (64, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "ghp_0123456789",
        document(app=12345),
        document(app="1/../2"),
        document(app=""),
        document(key="not a key"),
        document(key=None),
        document(key="\u00e4"),
        document(key=pem(1024)),
        document(key=pem(0)),
        document(key=pem().replace("\n", " ")),
    ],
)
def test_what_is_no_key_of_an_app_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        App.parse(text)


@pytest.mark.parametrize(
    ("need", "has", "wanted"),
    [
        (Need.READ, {}, {"metadata": "read", "contents": "read"}),
        (Need.PUSH, {}, {"metadata": "read", "contents": "write"}),
        (Need.PUSH, {"workflows": "write"}, {"metadata": "read", "contents": "write", "workflows": "write"}),
        (Need.PULL_REQUEST, {}, {"metadata": "read", "contents": "read", "pull_requests": "write"}),
    ],
)
def test_a_token_is_asked_for_one_repository_and_no_more_than_is_needed(
    need: Need, has: dict[str, str], wanted: dict[str, str]
) -> None:
    call = mint("https://github.com", Installation(7, has), "Acme/app.wiki", need)
    assert call.url == "https://api.github.com/app/installations/7/access_tokens"
    assert json.loads(call.body) == {"repositories": ["app"], "permissions": wanted}
    found = find_installation("https://ghe.example/", "Acme/app.git")
    assert found.url == "https://ghe.example/api/v3/repos/Acme/app/installation"
    for path in ("app", "a/b/c"):
        with pytest.raises(InvalidInput):
            mint("https://github.com", HERE, path, need)


def test_answers_are_read_or_refused() -> None:
    ok = {"token": "ghs_" + "a" * 36, "expires_at": "2026-01-02T04:04:05Z"}
    assert minted(ForgeAnswer(201, json.dumps(ok)), "a/b").expires_at == NOW + timedelta(hours=1)
    assert "ghs_" not in repr(minted(ForgeAnswer(201, json.dumps(ok)), "a/b"))
    said = json.dumps({"id": 7, "permissions": {"contents": "read"}})
    assert installation(ForgeAnswer(200, said), "a/b") == Installation(7, {"contents": "read"})
    bad: list[tuple[type[CorralError], int, Any]] = [
        (Forbidden, 422, {"message": "no"}),
        (Forbidden, 401, {}),
        (UpstreamFailed, 500, {}),
        (UpstreamFailed, 201, []),
        (UpstreamFailed, 201, {**ok, "token": "a b"}),
        (UpstreamFailed, 201, {**ok, "token": "a\r\nX: y" + "a" * 30}),
        (UpstreamFailed, 201, {**ok, "expires_at": "soon"}),
        (UpstreamFailed, 201, {**ok, "expires_at": "2026-01-02T04:04:05"}),
    ]
    for kind, status, value in bad:
        with pytest.raises(kind):
            minted(ForgeAnswer(status, json.dumps(value)), "a/b")
    for kind, status, value in (
        (NotFound, 404, {}),
        (UpstreamFailed, 200, {"id": "7", "permissions": {}}),
        (UpstreamFailed, 200, {"id": True, "permissions": {}}),
        (UpstreamFailed, 200, {"id": 7}),
    ):
        with pytest.raises(kind):
            installation(ForgeAnswer(status, json.dumps(value)), "a/b")
