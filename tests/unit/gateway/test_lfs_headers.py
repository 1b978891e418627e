"""What goes with an LFS transfer, and where the repository's credential does not go."""

import asyncio
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from corral.gateway.box import Box
from corral.gateway.gitlfs import LfsService, transfer_headers
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
