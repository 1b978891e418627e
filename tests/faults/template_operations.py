"""Operations that make, move, shorten and remove templates, and those that bring repositories in."""

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.faults.machine import TINY
from tests.faults.operations import BOX, KEPT, MADE, RUN, Operation, is_made, nothing, running
from tests.traces import wait_for

from corral import Client
from corral.errors import NotFound
from corral.sdk.contexts import Context

PLACE = Path(tempfile.gettempdir()) / f"corral-points-{os.getpid()}"
"""Where what operations read of this host is."""
CONTEXT, ARCHIVE, REPO, IMAGE = PLACE / "context", PLACE / "made.tar", PLACE / "repo", PLACE / "image"
OTHER = "cut-other"
STAGES = f"""\
FROM {TINY} AS first
COPY one /one
RUN cat /one /one > /two
FROM {TINY}
COPY --from=first /two /made
ADD more.tar /more/
COPY --chown=1000 folder /home/user/folder
WORKDIR /home/user/folder
RUN cat one >> /made
"""
BUILT = "oneoneone"
SETUP = {
    "name": "cut",
    "steps": [
        {"run": "mkdir ignored; cat one > ignored/one", "files": ["one"]},
        {"run": "cat ignored/one one > ignored/two"},
    ],
}


def furnish() -> None:
    """Make what the operations read; `IMAGE` holds the name of an image, where there is a registry."""
    (CONTEXT / "folder").mkdir(parents=True)
    for folder in (CONTEXT, CONTEXT / "folder"):
        (folder / "one").write_text("one")
    with tarfile.open(CONTEXT / "more.tar", "w") as archive:
        entry = tarfile.TarInfo("more")
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"more"))
    REPO.mkdir()
    (REPO / "one").write_text("one")
    (REPO / ".gitignore").write_text("ignored\n")
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    for command in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "one")):
        subprocess.run(["git", "-C", REPO, *identity, *command], check=True)


def build(client: Client, text: str) -> None:
    client.build_template_from(MADE, dockerfile=f"FROM {TINY}\nCOPY <<EOF /made\n{text}\nEOF\n")


def _replaceable(client: Client) -> None:
    build(client, "former")
    running(client, template=MADE)


def _exported(client: Client) -> None:
    build(client, "new")
    ARCHIVE.write_bytes(b"".join(client.export_template(MADE)))
    client.remove_template(MADE)
    client.forget_steps()
    _replaceable(client)


def _made(client: Client, path: str = "/made") -> str | None:
    """What a file holds in a sandbox of the template that is made; None: there is none."""
    if not is_made(client):
        return None
    box = client.create_sandbox(MADE)
    try:
        return client.read_file(box.id, path).strip()
    finally:
        client.remove_sandbox(box.id)


def _import(client: Client) -> None:
    with ARCHIVE.open("rb") as file:
        client.import_template(MADE, iter(lambda: file.read(1 << 16), b""))


def _checkpointed(client: Client) -> None:
    running(client)
    client.checkpoint(BOX, MADE)
    client.write_file(BOX, "/home/user/made", "new")


def _made_anew(client: Client) -> bool:
    box = client.create_sandbox(MADE)
    try:
        client.stat_file(box.id, "/home/user/made")
    except NotFound:
        return False
    return True


def checkpoints(client: Client) -> list[str]:
    return sorted(item.name for item in client.list_templates() if item.name.startswith("cut-"))


def two_checkpoints(client: Client) -> None:
    running(client)
    client.checkpoint(BOX, OTHER)
    client.write_file(BOX, KEPT, "kept")
    client.checkpoint(BOX, MADE)


def _on_a_chain(client: Client) -> None:
    below = TINY
    for name in ("cut-1", "cut-2"):
        client.create_sandbox(below, name=name)
        client.write_file(name, f"/{name}", name)
        client.checkpoint(name, name)
        client.remove_sandbox(name)
        below = name
    running(client, template=below)
    client.write_file(BOX, "/made", "kept")


def _flatten(client: Client) -> None:
    made = client.checkpoint(BOX, MADE)
    wait_for(lambda: client.get_template(MADE).id != made.id, "its layers were not made fewer")


def repo_of(client: Client) -> str | None:
    try:
        where = client.get_sandbox(BOX).workdir
    except NotFound:
        return None
    told = "git status --porcelain; git log --format=%s; cat one; cat ignored/two 2>/dev/null"
    return client.exec_command(BOX, told, cwd=where).stdout


def _with_setup(client: Client) -> None:
    client.create_sandbox(name=BOX, repo=str(REPO), branch="auto", setup=SETUP)


TEMPLATE_OPERATIONS = {
    "build": Operation(
        nothing,
        (lambda c: c.build_template_from(MADE, dockerfile="FROM base\nRUN echo x > /x\nENV A=1\n"),),
        look=is_made,
        seen=(False, True),
    ),
    "build in stages from a context": Operation(
        nothing,
        (lambda c: c.build_template_from(MADE, dockerfile=STAGES, context=Context(CONTEXT).archive),),
        look=_made,
        seen=(None, BUILT),
    ),
    "build in the place of another": Operation(
        _replaceable, (lambda c: build(c, "new"),), RUN, RUN, _made, ("former", "new")
    ),
    "export": Operation(
        _replaceable, (lambda c: b"".join(c.export_template(MADE)),), RUN, RUN, _made, ("former", "former")
    ),
    "import in the place of another": Operation(_exported, (_import,), RUN, RUN, _made, ("former", "new")),
    "pull an image": Operation(
        nothing,
        (lambda c: c.build_template("image", name=MADE, image=IMAGE.read_text()),),
        look=_made,
        seen=(None, "image"),
    ),
    "checkpoint in the place of another": Operation(
        _checkpointed, (lambda c: c.checkpoint(BOX, MADE),), RUN, RUN, _made_anew, (False, True)
    ),
    "prune": Operation(
        two_checkpoints, (lambda c: c.prune(keep=1),), RUN, RUN, checkpoints, ([MADE, OTHER], [MADE])
    ),
    "make layers fewer": Operation(_on_a_chain, (_flatten,), RUN, RUN, _made, (None, "kept")),
    "create with a repository": Operation(
        nothing,
        (lambda c: c.create_sandbox(name=BOX, repo=str(REPO), branch="auto"),),
        None,
        RUN,
        repo_of,
        (None, "one\none"),
    ),
    "create with a setup": Operation(nothing, (_with_setup,), None, RUN, repo_of, (None, "one\noneoneone")),
}
