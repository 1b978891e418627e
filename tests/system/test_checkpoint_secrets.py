"""No checkpoint holds a secret of its tenant's, nor a token."""

import base64
from collections.abc import Iterator

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces

from corral import Client, Sandbox
from corral.errors import Forbidden

pytestmark = pytest.mark.root
KEY = "sk-ant-api03-a-key-of-the-host-0123456789"


@pytest.fixture
def box(daemon: Daemon, client: Client) -> Iterator[Sandbox]:
    """A sandbox with a token, whose user was given the key by other ways than Corral's."""
    client.put_secret("anthropic", KEY, base_url="https://models.example")
    box = Sandbox.create(client=client, name="box", secrets=("anthropic",))
    before = traces(daemon)
    yield box
    client.remove_secret("anthropic")
    settled(daemon, frozenset(trace for trace in before if "secrets" not in trace))


def test_a_secret_in_a_file_is_refused_by_name_or_overwritten(client: Client, box: Sandbox) -> None:
    coded = base64.b64encode(f"x{KEY}".encode()).decode()
    box.files.write("/home/user/.env", f"KEY={KEY}\n".encode())
    box.files.write("/home/user/coded", coded.encode())
    with pytest.raises(Forbidden) as refused:
        client.checkpoint(box.id, "mine")
    assert "secret anthropic in /home/user/.env" in refused.value.message
    assert KEY not in refused.value.message
    assert "--redact" in refused.value.hint
    assert "mine" not in [template.name for template in client.list_templates()]

    made = client.checkpoint(box.id, "mine", redact=True)
    try:
        assert made.origin is not None
        assert sorted(made.origin.redacted) == [
            "/home/user/.env: secret anthropic",
            "/home/user/coded: secret anthropic",
        ]
        copy = Sandbox.create("mine", client=client)
        assert copy.files.read("/home/user/.env") == "KEY=" + "*" * len(KEY) + "\n"
        assert copy.files.read("/home/user/coded") != coded
        assert box.files.read("/home/user/.env") == f"KEY={KEY}\n"
        copy.kill()
    finally:
        client.remove_template("mine")


def test_the_token_that_a_process_wrote_down_is_refused(client: Client, box: Sandbox) -> None:
    box.exec("printenv ANTHROPIC_API_KEY > /home/user/token", check=True)
    with pytest.raises(Forbidden) as refused:
        client.checkpoint(box.id, "mine")
    assert "token in /home/user/token" in refused.value.message


def test_what_cannot_be_overwritten_is_refused_even_so(client: Client, box: Sandbox) -> None:
    box.exec(["ln", "-s", KEY, "/home/user/link"], check=True)
    with pytest.raises(Forbidden) as refused:
        client.checkpoint(box.id, "mine", redact=True)
    assert "remove that" in refused.value.hint
    assert "--redact" not in refused.value.hint


def test_nothing_of_it_is_kept_and_the_sandbox_goes_on(daemon: Daemon, client: Client, box: Sandbox) -> None:
    box.files.write("/home/user/.env", KEY.encode())
    before = traces(daemon)
    with pytest.raises(Forbidden):
        client.checkpoint(box.id, "mine")
    settled(daemon, before)
    assert box.exec(["true"]).exit_code == 0
