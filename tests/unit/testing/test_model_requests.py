"""Keys, content codings and faults of the scripted model server."""

import gzip
import zlib

import pytest
import zstandard
from multidict import CIMultiDict

from corral.errors import InvalidInput
from corral.testing.model_faults import FOREVER, Faults
from corral.testing.model_requests import decode_body, judge

KEY = "sk-of-this-test"


@pytest.mark.parametrize(
    ("headers", "native", "good", "extra"),
    [
        ({"X-API-Key": KEY}, "x-api-key", True, ()),
        ({"Authorization": f"Bearer {KEY}"}, "authorization", True, ()),
        ({"Authorization": KEY}, "authorization", False, ()),
        ({"Authorization": f"Bearer {KEY}"}, "x-api-key", False, ("authorization",)),
        ({"X-API-Key": KEY, "Authorization": "Bearer other"}, "x-api-key", True, ("authorization",)),
        ({"X-API-Key": KEY + "x"}, "x-api-key", False, ()),
        ({"X-API-Key": "ключ"}, "x-api-key", False, ()),
        ({}, "x-api-key", False, ()),
    ],
)
def test_the_key_counts_only_in_the_apis_own_header(
    headers: dict[str, str], native: str, good: bool, extra: tuple[str, ...]
) -> None:
    credentials = judge(CIMultiDict(headers), native, KEY)
    assert (credentials.good, credentials.extra) == (good, extra)


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("", b"{}"),
        ("identity", b"{}"),
        ("gzip", gzip.compress(b"{}", mtime=0)),
        ("deflate", zlib.compress(b"{}")),
        ("zstd", zstandard.compress(b"{}")),
    ],
)
def test_bodies_are_decoded(coding: str, data: bytes) -> None:
    assert decode_body(data, coding) == b"{}"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "compress"])
def test_broken_and_unknown_codings_are_refused(coding: str) -> None:
    with pytest.raises(ValueError):
        decode_body(b"no such thing", coding)


def test_faults_strike_as_often_as_asked() -> None:
    faults = Faults.from_data({"status": 429, "times": 2})
    assert faults.strikes
    assert faults.spent().strikes
    assert not faults.spent().spent().strikes
    assert Faults(cut_after=0).strikes
    assert Faults(cut_after=0).spent().times == FOREVER
    assert not Faults(delay=1.0).strikes


@pytest.mark.parametrize("data", [[], {"stauts": 500}, {"status": "500"}, {"status": 200}, {"delay": True}])
def test_what_is_no_fault_is_refused(data: object) -> None:
    with pytest.raises(InvalidInput):
        Faults.from_data(data)
