"""References, manifests and configurations: what is accepted, and that nothing else gets through."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, InvalidInput, TooLarge, Unsupported, UpstreamFailed
from corral.rootfs.manifest import (
    MAX_DOWNLOAD,
    Reference,
    check_digest,
    choose_platform,
    digest_of,
    parse_config,
    parse_manifest,
)

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
OCI = "application/vnd.oci.image.manifest.v1+json"


def manifest(**changes: Any) -> bytes:
    document = {
        "schemaVersion": 2, "mediaType": OCI, "config": {"digest": ONE, "size": 10},
        "layers": [{"digest": TWO, "size": 20}],
    }  # fmt: skip
    return json.dumps(document | changes).encode()


def config(**changes: Any) -> bytes:
    document = {"rootfs": {"type": "layers", "diff_ids": [ONE, TWO]}, "config": {}}
    return json.dumps(document | changes).encode()


@pytest.mark.parametrize(
    ("text", "url", "loopback"),
    [
        ("debian", "docker://debian:latest", False),
        ("debian:12", "docker://debian:12", False),
        ("a.example:5000/team/app:v1", "docker://a.example:5000/team/app:v1", False),
        ("localhost:5000/x", "docker://localhost:5000/x:latest", True),
        ("localhost/x", "docker://localhost/x:latest", True),
        ("127.0.0.1:5000/x:1", "docker://127.0.0.1:5000/x:1", True),
        ("[::1]:5000/x:1", "docker://[::1]:5000/x:1", True),
        ("127.0.0.1.evil.example/x:1", "docker://127.0.0.1.evil.example/x:1", False),
        ("localhost.example/x:1", "docker://localhost.example/x:1", False),
        (f"x/y:tag@{ONE}", f"docker://x/y@{ONE}", False),
    ],
)
def test_references(text: str, url: str, loopback: bool) -> None:
    reference = Reference.parse(text)
    assert (reference.url(), reference.loopback) == (url, loopback)
    assert reference.url(TWO).endswith(f"@{TWO}")


@given(st.text(max_size=80))
def test_no_reference_becomes_an_option_or_another_transport(text: str) -> None:
    try:
        url = Reference.parse(text).url()
    except InvalidInput:
        return
    assert url.startswith("docker://")
    assert not set(url) & set(" \t\n\0'\"$;&|<>\\?#%")
    assert ".." not in url


def test_the_manifest_of_this_machine_is_chosen() -> None:
    index = {
        "manifests": [
            {"digest": ONE, "size": 1, "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": TWO, "size": 1, "platform": {"os": "linux", "architecture": "amd64"}},
        ]
    }
    raw = json.dumps(index).encode()
    assert choose_platform(raw, "x86_64") == TWO
    assert choose_platform(raw, "aarch64") == ONE
    assert choose_platform(manifest(), "x86_64") is None
    with pytest.raises(Unsupported, match="linux/riscv64"):
        choose_platform(raw, "riscv64")


def test_a_manifest() -> None:
    found = parse_manifest(manifest())
    assert (found.config.digest, found.layers[0].digest, found.size) == (ONE, TWO, 20)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", UpstreamFailed),
        (b"[]", UpstreamFailed),
        (b"[" * 100_000, UpstreamFailed),
        (b"\xff\xfe", UpstreamFailed),
        (manifest(layers=None), UpstreamFailed),
        (manifest(layers=[{"digest": "sha256:../../x", "size": 1}]), UpstreamFailed),
        (manifest(layers=[{"digest": ONE, "size": -1}]), UpstreamFailed),
        (manifest(layers=[{"digest": ONE, "size": True}]), UpstreamFailed),
        (manifest(layers=[{"digest": ONE, "size": MAX_DOWNLOAD + 1}]), TooLarge),
        (manifest(layers=[{"digest": ONE, "size": 1}] * 200), TooLarge),
        (manifest(layers=[]), Unsupported),
        (manifest(config=None), UpstreamFailed),
        (manifest(schemaVersion=1), Unsupported),
        (manifest(mediaType="application/vnd.cncf.helm.config.v1+json"), Unsupported),
    ],
)
def test_manifests_that_are_refused(raw: bytes, error: type[CorralError]) -> None:
    with pytest.raises(error):
        parse_manifest(raw)


def test_a_configuration() -> None:
    found = parse_config(
        config(config={"Env": ["A=1=2", "no value", "9X=1", "B"], "User": "1000:100", "WorkingDir": "/w"}), 2
    )
    assert (found.env, found.user, found.workdir) == ({"A": "1=2", "B": ""}, "1000:100", "/w")
    assert parse_config(config(config=None), 2).user == "root"
    # The specification's own rule: the hash of the chain below, a space, and the layer's.
    assert found.chain() == (ONE[7:], digest_of(f"{ONE} {TWO}".encode())[7:])


@pytest.mark.parametrize(
    "raw",
    [
        config(rootfs=None), config(rootfs={"diff_ids": [ONE]}), config(rootfs={"diff_ids": [ONE, "sha512:1"]}),
        config(config=[1]), config(config={"User": "a b"}), config(config={"WorkingDir": "relative"}),
        config(config={"User": "$(id)"}), config(config={"User": {"a": 1}}),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(raw: bytes) -> None:
    with pytest.raises((UpstreamFailed, InvalidInput)):
        parse_config(raw, 2)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("config", "layers", "manifests", "rootfs"), json_values)
    )
)
def test_any_document_is_read_or_refused(document: dict[str, Any]) -> None:
    raw = json.dumps(document).encode()
    for read in (
        parse_manifest,
        lambda data: parse_config(data, 1),
        lambda data: choose_platform(data, "x86_64"),
    ):
        with contextlib.suppress(CorralError):
            read(raw)


def test_a_blob_must_match_its_digest() -> None:
    check_digest(b"x", digest_of(b"x"), "blob")
    with pytest.raises(UpstreamFailed):
        check_digest(b"y", digest_of(b"x"), "blob")
