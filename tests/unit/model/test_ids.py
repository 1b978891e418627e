"""Limits on names, labels, environments and paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.model.ids import check_env, check_guest_path, check_labels, check_name, check_timezone, check_user


@pytest.mark.parametrize("name", ["a", "brave-otter", "0", "a" * 63, "123"])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a_b", "a" * 64, "a.b", "a/b", "..", "a\n", "ä", "a b", "a\0"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_name(name)


@given(st.text(max_size=80))
def test_a_name_is_returned_unchanged_or_refused(name: str) -> None:
    try:
        result = check_name(name)
    except InvalidInput:
        return
    assert result == name


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"a": "x" * 1025}, {"a": "\0"}, {str(i): "" for i in range(65)}]
)
def test_bad_labels(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        check_labels(labels)


@pytest.mark.parametrize("env", [{"1A": ""}, {"A=B": ""}, {"A": "x" * 65537}, {"A": "\0"}, {"": "x"}])
def test_bad_environments(env: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        check_env(env)


@pytest.mark.parametrize("path", ["relative", "", "/a\0b", "/" + "x" * 4095])
def test_bad_paths(path: str) -> None:
    with pytest.raises(InvalidInput):
        check_guest_path(path)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+12"])
def test_good_timezones(zone: str) -> None:
    assert check_timezone(zone) == zone


@pytest.mark.parametrize(
    "zone", ["", "Mars/Base", "Europe", "../../etc/shadow", "/etc/localtime", "UTC\n", "a\0b"]
)
def test_bad_timezones(zone: str) -> None:
    with pytest.raises(InvalidInput, match="no time zone"):
        check_timezone(zone)


@pytest.mark.parametrize("user", ["user", "root", "0", "1000:1000", "_apt"])
def test_good_users(user: str) -> None:
    assert check_user(user) == user


@pytest.mark.parametrize("user", ["", "a b", "-x", "1:2:3", "a:b", "User", "x" * 33, "1000\n"])
def test_bad_users(user: str) -> None:
    with pytest.raises(InvalidInput):
        check_user(user)
