"""Login files in sandboxes: placeholders are written, and no login that is there already is lost or passed over."""

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from corral.agents.logins import holds_login, login_file, write_login
from corral.agents.preset import HomeFile
from corral.engine.ports import GuestFiles
from corral.errors import Conflict, NotFound
from corral.model.secrets import SecretForm

REAL = {
    "claude": {"claudeAiOauth": {"accessToken": "sk-ant-oat01-real", "refreshToken": "sk-ant-ort01-real"}},
    "codex": {"OPENAI_API_KEY": None, "tokens": {"access_token": "a.b.c", "refresh_token": "rt_real"}},
}
FORMS = {"claude": SecretForm.CLAUDE, "codex": SecretForm.CHATGPT}


class Files:
    """A sandbox's files, as far as they are used here."""

    def __init__(self, **held: bytes) -> None:
        self.held = dict(held)

    async def read(self, path: str, offset: int = 0, size: int | None = None) -> AsyncIterator[bytes]:
        if path not in self.held:
            raise NotFound(f"there is no {path}", "look again")
        yield self.held[path][offset : None if size is None else offset + size]

    async def write(self, path: str, data: AsyncIterator[bytes], user: str, mode: int | None = None) -> None:
        self.held[path] = b"".join([chunk async for chunk in data])


def file_of(agent: str, token: str = "sk-crl-token") -> HomeFile:
    file = login_file(agent, FORMS[agent], token)
    assert file is not None
    return file


@pytest.mark.parametrize("agent", FORMS)
async def test_it_is_written_and_written_again(agent: str) -> None:
    """G-161, G-171: also over one of Corral's own, and over what a client left when it was logged out."""
    file, files = file_of(agent), Files()
    for held in (None, file_of(agent, "sk-crl-former").content.encode(), b"", b"{}\n"):
        if held is not None:
            files.held[file.path] = held
        await write_login(cast(GuestFiles, files), file, "user")
        assert files.held == {file.path: file.content.encode()}


@pytest.mark.parametrize("agent", FORMS)
async def test_a_login_that_is_there_stays_and_is_told(agent: str) -> None:
    """G-171: as when an image brought it along."""
    file = file_of(agent)
    real = json.dumps(REAL[agent]).encode()
    files = Files(**{file.path: real})
    with pytest.raises(Conflict, match="holds a login of its own") as refused:
        await write_login(cast(GuestFiles, files), file, "user")
    assert files.held == {file.path: real}
    assert "real" not in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    ("document", "held"),
    [
        ({"claudeAiOauth": {}}, False), ({"tokens": None, "OPENAI_API_KEY": None}, False), ({"theme": "dark"}, False),
        ({"OPENAI_API_KEY": "sk-x"}, True), ({"claudeAiOauth": {"accessToken": "x"}}, True), ({"tokens": "x"}, True),
        ({"tokens": {"refresh_token": None}}, True), ([], True), ("x", True),
    ],
)  # fmt: skip
def test_what_counts_as_a_login(document: Any, *, held: bool) -> None:
    """G-171."""
    assert holds_login(json.dumps(document).encode()) is held


def test_what_cannot_be_read_counts_as_one() -> None:
    """G-171."""
    assert holds_login(b"{")
    assert holds_login(b"\xff\x00")
    assert holds_login(b"[" * 100_000)
