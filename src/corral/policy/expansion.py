"""References to variables in the texts of a template's recipe. No I/O, and no command is ever run."""

import re
from collections.abc import Mapping

from e2b_dockerfile_utils import ShellLex

from corral.errors import InvalidInput

MAX_TEXT = 128 * 1024
_MAX_EXPANDED = 1024 * 1024
# `${NAME#pattern}`, `${NAME%pattern}`, `${NAME/pattern/text}`: patterns become regular expressions.
_MATCHING = re.compile(r"\$\{[A-Za-z0-9_]+[#%/]")
_MAX_MATCHED = 4096
_REFERENCE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^{}]*))?\})")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with references to variables replaced and quotes removed, as in a Dockerfile. No command is ever run.

    Raises InvalidInput for a malformed reference, and for what would take long.
    """
    return _expand(text, variables, plain=False)


def expand_plain(text: str, variables: Mapping[str, str]) -> str:
    """The same for the content of a file, whose quotes are its own."""
    return _expand(text, variables, plain=True)


def expand_literal(text: str, variables: Mapping[str, str]) -> str:
    """`text` with `$NAME`, `${NAME}`, `${NAME:-text}` and `${NAME:+text}` replaced, and nothing else: quotes, backslashes and
    any other `$` stay. A variable that is not set is empty. Raises InvalidInput for what would become too large.
    """
    _check_length(text)

    def value_of(found: re.Match[str]) -> str:
        name, sign, other = found[1] or found[2], found[3] or "", found[4] or ""
        value = variables.get(name)
        there = bool(value) if sign.startswith(":") else value is not None
        if sign.endswith("+"):
            return expand_literal(other, variables) if there else ""
        return expand_literal(other, variables) if sign and not there else value or ""

    parts: list[str] = []
    size = end = 0
    for found in _REFERENCE.finditer(text):
        parts += text[end : found.start()], value_of(found)
        size, end = size + len(parts[-1]) + len(parts[-2]), found.end()
        _check_expanded(size)
    return "".join((*parts, text[end:]))


def _check_length(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise InvalidInput(f"a text of the recipe has {len(text)} characters", f"use at most {MAX_TEXT}")


def _check_expanded(size: int) -> None:
    if size > _MAX_EXPANDED:
        raise InvalidInput(
            "a text of the recipe becomes too large", f"use at most {_MAX_EXPANDED} characters"
        )


def _expand(text: str, variables: Mapping[str, str], *, plain: bool) -> str:
    _check_length(text)
    if "$" not in text and (plain or not set(text) & {"\\", '"', "'"}):
        return text
    if _MATCHING.search(text) and (
        text.count("*") > 4 or any(len(value) > _MAX_MATCHED for value in variables.values())
    ):
        raise InvalidInput("a pattern of the recipe would take too long to match", "use a simpler one")
    lex = ShellLex("\\", skip_process_quotes=plain, env=variables, skip_unset_env=False)
    try:
        found = lex.process_word(text)
    except ValueError as error:
        raise InvalidInput(
            f"a variable cannot be replaced: {error}"[:300], "see its braces and quotes"
        ) from None
    _check_expanded(len(found))
    return found
