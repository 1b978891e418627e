"""The key file."""

import os
from pathlib import Path

import pytest

from corral.errors import HostError
from corral.model.ids import TenantId
from corral.model.route import HeaderField, HeaderRule, Route
from corral.model.secrets import Secret
from corral.store.keys import Keys, create_key, load_key


def test_made_once_private_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert load_key(path) is None
    key = create_key(path)
    assert len(key) == 32
    assert load_key(path) == key
    assert create_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_readable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    create_key(path)
    path.chmod(mode)
    with pytest.raises(HostError, match="others"):
        load_key(path)


def test_a_symlink_is_refused(tmp_path: Path) -> None:
    create_key(tmp_path / "real")
    (tmp_path / "key").symlink_to(tmp_path / "real")
    with pytest.raises(HostError, match="links are not followed"):
        load_key(tmp_path / "key")


def test_a_fifo_neither_blocks_nor_passes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(HostError, match="regular"):
        load_key(tmp_path / "key")


@pytest.mark.parametrize("content", ["", "zz" * 32, "ab" * 31, "ab" * 33, "é"])
def test_what_is_no_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(HostError, match="hold a key"):
        load_key(path)


def test_a_route_is_sealed_for_its_tenant_alone() -> None:
    keys, tenant = Keys(b"k" * 32), TenantId("acme")
    route = Route((HeaderRule("a.test", (HeaderField("X-Key", Secret("canary-0123")),)),))
    sealed = keys.seal_route(tenant, route)
    assert keys.open_route(tenant, sealed) == route
    assert keys.seal_route(tenant, route) != sealed
    for other, whose, text in (
        (Keys(b"o" * 32), tenant, sealed),
        (keys, TenantId("other"), sealed),
        (keys, tenant, sealed[:-8] + "AAAAAAA="),
        (keys, tenant, "canary"),
        (keys, tenant, "ü"),
    ):
        with pytest.raises(HostError):
            other.open_route(whose, text)
