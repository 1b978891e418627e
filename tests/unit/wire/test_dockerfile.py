"""Dockerfiles become recipes, or are refused with the line."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, InvalidInput, Unsupported
from corral.model.build import (
    Arg,
    Copy,
    Env,
    Fetch,
    InlineFile,
    Recipe,
    Run,
    Shell,
    Start,
    Step,
    User,
    Workdir,
)
from corral.wire.dockerfile import parse_dockerfile


def steps(text: str) -> list[Step]:
    return [line.step for line in parse_dockerfile(f"FROM base\n{text}\n").stages[0].lines]


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("RUN make all", Run(("make all",), by_shell=True)),
        ('RUN ["make", "all"]', Run(("make", "all"))),
        ("RUN a && \\\n  # a comment\n  b", Run(("a &&   b",), by_shell=True)),
        ("RUN <<EOF\nset -e\nmake\nEOF", Run(("set -e\nmake\n",), by_shell=True)),
        ("RUN python3 <<X\nprint(1)\nX", Run(("python3 <<X\nprint(1)\nX\n",), by_shell=True)),
        ("RUN --mount=type=cache,target=/root/.cache make", Run(("make",), by_shell=True, passing=("/root/.cache",))),
        ("COPY a b /dst", Copy(("a", "b"), "/dst/")),
        ('COPY ["a b", "/dst"]', Copy(("a b",), "/dst")),
        ("COPY --from=one --chown=a:b --chmod=755 /x .", Copy(("/x",), ".", origin="one", owner="a:b", mode=0o755)),
        ("COPY <<EOF /etc/x\nhi $A\nEOF", Copy((), "/etc/x", files=(InlineFile("EOF", "hi $A\n", expand=True),))),
        ("COPY <<'EOF' /etc/x\nhi $A\nEOF", Copy((), "/etc/x", files=(InlineFile("EOF", "hi $A\n"),))),
        ("ADD x.tar /x", Copy(("x.tar",), "/x", unpack=True)),
        ("ADD https://h.example/f /x", Fetch("https://h.example/f", "/x")),
        ("ENV A=1 B='2 3'", Env((("A", "1"), ("B", "'2 3'")))),
        ("ENV A 1 2", Env((("A", "1 2"),))),
        ("ARG A", Arg("A")),
        ("ARG A=$B", Arg("A", "$B")),
        ("WORKDIR /x", Workdir("/x")),
        ("USER 1:2", User("1:2")),
        ('SHELL ["/bin/bash", "-c"]', Shell(("/bin/bash", "-c"))),
        ('ENTRYPOINT ["/x"]', Start(("/x",), fixed=True)),
        ("CMD run it", Start(("run it",), by_shell=True)),
    ],
)  # fmt: skip
def test_an_instruction(text: str, step: Step) -> None:
    assert steps(text) == [step]


def test_what_only_describes_is_left_out() -> None:
    assert steps("LABEL a=b\nEXPOSE 80\nHEALTHCHECK NONE\nSTOPSIGNAL TERM\nMAINTAINER me") == []


def test_stages_have_names_and_bases_with_arguments() -> None:
    recipe = parse_dockerfile(
        "ARG V=12\nFROM debian:${V} AS Build\nRUN x\nFROM scratch\nCOPY --from=build /x /", given={"V": "13"}
    )
    assert [(stage.base, stage.name) for stage in recipe.stages] == [("debian:13", "build"), ("scratch", "")]


def test_a_target_ends_the_recipe() -> None:
    text = "FROM base AS a\nFROM base AS b\nFROM base AS c\n"
    assert [stage.name for stage in parse_dockerfile(text, target="b").stages] == ["a", "b"]
    with pytest.raises(InvalidInput, match="no stage 'd'"):
        parse_dockerfile(text, target="d")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("FROM base\nRUN a\nSUMMON b", 3),
        ("FROM base\nVOLUME /x", 2),
        ("FROM base\nONBUILD RUN x", 2),
        ("FROM base\nRUN --mount=type=secret,id=x cat /run/secrets/x", 2),
        ("FROM base\nRUN --mount=type=bind,target=/x y", 2),
        ("FROM base\nRUN \\\n  a\nCOPY x", 4),
        ("FROM base\nCOPY --parents a b", 2),
        ("FROM base\nADD https://h.example/x.git /x", 2),
        ("RUN a", 1),
        ("FROM a b", 1),
        ("FROM $NOTHING", 1),
        ("FROM base\nRUN <<EOF\nno end", 2),
    ],
)
def test_what_is_not_known_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises((InvalidInput, Unsupported), match=rf"line {line}\b|Dockerfile"):
        parse_dockerfile(text)


def test_a_build_argument_that_nothing_declares_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no ARG B"):
        parse_dockerfile("FROM base\nARG A", given={"B": "1"})


@given(st.text(max_size=400))
def test_any_text_is_a_recipe_or_refused(text: str) -> None:
    with contextlib.suppress(CorralError):
        assert isinstance(parse_dockerfile(text), Recipe)


@given(
    st.lists(
        st.sampled_from(
            [
                "FROM base",
                "RUN",
                "COPY",
                "ADD",
                "ENV",
                "--from=a",
                "<<E",
                "E",
                "\n",
                " ",
                "\\",
                '"',
                "[",
                "]",
                "$",
                "{",
                "x",
                "=",
            ]
        ),
        max_size=40,
    )
)
def test_words_of_dockerfiles_in_any_order(words: list[str]) -> None:
    with contextlib.suppress(CorralError):
        parse_dockerfile("".join(words))
