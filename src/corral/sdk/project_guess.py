"""Writing a repository's first `corral.toml`."""

from pathlib import Path

from corral.errors import Conflict, InvalidInput, NotFound
from corral.model.project import FILE, parse_project
from corral.policy.suggestion import MAX_TEXT, SEEN, suggest
from corral.sdk.projects import project_name


def write_project(repo: Path | str, *, dry: bool = False, force: bool = False) -> tuple[str, Path]:
    """The text of a file for the repository at `repo`, and where it is, or with `dry` would be, written.

    Raises NotFound for no directory, Conflict where a file is there and `force` does not replace it.
    """
    top = Path(repo).expanduser().resolve()
    if not top.is_dir():
        raise NotFound(f"{repo} is no directory", "give the path of a repository")
    place = top / FILE
    if place.exists() and not (dry or force):
        raise Conflict(f"{place} is there already", "change it, or replace it with --force")
    text = suggest({name: _text(top / name) for name in SEEN if (top / name).is_file()})
    parse_project(text, project_name(top))  # what is written can be read
    if not dry:
        try:
            place.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidInput(
                f"{place} cannot be written: {error.strerror}", "see the directory's mode"
            ) from None
    return text, place


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
