"""A guest's /etc/passwd is anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.wire.passwd import GuestUser, find_user

PASSWD = b"""root:x:0:0:root:/root:/bin/bash
# comment
broken
user:x:1000:1000::/home/user:/bin/bash
user:x:0:0:again::
huge:x:99999:1::/:
vast:x:999999999999999999999999:1::/:
negative:x:-1:1::/:
www-data:x:33:34::/:
"""


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("root", GuestUser(0, 0)),
        ("user", GuestUser(1000, 1000)),
        ("www-data", GuestUser(33, 34)),
        ("33", GuestUser(33, 34)),
        ("5", GuestUser(5, 5)),
        ("33:7", GuestUser(33, 7)),
        ("0:65535", GuestUser(0, 65535)),
    ],
)
def test_users_are_found(user: str, expected: GuestUser) -> None:
    assert find_user(user, PASSWD) == expected


@pytest.mark.parametrize(
    "user", ["nobody", "huge", "vast", "negative", "65536", "1:65536", "", "a b", "-1", "user:x"]
)
def test_others_are_refused(user: str) -> None:
    with pytest.raises(InvalidInput):
        find_user(user, PASSWD)


def test_root_needs_no_entry() -> None:
    assert find_user("root", b"") == GuestUser(0, 0)


@given(st.binary(max_size=300), st.sampled_from(["root", "user", "7", "7:8"]))
def test_no_content_gives_ids_out_of_range(passwd: bytes, user: str) -> None:
    try:
        found = find_user(user, passwd)
    except InvalidInput:
        return
    assert 0 <= found.uid < 65536
    assert 0 <= found.gid < 65536
