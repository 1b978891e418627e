"""A repository's file: what it says, what it asks for, what is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, InvalidInput
from corral.model.project import SetupStep, listening, parse_project
from corral.model.sandbox import Isolation

WHOLE = """
template = "web"
isolation = "gvisor"
carry = [".gitconfig", "~/.config/nvim"]
[env]
A = "b"
PORT = 3000
[limits]
memory = "1.5G"
cpus = 0.5
[policy]
allow = ["example.org"]
secrets = ["anthropic"]
[setup]
allow = ["example.org", "@npm"]
serve-stale = true
[[setup.step]]
run = "npm ci"
files = ["package-lock.json"]
[[setup.step]]
run = "make"
user = "root"
[service.web]
run = "npm start"
port = 3000
[service.db]
run = "redis-server"
ready = "redis-cli ping"
patience = 5
"""


def test_a_whole_file() -> None:
    project = parse_project(WHOLE, "demo")
    assert (project.template, project.isolation) == ("web", Isolation.GVISOR)
    assert project.env == {"A": "b", "PORT": "3000"}
    assert project.limits == {"memory": 3 << 29, "cpus": 0.5}
    assert project.setup is not None
    assert project.setup.name == "demo"
    assert project.setup.steps == (
        SetupStep("npm ci", ("package-lock.json",)),
        SetupStep("make", (), "root"),
    )
    assert project.setup.serve_stale
    web, db = project.services
    assert web.command == ("/bin/sh", "-c", "npm start")
    assert web.ready == listening(3000)
    assert (db.ready, db.patience) == (("/bin/sh", "-c", "redis-cli ping"), 5.0)


def test_what_opens_something_is_asked_for() -> None:
    assert parse_project(WHOLE, "demo").asks == (
        "get ~/.config/nvim of yours",
        "get ~/.gitconfig of yours",
        "reach @npm during setup",
        "reach example.org",
        "use the secret anthropic",
    )
    assert parse_project('[env]\nA = "b"\n[[setup.step]]\nrun = "make"', "demo").asks == ()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("nonsense", "corral.toml"),
        ('tempalte = "x"', "tempalte"),
        ("template = 3", "template"),
        ('template = "../x"', "template name"),
        ('isolation = "none"', "isolation"),
        ("[limits]\nmemory = 'much'", "much"),
        ("[limits]\nswap = 1", "limits.swap"),
        ("[policy]\nallow = 'x'", "policy.allow"),
        ("[policy]\npush = 'x'", "policy.push"),
        ("[setup]\nstep = 'x'", "setup.step"),
        ("[[setup.step]]\nfiles = ['x']", "no command"),
        ("[[setup.step]]\nrun = 'x'\nfiles = ['/etc/passwd']", "files"),
        ("[[setup.step]]\nrun = 'x'\nfiles = [':(exclude)x']", "files"),
        ("[[setup.step]]\nrun = 'x'\nuser = 'no one'", "user"),
        ("[service.web]\nport = 3000", "service.web"),
        ("[service.web]\nrun = 'x'\nport = 70000", "service.web.port"),
        ("[service.Web]\nrun = 'x'", "service name"),
        ("[service.web]\nrun = 'x'\npatience = 1e9", "1 to 3600|cannot be waited"),
        ("carry = ['../x']", "carry"),
        ("carry = ['/etc']", "carry"),
        ("carry = ['.ssh/config']", "credentials"),
        ("carry = ['.config/gh']", "credentials"),
        ("[env]\n1A = 'x'", "variable"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text: str, place: str) -> None:
    with pytest.raises(InvalidInput, match=place):
        parse_project(text, "demo")


@given(st.text(max_size=200))
def test_any_text_is_a_project_or_refused(text: str) -> None:
    with contextlib.suppress(CorralError):
        parse_project(text, "demo")


_VALUES = st.recursive(
    st.sampled_from(['"x"', "3", "true", "1.5", '"4G"', '["x"]', "[]", "{}"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
    max_leaves=4,
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("template", "isolation", "carry", "env", "limits", "policy", "setup", "service"),
                *("setup.step", "limits.cpus", "service.a", "service.a.run", "policy.allow", "env.A"),
            ]
        ),
        _VALUES,
        max_size=6,
    )
)
def test_any_values_are_a_project_or_refused(values: dict[str, str]) -> None:
    with contextlib.suppress(CorralError):
        parse_project("\n".join(f"{key} = {value}" for key, value in values.items()), "demo")
