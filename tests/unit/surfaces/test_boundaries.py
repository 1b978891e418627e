"""Edges of the surfaces: responses that break off, starting the daemon, shapes that travel."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api.guard import Guard
from corral.errors import Conflict, DaemonUnreachable, Forbidden, InvalidInput, NotFound
from corral.protocol.base import Error
from corral.protocol.files import FileEntry, path_fields
from corral.protocol.processes import ExecResult, Exit
from corral.sdk import autostart
from corral.sdk.operations import failure
from corral.sdk.settings import Settings, settings


async def _through_guard(app: Any) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "path": "/v1/x", "headers": [], "server": ("/run/api.sock", None)}
    await Guard(app, [])(scope, receive, send)
    return sent


async def test_a_response_that_fails_in_the_middle_is_never_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"x/y")]})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise RuntimeError("already started") from NotFound("the file is gone")

    sent = await _through_guard(app)
    assert [message.get("more_body") for message in sent] == [None, True]
    assert "cut short: the file is gone" in caplog.text


async def test_errors_of_the_framework_get_our_body() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 413, "headers": [(b"content-type", b"text/plain")]}
        )
        await send({"type": "http.response.body", "body": b"Content Too Large", "more_body": False})

    sent = await _through_guard(app)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert Error.model_validate_json(sent[1]["body"]).code == "too_large"


def test_only_root_starts_a_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    where = dataclasses.replace(settings(environ={}), socket=tmp_path / "none.sock")
    with pytest.raises(Forbidden) as error:
        autostart.ensure(where)
    assert "sudo" in error.value.hint


def test_a_daemon_that_does_not_come_up_is_told_with_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(autostart, "SERVE", ("/bin/sh", "-c", "echo the cause >&2; exit 3"))
    where = dataclasses.replace(settings(environ={}), data_dir=tmp_path, socket=tmp_path / "none.sock")
    with pytest.raises(DaemonUnreachable, match="the cause"):
        autostart.ensure(where)


def test_a_daemon_that_holds_the_data_directory_but_does_not_answer_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries = iter([Conflict.exit_code, Conflict.exit_code, None])
    spawned: list[Settings] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(autostart, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(autostart, "_spawn", spawned.append)
    monkeypatch.setattr(autostart, "_wait", lambda *_: next(tries))
    autostart.ensure(dataclasses.replace(settings(environ={}), data_dir=tmp_path, socket=tmp_path / "s"))
    assert len(spawned) == 3


@given(st.binary(min_size=1, max_size=60))
def test_any_file_name_travels_exactly(name: bytes) -> None:
    path = os.fsdecode(b"/" + name)
    shown, raw = path_fields(path)
    entry = FileEntry(path=shown, raw_path=raw, kind="file", size=0, mode=0, uid=0, gid=0, mtime=0)
    assert FileEntry.model_validate_json(entry.model_dump_json()).os_path == path


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_output_travels_exactly(out: bytes, err: bytes) -> None:
    result = ExecResult(process=1, exit=Exit(code=0), stdout=out, stderr=err, truncated=False)
    assert ExecResult.model_validate_json(result.model_dump_json()) == result


def test_bodies_that_are_not_base64_are_refused_and_unknown_fields_of_replies_ignored() -> None:
    good = (
        '{"process":1,"exit":{"code":0,"new":1},"stdout":"YQ==","stderr":"","truncated":false,"newer":true}'
    )
    assert ExecResult.model_validate_json(good).stdout == b"a"
    with pytest.raises(InvalidInput):
        ExecResult.model_validate_json(good.replace("YQ==", "YQ"))


def test_errors_of_a_newer_daemon_keep_their_message() -> None:
    error = failure(418, b'{"code":"brand_new","message":"m","hint":"h"}')
    assert (error.message, error.hint) == ("m", "h")
