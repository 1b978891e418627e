"""Rules of pushes, and what a pack's content asks for (G-250 to G-256)."""

import pytest

from corral.errors import InvalidInput
from corral.model.git import Operation, PushPolicy, PushRule, Verdict
from corral.model.push import Command, Flag, FlagKind, PushReport
from corral.policy.leaks import runs_at_work, runs_in_ci, secret_in
from corral.policy.push import flagged, joined, judge, parse_push_rule, reasons, rule_text, verdict
from corral.wire.gitobjects import Change, Commit
from corral.work.findings import Gathered, follows, look_at, missing_parents

CREATE, UPDATE, FORCE, DELETE = Operation
ALLOW, ASK, DENY = Verdict
NOTHING = PushPolicy()


@pytest.mark.parametrize(
    ("ref", "operation", "expected"),
    [
        ("refs/heads/corral/box", CREATE, ALLOW),
        ("refs/heads/corral/box/x", UPDATE, ALLOW),
        ("refs/heads/corral/box.2", UPDATE, ALLOW),
        ("refs/heads/corral/box2", UPDATE, ASK),
        ("refs/heads/corral/box-2", UPDATE, ASK),
        ("refs/heads/main", UPDATE, ASK),
        ("refs/heads/main", FORCE, DENY),
        ("refs/heads/corral/box", FORCE, DENY),
        ("refs/heads/corral/box", DELETE, DENY),
        ("refs/tags/v1", CREATE, DENY),
        ("refs/notes/x", CREATE, DENY),
        ("refs/for/main", CREATE, DENY),
        ("refs/pull/1/head", UPDATE, DENY),
        ("refs/changes/1", CREATE, DENY),
        ("refs/meta/config", UPDATE, DENY),
    ],
)
def test_the_defaults(ref: str, operation: Operation, expected: Verdict) -> None:
    assert judge(NOTHING, "box", ref, operation).verdict is expected


def policy(*rules: str) -> PushPolicy:
    return PushPolicy(rules=tuple(map(parse_push_rule, rules)))


def test_the_first_rule_decides_but_a_no_always_does() -> None:
    some = policy("allow:feature/*", "ask:*:any", "deny:feature/x")
    assert judge(some, "box", "refs/heads/feature/a/b", UPDATE).verdict is ALLOW
    assert judge(some, "box", "refs/heads/feature/a", FORCE).verdict is ASK
    assert judge(some, "box", "refs/heads/feature/x", UPDATE).verdict is DENY
    assert judge(some, "box", "refs/tags/v1", CREATE).verdict is ASK


def test_what_restricts_holds_for_other_cases_too() -> None:
    some = policy("deny:main", "allow:*")
    assert judge(some, "box", "refs/heads/MAIN", UPDATE).verdict is DENY
    assert judge(policy("allow:Main"), "box", "refs/heads/main", UPDATE).verdict is ASK


def test_a_pattern_is_no_expression() -> None:
    some = policy("allow:release-1.x")
    assert judge(some, "box", "refs/heads/release-1zx", UPDATE).verdict is ASK
    assert judge(some, "box", "refs/heads/release-1.x", UPDATE).verdict is ALLOW
    assert judge(some, "box", "refs/heads/release-1.x/more", UPDATE).verdict is ASK


@pytest.mark.parametrize(
    "text", ["", "allow", "allow:", "maybe:main", "allow:main:push", "allow:a\nb", "allow:main:"]
)
def test_what_is_no_rule(text: str) -> None:
    if text == "allow:main:":
        assert parse_push_rule(text) == parse_push_rule("allow:main")
        return
    with pytest.raises(InvalidInput):
        parse_push_rule(text)


def test_a_rule_as_text() -> None:
    for text in ("allow:refs/heads/x:create+update", "deny:*:any", "ask:refs/tags/*:create+force"):
        assert rule_text(parse_push_rule(text)) == text
    assert parse_push_rule("deny:main") == PushRule(DENY, "refs/heads/main", tuple(Operation))


def test_the_host_restricts_what_a_sandbox_widens() -> None:
    host = PushPolicy(rules=(parse_push_rule("deny:main"),), max_pack=5, signed=True, authors=("*@a",))
    both = joined(policy("allow:main"), host)
    assert judge(both, "box", "refs/heads/main", UPDATE).verdict is DENY
    assert (both.max_pack, both.signed, both.authors) == (5, True, ("*@a",))


def test_one_refusal_refuses_all() -> None:
    judged = [
        judge(NOTHING, "box", "refs/heads/corral/box", CREATE),
        judge(NOTHING, "box", "refs/tags/v1", CREATE),
    ]
    assert verdict(judged) is DENY
    found = reasons(judged)
    assert found["refs/tags/v1"] == "creating refs/tags/v1 is not allowed"
    assert found["refs/heads/corral/box"].startswith("refused with the rest")


def test_content_needs_a_person() -> None:
    for kind, expected in (
        (FlagKind.SECRET, ASK), (FlagKind.CI, ASK), (FlagKind.NOT_INSPECTED, ASK), (FlagKind.SUBMODULE, ASK),
        (FlagKind.AUTHOR, DENY), (FlagKind.UNSIGNED, DENY), (FlagKind.LARGE, ALLOW), (FlagKind.HOOK, ALLOW),
    ):  # fmt: skip
        assert flagged(NOTHING, PushReport(flags=(Flag(kind, "x"),)))[0] is expected


@pytest.mark.parametrize(
    "line",
    [b"key = 'ghp_" + b"a" * 36 + b"'", b"AKIAIOSFODNN7EXAMPLE", b"-----BEGIN RSA PRIVATE KEY-----",
     b"https://me:hunter22@host/x", b"\xff\xfe password: 'abcdefghijklmnopqrstuvwxyz'", b"sk-ant-api03-" + b"x" * 40],
)  # fmt: skip
def test_what_looks_like_a_secret(line: bytes) -> None:
    assert secret_in(line) is not None


@pytest.mark.parametrize(
    "line", [b"", b"token = get_token()", b"password: ''", b"https://host/x", b"sk-", b"deadbeef" * 8]
)
def test_what_does_not(line: bytes) -> None:
    assert secret_in(line) is None


def test_paths_that_run() -> None:
    for path in (
        ".github/workflows/x.yml",
        "sub/.github/actions/a",
        ".gitlab-ci.yml",
        "Jenkinsfile",
        ".GitHub/Workflows/X",
    ):
        assert runs_in_ci(path), path
    for path in (".envrc", ".husky/pre-commit", ".vscode/tasks.json", ".claude/settings.json", "a/.mcp.json"):
        assert runs_at_work(path), path
    for path in ("src/workflows/x.yml", "README.md", "github/workflows"):
        assert not runs_in_ci(path), path


def commit(id: str, *parents: str) -> Commit:
    return Commit(id, parents, "n", "e@x", "t", signed=False)


def test_ancestry_is_proven_or_not() -> None:
    commits = {one.id: one for one in (commit("c", "b", "x"), commit("b", "a"), commit("o"))}
    assert follows(commits, "a", "c")
    assert follows(commits, "x", "c")
    assert not follows(commits, "a", "o")
    assert not follows(commits, "c", "b")
    assert missing_parents(commits, [Command("r", "0" * 40, "z")]) == ["a", "x", "z"]


def test_a_loop_in_a_hostile_history_ends() -> None:
    commits = {"a": commit("a", "b"), "b": commit("b", "a")}
    assert not follows(commits, "c", "a")


def test_what_modes_and_authors_tell() -> None:
    gathered = Gathered(commits={"c" * 40: commit("c" * 40)}, large={"L": 20 << 20})
    rows = [
        (".gitmodules", "000000", "100644", "n"), ("sub", "000000", "160000", "n"), ("link", "000000", "120000", "n"),
        ("run", "100644", "100755", "n"), ("big", "000000", "100644", "L"), (".github/workflows/a.yml", "100644", "100644", "n"),
    ]  # fmt: skip
    gathered.changes = [Change("c", path.encode(), old, new, "o", id, "M") for path, old, new, id in rows]
    look_at(gathered, ["*@corp"], signed=True)
    assert {kind for kind, _ in gathered.flags} == {
        FlagKind.SUBMODULE, FlagKind.SYMLINK, FlagKind.EXECUTABLE, FlagKind.LARGE, FlagKind.CI, FlagKind.AUTHOR,
        FlagKind.UNSIGNED,
    }  # fmt: skip
