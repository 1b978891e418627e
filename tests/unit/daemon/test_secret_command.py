"""Commands that print a secret: real programs."""

import json
from pathlib import Path

import pytest

from corral.daemon.secret_command import AGAIN_SECONDS, STALE_SECONDS, CommandSource, parse_command
from corral.engine.ports import OpenedSecret
from corral.errors import CorralError, InvalidInput
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret, SecretForm


def a_secret(*words: str) -> OpenedSecret:
    command = Secret(json.dumps(words))
    return OpenedSecret(TenantId("t"), "s", Provider.OPENAI, "https://h", command, form=SecretForm.COMMAND)


async def test_output_is_the_key_and_is_kept_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("key-one-0123\n")
    clock = [0.0]
    source = CommandSource(lambda: clock[0])
    secret = a_secret("cat", str(tmp_path / "key"))
    assert (await source.present(secret, anew=False)).value.reveal() == "key-one-0123"
    (tmp_path / "key").write_text("key-two-0123\n")
    assert (await source.present(secret, anew=False)).value.reveal() == "key-one-0123"
    clock[0] = AGAIN_SECONDS
    assert (await source.present(secret, anew=False)).value.reveal() == "key-two-0123"
    (tmp_path / "key").unlink()
    clock[0] += STALE_SECONDS - 1
    assert (await source.present(secret, anew=False)).value.reveal() == "key-two-0123"
    with pytest.raises(CorralError):
        await source.present(secret, anew=True)
    clock[0] += 1
    with pytest.raises(CorralError):
        await source.present(secret, anew=False)


@pytest.mark.parametrize(
    "words",
    [("false",), ("sh", "-c", "echo canary-0123 >&2; exit 3"), ("no-such-program-here",), ("true",), ("printf", "a\\nb0123456"),
     ("printf", "\\377\\377\\377\\377\\377\\377\\377\\377")],
)  # fmt: skip
async def test_what_gives_no_key_is_refused_without_its_output(words: tuple[str, ...]) -> None:
    """G-40, G-43: an error shows nothing of what the command wrote."""
    with pytest.raises(CorralError) as caught:
        await CommandSource().present(a_secret(*words), anew=False)
    assert "canary-0123" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    "text", ["", "op read", "[]", '[""]', "[1]", '{"a": 1}', '["a\\u0000"]', json.dumps(["x"] * 65)]
)
def test_commands_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_command(text)


def test_no_shell_reads_a_command() -> None:
    assert parse_command('["echo", "$HOME;id"]') == ("echo", "$HOME;id")
