"""AWS Signature Version 4: the examples that AWS publishes, and what is not signed again."""

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import Forbidden
from corral.wire.sigv4 import (
    Authorization,
    Key,
    canonical_request,
    check_destination,
    gives_credentials,
    parse,
    payload_hash,
    refusal_of_form,
    resign,
)

EMPTY = hashlib.sha256(b"").hexdigest()
S3_KEY = Key("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
IAM_KEY = Key("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
BUCKET = ("Host", "examplebucket.s3.amazonaws.com")
S3_DATE = ("x-amz-date", "20130524T000000Z")
FILE = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"


def s3(*signed: str) -> Authorization:
    return Authorization("AKIAFAKEFAKEFAKEFAKE", "20130524", "us-east-1", "s3", signed)


VECTORS = [
    (
        "GET", "/test.txt", [BUCKET, ("Range", "bytes=0-9"), ("x-amz-content-sha256", EMPTY), S3_DATE],
        s3("host", "range", "x-amz-content-sha256", "x-amz-date"), S3_KEY, EMPTY,
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    (
        "PUT", "/test%24file.text",
        [BUCKET, ("Date", "Fri, 24 May 2013 00:00:00 GMT"), S3_DATE, ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
         ("x-amz-content-sha256", FILE)],
        s3("date", "host", "x-amz-content-sha256", "x-amz-date", "x-amz-storage-class"), S3_KEY, FILE,
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    (
        "GET", "/?lifecycle", [BUCKET, ("x-amz-content-sha256", EMPTY), S3_DATE],
        s3("host", "x-amz-content-sha256", "x-amz-date"), S3_KEY, EMPTY,
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    ),
    (
        "GET", "/?prefix=J&max-keys=2", [BUCKET, ("x-amz-content-sha256", EMPTY), S3_DATE],
        s3("host", "x-amz-content-sha256", "x-amz-date"), S3_KEY, EMPTY,
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
    (
        "GET", "/?Version=2010-05-08&Action=ListUsers",
        [("Host", "iam.amazonaws.com"), ("Content-Type", "application/x-www-form-urlencoded;  charset=utf-8"),
         ("X-Amz-Date", "20150830T123600Z")],
        Authorization("AKIAFAKEFAKEFAKEFAKE", "20150830", "us-east-1", "iam", ("content-type", "host", "x-amz-date")),
        IAM_KEY, EMPTY,
        "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("method", "target", "fields", "found", "key", "body", "signature"), VECTORS)
def test_published_examples(
    method: str,
    target: str,
    fields: list[tuple[str, str]],
    found: Authorization,
    key: Key,
    body: str,
    signature: str,
) -> None:
    """G-150, G-153, G-157."""
    signed = dict(resign(method, target, [*fields, ("Authorization", "old")], found, key, body))
    assert signed["Authorization"].endswith(f"Signature={signature}")
    assert f"Credential={key.id}/{found.scope}" in signed["Authorization"]


def test_a_sessions_token_is_the_real_ones() -> None:
    """G-150: set where the key has one, removed where it has none."""
    fields = [BUCKET, S3_DATE, ("X-Amz-Security-Token", "fake")]
    found = s3("host", "x-amz-date", "x-amz-security-token")
    plain = dict(resign("GET", "/", fields, found, S3_KEY, EMPTY))
    assert "X-Amz-Security-Token" not in plain
    assert "SignedHeaders=host;x-amz-date," in plain["Authorization"]
    with_token = dict(resign("GET", "/", fields, s3("host", "x-amz-date"), Key("A" * 16, "s", "real"), EMPTY))
    assert with_token["x-amz-security-token"] == "real"
    assert "SignedHeaders=host;x-amz-date;x-amz-security-token," in with_token["Authorization"]


def test_paths_and_queries_are_written_as_aws_writes_them() -> None:
    """G-153."""
    fields = [("Host", "x.us-east-1.amazonaws.com")]
    text = canonical_request("GET", "/a%20b//c/?b=%7E&a=1+1&a=%2b&c", fields, ["host"], EMPTY, "execute-api")
    assert text.split("\n")[1:3] == ["/a%2520b/c/", "a=%2B&a=1%2B1&b=~&c="]
    raw = canonical_request("GET", "/a%20b//c/", fields, ["host"], EMPTY, "s3")
    assert raw.split("\n")[1] == "/a%20b//c/"


def authorization(
    scope: str = "20130524/us-east-1/s3/aws4_request", signed: str = "host", signature: str = "0" * 64
) -> str:
    return f"AWS4-HMAC-SHA256 Credential=AKIAFAKEFAKEFAKEFAKE/{scope}, SignedHeaders={signed}, Signature={signature}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Bearer x",
        "AWS4-HMAC-SHA256 Credential=A/20130524/us-east-1/s3/aws4_request",
        authorization("20130524/us-east-1/s3/aws5_request"),
        authorization("2013/us-east-1/s3/aws4_request"),
        authorization(signed="ho st"),
        authorization(signature="0"),
        authorization() + ", X=1",
    ],
)
def test_malformed_signatures_are_refused(text: str) -> None:
    """G-151."""
    with pytest.raises(Forbidden):
        parse(text)


@given(st.text(max_size=200))
def test_parsing_refuses_or_understands(text: str) -> None:
    with contextlib.suppress(Forbidden):
        assert parse(text).signed


def test_forms_that_cannot_be_made_again() -> None:
    """G-151, G-152."""
    assert refusal_of_form("/?X-Amz-Signature=0", "", "")
    assert refusal_of_form("/", "AWS4-ECDSA-P256-SHA256 x", "")
    assert refusal_of_form("/", "AWS4-HMAC-SHA256 x", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
    assert refusal_of_form("/", "AWS4-HMAC-SHA256 x", "UNSIGNED-PAYLOAD") is None
    assert payload_hash("") is None
    with pytest.raises(Forbidden):
        payload_hash("abc")


@pytest.mark.parametrize(
    ("host", "region", "service", "good"),
    [
        ("examplebucket.s3.amazonaws.com", "us-east-1", "s3", True),
        ("b.s3.eu-west-1.amazonaws.com", "eu-west-1", "s3", True),
        ("b.s3.eu-west-1.amazonaws.com", "us-east-1", "s3", False),
        ("b.s3.eu-west-1.amazonaws.com", "eu-west-1", "iam", False),
        ("iam.amazonaws.com", "us-east-1", "s3", False),
        ("bedrock-runtime.us-east-1.amazonaws.com", "us-east-1", "bedrock", True),
        ("minio.corp.example", "us-east-1", "s3", True),
    ],
)
def test_a_scope_is_for_the_host(host: str, region: str, service: str, *, good: bool) -> None:
    """G-155."""
    found = Authorization("A" * 16, "20130524", region, service, ("host",))
    if good:
        check_destination(found, host)
    else:
        with pytest.raises(Forbidden):
            check_destination(found, host)


def test_calls_that_give_credentials() -> None:
    """G-156."""
    assert gives_credentials("sts", "/", [], b"Action=AssumeRole&RoleArn=x")
    assert gives_credentials("sts", "/?Action=GetSessionToken", [], b"")
    assert gives_credentials("sts", "/", [], b"")
    assert gives_credentials("sts", "/?Action=GetCallerIdentity", [], b"Action=AssumeRole")
    assert not gives_credentials("sts", "/", [], b"Action=GetCallerIdentity&Version=1")
    assert gives_credentials("iam", "/", [], b"Action=CreateAccessKey")
    assert gives_credentials(
        "ecr", "/", [("X-Amz-Target", "AmazonEC2ContainerRegistry_V2.GetAuthorizationToken")], b""
    )
    assert not gives_credentials("dynamodb", "/", [("X-Amz-Target", "DynamoDB_20120810.GetItem")], b"{}")


def test_a_missing_signed_field_is_refused() -> None:
    """G-153."""
    for fields, signed in (
        ([BUCKET], ("host", "x-amz-date")),
        ([S3_DATE], ("x-amz-date",)),
        ([BUCKET, S3_DATE], ("x-amz-date",)),
    ):
        with pytest.raises(Forbidden):
            resign("GET", "/", fields, s3(*signed), S3_KEY, EMPTY)
