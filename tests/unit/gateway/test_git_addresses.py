"""What a git server names as an address is dialled only where any sandbox might be led."""

import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from multidict import CIMultiDict

from corral.gateway.box import Box
from corral.gateway.dial import Dialer
from corral.gateway.gitupstream import GitRefusedError, GitUpstream
from corral.gateway.proxies import Proxies
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy
from corral.model.grants import ModelRules
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route
from corral.model.secrets import Secret
from corral.wire.link import Attach, GrantSpec


@pytest.fixture
async def upstream() -> AsyncIterator[GitUpstream]:
    grant = GrantSpec("00", (), ModelRules())
    attach = Attach(
        0, SandboxId("0" * 16), TenantId("t"), "b", grant, EgressPolicy(), Secret("seed"), (), PushPolicy(), Route(), ()
    )  # fmt: skip
    box = Box(attach, lambda _: None, frozenset, frozenset)
    context = ssl.create_default_context()
    with ThreadPoolExecutor(1) as executor:
        found = GitUpstream(box, Dialer(Proxies({}), context, context, executor))
        yield found
        await found.close()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1.", "10.0.0.5", "169.254.169.254", "[::1]", "[::ffff:10.0.0.5]", "127.1", "2130706433"],
)  # fmt: skip
async def test_an_address_is_checked_where_no_name_is_looked_up(upstream: GitUpstream, host: str) -> None:
    """G-54, G-62, G-63."""
    with pytest.raises(GitRefusedError) as refused:
        async with upstream.request("GET", f"https://{host}:1/x", CIMultiDict(), public=True):
            pytest.fail("it was dialled")
    assert refused.value.reason in ("address-not-allowed", "bad-host")
