"""What steps mean: the state after each, and what is to be done."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, InvalidInput
from corral.model.build import (
    Arg,
    Copy,
    Env,
    Line,
    Ready,
    Recipe,
    Run,
    Shell,
    Stage,
    Start,
    Step,
    User,
    Workdir,
)
from corral.model.template import TemplateConfig
from corral.policy.building import (
    CopyAction,
    Directory,
    RunAction,
    State,
    absolute,
    apply,
    initial,
    layer_key,
    stages_needed,
)
from corral.policy.expansion import expand, expand_literal


def after(*steps: Step, given: dict[str, str] | None = None, state: State | None = None) -> State:
    state = state or State()
    for step in steps:
        state, _ = apply(state, step, given or {})
    return state


def test_variables_are_expanded_where_they_stand() -> None:
    state = after(Arg("V", "1"), Env((("A", "x$V"),)), Env((("B", '"$A y"'), ("A", "2"))))
    assert state.env == {"A": "2", "B": "x1 y"}
    assert after(Arg("V", "1"), Env((("A", "$V"),)), given={"V": "9"}).env == {"A": "9"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "b c"}', '{"a": "b c"}'),
        ("C:\\temp $V", "C:\\temp 1"),
        ("it's", "it's"),
        ("$(id) `id` $$ $1 ${ ${x.y} 5$", "$(id) `id` $$ $1 ${ ${x.y} 5$"),
        ("$V-${V}-$NONE-${NONE:-a $V}-${V:+b}-${EMPTY-c}", "1-1--a 1-b-"),
    ],
)
def test_literal_steps_keep_all_but_references(text: str, value: str) -> None:
    state = after(Env((("V", "1"), ("EMPTY", ""))), Env((("A", text),), literal=True))
    assert state.env["A"] == value


def test_literal_paths_and_owners_keep_their_quotes() -> None:
    state = after(Env((("V", "1"),)), Workdir("/it's $V", literal=True))
    assert state.workdir == "/it's 1"
    _, action = apply(state, Copy(("a 'b' $V",), '"c"', literal=True), {})
    assert isinstance(action, CopyAction)
    assert (action.sources, action.target) == (("a 'b' 1",), '/it\'s 1/"c"')
    with pytest.raises(InvalidInput):
        apply(state, User("'root'", literal=True), {})


def test_arguments_are_in_commands_and_not_in_the_template() -> None:
    state, action = apply(after(Arg("V", "1"), Env((("A", "2"),))), Run(("x",), by_shell=True), {})
    assert isinstance(action, RunAction)
    assert action.env == {"V": "1", "A": "2"}
    assert action.argv == ("/bin/sh", "-c", "x")
    assert state.config().env == {"A": "2"}


def test_where_and_who_and_how() -> None:
    state = after(Workdir("/a"), Workdir("b"), User("app:staff"), Shell(("/bin/bash", "-c")))
    assert (state.workdir, state.user, state.config().user) == ("/a/b", "app", "app")
    assert state.pending == (Directory("/a", ""), Directory("/a/b", ""))
    state, action = apply(state, Run(("x",), by_shell=True, user="root"), {})
    assert isinstance(action, RunAction)
    assert (action.argv, action.user, action.cwd) == (("/bin/bash", "-c", "x"), "root", "/a/b")
    assert (state.user, state.pending) == ("app", ())


def test_commands_are_roots_where_the_bases_user_may_become_it() -> None:
    state = initial(TemplateConfig(user="user", sudo=True))
    assert (state.user, state.config().user) == ("root", "user")
    assert initial(TemplateConfig(user="app", sudo=False)).user == "app"


def test_an_entry_point_resets_the_command() -> None:
    state = after(
        Start(("old",)), Start(("/run",), fixed=True), Start(("a", "b")), Ready(("t",), by_shell=True)
    )
    assert state.config().start_command == ("/run", "a", "b")
    assert state.config().ready_command == ("/bin/sh", "-c", "t")


@pytest.mark.parametrize(
    ("target", "workdir", "place", "directory"),
    [
        ("x", "/w", "/w/x", False),
        ("x/", "/", "/x", True),
        (".", "/w", "/w", True),
        ("/../../x", "/w", "/x", False),
    ],
)
def test_a_target_is_relative_to_the_working_directory(
    target: str, workdir: str, place: str, directory: bool
) -> None:
    _, action = apply(State(workdir=workdir), Copy(("a",), target), {})
    assert isinstance(action, CopyAction)
    assert (action.target, action.directory) == (place, directory)


@pytest.mark.parametrize(
    "step",
    [
        Run(("",)),
        Run(("a\0b",)),
        Copy((), "/x"),
        Copy(("a",), ""),
        Copy(("a",), "/x", owner="a b"),
        Copy(("a",), "/x", mode=0o10000),
        Env((("1A", "x"),)),
        Env((("A", "${"),)),
        User("no such user"),
        Shell(()),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(step: Step) -> None:
    with pytest.raises(InvalidInput):
        apply(State(), step, {})


def test_no_pattern_takes_long() -> None:
    with pytest.raises(InvalidInput, match="too long"):
        expand("${A//*a*a*a*a*b/x}", {"A": "a" * 60000})


def test_keys_differ_in_all_that_counts() -> None:
    keys = {
        layer_key("t", ["l"], (), "run", ("x",)),
        layer_key("u", ["l"], (), "run", ("x",)),
        layer_key("t", ["m"], (), "run", ("x",)),
        layer_key("t", ["l"], (Directory("/a", ""),), "run", ("x",)),
        layer_key("t", ["l"], (), "run", ("y",)),
    }
    assert len(keys) == 5


def test_only_stages_that_are_needed_are_built() -> None:
    def stage(base: str, name: str = "", origin: str = "") -> Stage:
        lines = (Line(Copy(("x",), "/x", origin=origin)),) if origin else ()
        return Stage(base, lines, name)

    stages = (stage("base", "a"), stage("base", "b"), stage("a", "c"), stage("scratch", "", "c"))
    assert stages_needed(Recipe(stages)) == [0, 2, 3]
    assert stages_needed(Recipe((stage("base"), stage("base"), stage("base", "", "0")))) == [0, 2]
    with pytest.raises(InvalidInput):
        stages_needed(Recipe(()))


@given(st.text(max_size=200), st.dictionaries(st.sampled_from("ABC"), st.text(max_size=50)))
def test_any_text_expands_or_is_refused(text: str, variables: dict[str, str]) -> None:
    with contextlib.suppress(CorralError):
        assert isinstance(expand(text, variables), str)
    assert isinstance(expand_literal(text, variables), str)


def test_what_becomes_too_large_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too large"):
        expand_literal("$A" * 100, {"A": "a" * 60000})
    with pytest.raises(InvalidInput, match="too large"):
        expand_literal("${B:-" + "$A" * 60000 + "}", {"A": "a" * 60000})


@given(st.text(max_size=100).filter(lambda text: "\0" not in text))
def test_no_path_leaves_the_root(path: str) -> None:
    found = absolute(path, "/w")
    assert found.startswith("/")
    assert ".." not in found.split("/")
