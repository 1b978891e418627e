"""Who had something done is known by the API key that was used, over each API (G-322)."""

from typing import Any, cast

import httpx2
import pytest

from corral.api.e2b.app import E2bApi
from corral.engine.acting import actor
from corral.errors import NotFound

ACME = "tenant acme, key ci (0a1b2c3d)"


@pytest.mark.parametrize("path", ["/v1/sandboxes/box", "/sandboxes/box"])
@pytest.mark.parametrize(
    ("headers", "who"), [({"authorization": "Bearer of-acme"}, ACME), ({}, "this host")], ids=["key", "none"]
)
async def test_the_key_that_acts_is_told(
    app: Any, engine: Any, monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str], who: str
) -> None:
    """G-322."""
    acted: list[str] = []

    def get(*_: object) -> None:
        acted.append(actor())
        raise NotFound("there is none", "make one")

    monkeypatch.setattr(engine.sandboxes, "get", get)
    both = E2bApi(app, engine, app.state.authenticate, cast(Any, None), None)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=both), base_url="http://localhost:7070"
    ) as client:
        assert (await client.get(path, headers=headers)).status_code == 404
    assert acted == [who]
