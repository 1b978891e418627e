"""What goes with an LFS transfer, and where the repository's credential does not go."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from corral.gateway import gitlfs
from corral.gateway.box import MAX_BUFFERED, Box
from corral.gateway.buffered import Buffered
from corral.gateway.gitlfs import MAX_OBJECTS, LfsService, known_fields, transfer_headers
from corral.gateway.gitupstream import GitRefusedError, GitUpstream, Target
from corral.model.git import RepoGrant
from corral.policy.repos import Route, Service

OWN = Target(
    RepoGrant("forge.example", "acme/app", secret="forge"), "https://forge.example", "Basic c2VjcmV0", None
)
EVERYBODYS = Target(RepoGrant("forge.example", "acme/app"), "https://forge.example", "", None)
STORE = (("authorization", "Store its-own"),)


@pytest.mark.parametrize(
    ("given", "target", "public", "sent"),
    [
        ((), OWN, False, (("Authorization", "Basic c2VjcmV0"),)),
        (STORE, OWN, False, STORE),
        ((), EVERYBODYS, False, ()),
        ((), OWN, True, ()),
        (STORE, OWN, True, STORE),
        ((("X-Signed", "1"),), OWN, True, (("X-Signed", "1"),)),
    ],
)
def test_the_credential_goes_to_the_repositorys_own_address_alone(
    given: tuple[tuple[str, str], ...], target: Target, public: bool, sent: tuple[tuple[str, str], ...]
) -> None:
    """G-244."""
    assert transfer_headers(given, target, public=public) == sent


ROUTE = Route("forge.example", "acme/app", Service.LFS_BATCH, "info/lfs/objects/batch", "")
hrefs = st.sampled_from(
    [
        "https://store.example/x?sig=1", "https://forge.example/x", "http://store.example/", "https://[::1", "https://h:99999/",
        "https://u:p@h/", "//h/x", "https:///x", "file:///etc/passwd", "https://h/\r\nX: y", "https://\u2100/", "https://h/%zz", "",
    ]
) | st.text(max_size=20).map("https://".__add__)  # fmt: skip
leaves = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=12)
fields = st.dictionaries(
    st.sampled_from(["Authorization", "Host", "X-A", "a\r\nb", "", "\u00e9"]),
    leaves | st.just("a\r\nb"),
    max_size=4,
)
actions = st.fixed_dictionaries(
    {}, optional={"href": hrefs | leaves, "header": fields | leaves, "expires_in": leaves, "x": leaves}
)
objects = st.fixed_dictionaries(
    {}, optional={"oid": leaves, "size": leaves, "error": leaves, "authenticated": leaves,
                  "actions": leaves | st.dictionaries(st.sampled_from(["upload", "download", "verify", "x"]), actions | leaves)}
)  # fmt: skip


async def replaced(one: object) -> dict[str, Any]:
    service = LfsService(cast(Box, None), cast(GitUpstream, None))
    made = service._object(one, ROUTE, OWN, "Basic mine")
    for transfer in service._transfers.values():
        assert URL(transfer.url, encoded=True).host
        assert transfer.url.startswith("https://")
        assert set(transfer.url) <= set(map(chr, range(0x21, 0x7F)))
        assert all(text.isprintable() for field in transfer.headers for text in field)
        assert transfer.public is (URL(transfer.url).origin() != URL(OWN.base).origin())
        own = ("Authorization", OWN.authorization)
        assert not (transfer.public and own in transfer.headers)
    return made


@given(objects | leaves | st.lists(leaves, max_size=2))
def test_any_object_of_a_servers_is_replaced_or_refused(one: object) -> None:
    """G-244: an address that a sandbox is given is the gateway's, and what it stands for can be asked for."""
    try:
        made = asyncio.run(replaced(one))
    except GitRefusedError:
        return
    shown = json.dumps(made)
    assert OWN.authorization not in shown
    for action in made.get("actions", {}).values():
        assert action["href"].startswith(
            "http://gateway.corral/git/forge.example/acme/app/info/lfs/transfer/"
        )
        assert 1 <= action["expires_in"] <= 3600


def test_a_request_keeps_what_lfs_knows() -> None:
    """G-244, G-340."""
    one = {"oid": "a" * 64, "size": 5}
    value = {
        "operation": "upload",
        "objects": [{**one, "x": [1]}],
        "ref": {"name": "refs/heads/x", "y": {}},
        "z": [[]],
    }
    assert known_fields(json.dumps(value).encode()) == {
        "operation": "upload", "objects": [one], "ref": {"name": "refs/heads/x"},
    }  # fmt: skip
    lock = {"path": "a/b", "force": True, "limit": 3, "cursor": "c"}
    assert known_fields(json.dumps(lock).encode()) == lock
    assert known_fields(json.dumps({"path": {"a": 1}, "objects": 3, "ref": None}).encode()) == {}
    full = {"operation": "download", "objects": [one] * MAX_OBJECTS, "ref": {"name": "x"}}
    assert known_fields(json.dumps(full).encode()) == full


@pytest.mark.parametrize(
    "raw",
    [
        b'{"objects":[' + b"{}," * MAX_OBJECTS + b"{}]}",
        b'{"x":[' + b"[]," * 300_000 + b"1]}",
        b'{"x":[' + b"1," * 500_000 + b"1]}",
        b"[]",
        b"{",
        b"\xff",
    ],
)
def test_what_is_none_or_too_much_is_refused(raw: bytes) -> None:
    """G-340: before it is parsed."""
    with pytest.raises(GitRefusedError) as refused:
        known_fields(raw)
    assert refused.value.status == (413 if len(raw) > 9 else 422)


def test_what_is_read_of_requests_counts_for_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-340."""

    async def body(request: object) -> AsyncIterator[bytes]:
        yield b'{"path":'
        yield b'"a"}'

    monkeypatch.setattr(gitlfs, "body_of", body)

    async def read(held: int) -> tuple[bytes, int]:
        box = cast(Box, SimpleNamespace(buffered=held, tenants_secrets=None))
        service = LfsService(box, cast(GitUpstream, None))
        with Buffered(box) as buffered:
            raw = await service._read(cast(web.BaseRequest, None), "forge.example", buffered)
            return raw, box.buffered

    assert asyncio.run(read(5)) == (b'{"path":"a"}', 17)
    with pytest.raises(GitRefusedError) as refused:
        asyncio.run(read(MAX_BUFFERED))
    assert refused.value.status == 429
