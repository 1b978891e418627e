"""No checkpoint holds a secret of its tenant's, nor a token; nor does what a build or a setup keeps."""

import base64
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Daemon
from tests.system.test_oci_images import Registry, archive
from tests.system.test_oci_images import registry as registry
from tests.traces import settled, traces

from corral import Client, Sandbox
from corral.errors import Forbidden, NotFound

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


@pytest.fixture
def vault(daemon: Daemon, client: Client) -> Iterator[Client]:
    """A client whose vault holds the key; afterwards nothing is left of what was built."""
    client.put_secret("anthropic", KEY, base_url="https://models.example")
    client.forget_steps()
    before = traces(daemon)
    yield client
    with suppress(NotFound):
        client.remove_secret("anthropic")
    for template in client.list_templates():
        if template.name == "built" or template.name.startswith("setup-"):
            client.remove_template(template.name)
    client.forget_steps()
    settled(daemon, frozenset(trace for trace in before if "secrets" not in trace))


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (f"RUN echo {KEY} > /srv/key && true\nRUN rm /srv/key", "secret anthropic in /srv/key"),
        (f"COPY <<EOF /srv/key\n{KEY}\nEOF", "secret anthropic in /srv/key"),
        (
            f"RUN echo {KEY} > /srv/key && echo x > /srv/x\nFROM base\nCOPY --from=0 /srv/x /srv/x",
            "secret anthropic in /srv/key",
        ),
        (f"ENV KEY={KEY}\nRUN true", "secret anthropic in environment variable KEY"),
        (f'CMD ["sleep", "{KEY}"]\nRUN true', "secret anthropic in service start"),
    ],
    ids=["command", "copy", "stage", "environment", "start"],
)
def test_a_build_that_would_keep_a_secret_is_refused(vault: Client, steps: str, found: str) -> None:
    for _ in range(2):  # nothing of it is found again
        with pytest.raises(Forbidden) as refused:
            vault.build_template_from("built", dockerfile=f"FROM base\n{steps}\n")
        assert found in refused.value.message
        assert KEY not in refused.value.message
        assert "--secret" in refused.value.hint
    assert "built" not in [template.name for template in vault.list_templates()]


def test_a_build_that_would_keep_its_token_is_refused(vault: Client) -> None:
    dockerfile = "FROM base\nRUN printenv ANTHROPIC_API_KEY > /srv/token\n"
    with pytest.raises(Forbidden, match="the sandbox's token in /srv/token"):
        vault.build_template_from("built", dockerfile=dockerfile, secrets=("anthropic",))


def test_a_step_from_before_a_secret_was_added_is_searched_for_it(vault: Client) -> None:
    dockerfile = f"FROM base\nRUN echo {KEY} > /srv/key\n"
    vault.remove_secret("anthropic")
    vault.build_template_from("built", dockerfile=dockerfile)
    vault.put_secret("anthropic", KEY, base_url="https://models.example")
    with pytest.raises(Forbidden, match="secret anthropic in /srv/key"):
        vault.build_template_from("built", dockerfile=dockerfile)


def test_a_setup_that_would_keep_a_secret_is_refused(vault: Client, tmp_path: Path) -> None:
    """Also one that was done before the secret was added."""
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        subprocess.run(["git", "-C", tmp_path, *identity, *command], check=True)
    setup = {"name": "demo", "steps": [{"run": f"echo {KEY} > ~/key"}]}
    given: dict[str, Any] = {"template": "base", "repo": str(tmp_path), "setup": setup}
    for _ in range(2):
        with pytest.raises(Forbidden, match="secret anthropic in /home/user/key") as refused:
            vault.create_sandbox(name="box", **given)
        assert "a setup gets no secret" in refused.value.hint
    assert vault.forget_steps() == 0
    vault.remove_secret("anthropic")
    vault.create_sandbox(name="box", **given)
    vault.remove_sandbox("box")
    vault.put_secret("anthropic", KEY, base_url="https://models.example")
    with pytest.raises(Forbidden, match="secret anthropic in /home/user/key"):
        vault.create_sandbox(name="box", **given)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("COPY <<EOF /srv/key\n%s\nEOF", "secret anthropic in /srv/key"),
        ("ENV KEY=%s\nCOPY <<EOF /srv/x\nx\nEOF", "secret anthropic in environment variable KEY"),
    ],
)
def test_an_archive_with_a_secret_is_not_imported(
    daemon: Daemon, client: Client, line: str, found: str
) -> None:
    """Not even one that Corral itself has written, before it knew the secret; once that is another, it is."""
    client.build_template_from("built", dockerfile="FROM scratch\n" + line % KEY)
    archive = b"".join(client.export_template("built"))
    client.remove_template("built")
    client.forget_steps()
    client.put_secret("anthropic", "another-key-0123456789", base_url="https://models.example")
    before = traces(daemon)
    try:
        client.put_secret("anthropic", KEY, base_url="https://models.example")
        with pytest.raises(Forbidden) as refused:
            client.import_template("built", iter([archive]))
        assert found in refused.value.message
        assert KEY not in refused.value.message
        settled(daemon, before)
        client.rotate_secret("anthropic", "another-key-0123456789")
        client.import_template("built", iter([archive]))
        client.remove_template("built")
        settled(daemon, before)
    finally:
        client.remove_secret("anthropic")


@pytest.mark.parametrize(
    ("content", "environment", "found"),
    [
        (KEY, "A=1", "secret anthropic in /srv/key"),
        ("x", f"KEY={KEY}", "secret anthropic in environment variable KEY"),
    ],
)
def test_a_pulled_image_with_a_secret_is_not_used(
    daemon: Daemon, client: Client, registry: Registry, content: str, environment: str, found: str
) -> None:
    """Neither as a template nor as what one is built from."""
    layers = [archive(("srv/key", content.encode()))]
    reference = registry.push(f"keyed-{len(content)}", layers, {"Env": [environment]})
    pulls: tuple[Callable[[], object], ...] = (
        lambda: client.build_template("image", name="pulled", image=reference),
        lambda: client.build_template_from("pulled", dockerfile=f"FROM {reference}\n"),
    )
    client.put_secret("anthropic", KEY, base_url="https://models.example")
    before = traces(daemon)
    try:
        for pull in pulls:
            with pytest.raises(Forbidden) as refused:
                pull()
            assert found in refused.value.message
            assert KEY not in refused.value.message
            settled(daemon, before)
        client.rotate_secret("anthropic", "another-key-0123456789")
        client.build_template("image", name="pulled", image=reference)
        client.remove_template("pulled")
    finally:
        client.remove_secret("anthropic")


def test_a_key_that_is_a_word_keeps_no_image_out(daemon: Daemon, client: Client) -> None:
    """Keys of models of one's own are: whole images have them somewhere."""
    client.build_template_from("built", dockerfile="FROM scratch\nCOPY <<EOF /x\nnot-needed\nEOF\n")
    archive = b"".join(client.export_template("built"))
    client.put_secret("own", "not-needed", "openai", "https://models.example")
    try:
        client.import_template("again", iter([archive]))
        client.remove_template("again")
    finally:
        client.remove_secret("own")
        client.remove_template("built")
        client.forget_steps()
