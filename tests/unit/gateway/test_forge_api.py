"""A token that is written into requests for one repository's part of a forge's API, and into no others (G-246)."""

import pytest

from corral.gateway.inject import Bound, Injected, inject
from corral.model.binding import Binding, Mode
from corral.model.secrets import Secret

TOKEN = "ghp_canary0123456789"
BOUND = Bound.of(
    "issues",
    Secret(TOKEN),
    Binding(
        hosts=("api.github.com",),
        mode=Mode.SET,
        fields=("Authorization",),
        form="Bearer {}",
        methods=("GET",),
        paths=("/repos/acme/app/**",),
        replaces=True,
    ),
    Secret("seed"),
)


def sent(method: str, target: str) -> list[tuple[str, str]]:
    done = inject([BOUND], method, target, [("Authorization", "token none")], upgrade=False)
    assert isinstance(done, Injected)
    return done.fields


def test_the_repositorys_own_part_is_read_with_the_token() -> None:
    for target in ("/repos/acme/app/issues", "/repos/acme/app/issues/7/comments?page=2"):
        assert sent("GET", target) == [("Authorization", f"Bearer {TOKEN}")]


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/repos/acme/app/issues"),
        ("DELETE", "/repos/acme/app/hooks/1"),
        ("PUT", "/repos/acme/app/pulls/1/merge"),
        ("GET", "/repos/acme/other/issues"),
        ("GET", "/repos/acme/app2/issues"),
        ("GET", "/repos/acme"),
        ("GET", "/user"),
        ("POST", "/graphql"),
        ("GET", "/graphql?path=/repos/acme/app/issues"),
    ],
)
def test_all_else_goes_without_it(method: str, target: str) -> None:
    assert sent(method, target) == [("Authorization", "token none")]
