"""Templates: the base, a build whose steps are known, a repository's setup."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.clock import repeat
from bench.figures import Figure, Row
from bench.stand import Stand
from corral import Sandbox

_STEPS = "".join(f"RUN echo {number} > /step-{number}\n" for number in range(10))
_FILES = 5000


def rows(stand: Stand) -> Iterator[Row]:
    """The base, where this bench has made it, and finding it made already; builds; setups."""
    again = Figure.of(
        "build when it is there", "ms", repeat(stand.n(10, 5), lambda: stand.client.build_template("base"))
    )
    yield Row("base template, built before", again)
    if stand.build_seconds is not None:
        yield Row(
            "base template, from nothing",
            Figure.single("corral template build base", "s", stand.build_seconds),
            remark=(
                "measured once, when the bench's data directory was made, with the downloads. It has no yardstick."
            ),
        )
    yield _build(stand)
    yield _setup(stand)


def _build(stand: Stand) -> Row:
    def build(*, fresh: bool) -> None:
        stand.client.build_template_from("bench-steps", dockerfile=f"FROM base\n{_STEPS}", fresh=fresh)

    try:
        new = Figure.of("all new", "ms", repeat(stand.n(5, 2), lambda: build(fresh=True)))
        known = Figure.of("corral template build", "ms", repeat(stand.n(10, 5), lambda: build(fresh=False)))
    finally:
        stand.client.remove_template("bench-steps")
    return Row(
        "template of ten steps, all known",
        known,
        parts=(new,),
        remark="each new step is a sandbox that is made, run, stopped, kept as a layer and removed.",
    )


def _setup(stand: Stand) -> Row:
    with tempfile.TemporaryDirectory(prefix="corral-bench-repo-") as folder:
        _repository(Path(folder))
        step = {"run": f"mkdir deps; for n in $(seq {_FILES}); do echo $n > deps/$n; done", "files": ["lock"]}
        setup = {"name": "bench", "steps": [step]}

        def create(setup: Mapping[str, object] | None) -> None:
            Sandbox.create("base", client=stand.client, repo=folder, setup=setup).kill()

        create(setup)
        kept = Figure.of("corral create --repo", "ms", repeat(stand.n(20, 5), lambda: create(setup)))
        plain = Figure.of("without a setup", "ms", repeat(stand.n(20, 5), lambda: create(None)))
    for template in stand.client.list_templates():
        if template.source.startswith("setup:"):
            stand.client.remove_template(template.name)
    stand.client.forget_steps()
    return Row(
        "create with a repository whose setup is kept",
        kept,
        (plain,),
        bounds={"without a setup": 1.5},
        remark=f"the sandbox is removed too. The setup holds {_FILES} ignored files, which move into the new clone.",
    )


def _repository(path: Path) -> None:
    (path / "lock").write_text("one\n")
    (path / ".gitignore").write_text("deps\n")
    identity = ("-c", "user.name=Bench", "-c", "user.email=bench@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "bench")):
        subprocess.run(["git", "-C", str(path), *identity, *words], check=True, capture_output=True)
