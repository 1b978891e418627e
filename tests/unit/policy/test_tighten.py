"""A repository's file makes a policy tighter and never looser (G-13)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.model.project import Project, parse_project
from corral.policy.tighten import tightened_cap
from corral.sdk.projects import create_options

CAPS = st.none() | st.integers(0, 100)


@given(CAPS, CAPS, CAPS)
def test_a_cap_is_never_raised(asked: int | None, default: int | None, most: int | None) -> None:
    holding = default if asked is None else asked
    cap = tightened_cap(asked, default, most)
    now = default if cap is None else cap
    if holding is not None:
        assert now is not None
        assert now <= holding
    if most is not None:
        assert now is not None
        assert now <= most


def test_a_file_denies_and_caps_without_anybodys_consent() -> None:
    project = parse_project('[policy]\ndeny = ["a.com"]\npush = ["deny:main"]\nbudget = 0.5\n', "p")
    assert project.asks == ()
    options = create_options(project, {"deny": ("b.com",), "push_rules": ("allow:x",), "budget": 7})
    assert options["deny"] == ("b.com", "a.com")
    assert options["push_rules"] == ("allow:x", "deny:main")
    assert (options["budget"], options["budget_at_most"]) == (7, 500_000)
    assert "budget_at_most" not in create_options(Project(), {})


@pytest.mark.parametrize(
    "line", ['push = ["allow:main"]', 'push = ["ask:main"]', "budget = -1", "budget = true"]
)
def test_what_would_loosen_is_refused(line: str) -> None:
    with pytest.raises(InvalidInput):
        parse_project(f"[policy]\n{line}\n", "p")
