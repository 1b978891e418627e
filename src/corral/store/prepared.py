"""Statements that model calls wait for: compiled once for each kind of database, then run by its driver directly.

SQLAlchemy takes 25 to 50 µs of processor time for each statement each time, SQLite itself 2. Statements are still written,
compiled and typed by SQLAlchemy, and fail with its errors; only its way through an execution is left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Delete, Dialect, Insert, Select, Update
from sqlalchemy import exc as sql_errors
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeEngine

Process = Callable[[Any], Any]
Values = Mapping[str, Any]
_Shape = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Form:
    """A statement for a kind of database, and for lists of some lengths: what its parameters and columns are called, and
    what makes those storable and readable that are not as they come, by their place.
    """

    text: str
    names: tuple[str, ...]
    storing: tuple[tuple[int, Process], ...]
    positional: bool
    columns: tuple[str, ...]
    reading: tuple[tuple[int, Process], ...]

    def given(self, values: Values) -> Any:
        """Values as the driver takes them."""
        found = [values[name] for name in self.names]
        for at, process in self.storing:
            found[at] = process(found[at])
        return found if self.positional else dict(zip(self.names, found, strict=True))

    def row(self, found: Sequence[Any]) -> dict[str, Any]:
        """A row by the columns' names."""
        if self.reading:
            found = list(found)
            for at, process in self.reading:
                found[at] = process(found[at])
        return dict(zip(self.columns, found, strict=True))


class Prepared:
    """A statement. `columns` are those that an insert sets; other statements name their parameters themselves. A parameter
    that is `expanding` takes a list.
    """

    def __init__(
        self, statement: "Select[Any] | Insert | Update | Delete", columns: Sequence[str] = ()
    ) -> None:
        self._statement = statement.inline() if isinstance(statement, Insert) else statement
        self._columns = columns
        self._lists = [
            bind.key
            for bind in visitors.iterate(statement)
            if isinstance(bind, BindParameter) and bind.expanding
        ]
        self._forms: dict[_Shape, _Form] = {}

    def all(self, db: Connection, values: Values) -> list[dict[str, Any]]:
        """The rows of a query."""
        form = self._form(db.dialect, values)
        with _errors(db, form.text):
            cursor = db.connection.cursor()
            cursor.execute(form.text, form.given(self._flat(values)))
            return [form.row(found) for found in cursor.fetchall()]

    def each(self, db: Connection, rows: Sequence[Values]) -> None:
        """Run it for each of some values, if there are any."""
        if not rows:
            return
        form = self._form(db.dialect, rows[0])
        with _errors(db, form.text):
            db.connection.cursor().executemany(form.text, [form.given(row) for row in rows])

    def _flat(self, values: Values) -> Values:
        """Each of a list's items as a parameter of its own, called as the text calls it."""
        items = {f"{key}_{number}": item for key in self._lists for number, item in enumerate(values[key], 1)}
        return {**values, **items}

    def _form(self, dialect: Dialect, values: Values) -> _Form:
        shape = (dialect.name, tuple([len(values[key]) for key in self._lists]))
        form = self._forms.get(shape)
        if form is None:
            form = self._forms[shape] = self._compiled(dialect, values)
        return form

    def _compiled(self, dialect: Dialect, values: Values) -> _Form:
        lists = self._lists
        statement: Any = self._statement.params(**values) if lists else self._statement
        compiled = statement.compile(
            dialect=dialect,
            column_keys=list(self._columns) or None,
            compile_kwargs={"render_postcompile": True} if lists else {},
        )
        types: dict[str, TypeEngine[Any]] = {}
        for key, bind in compiled.binds.items():
            many = len(values[key]) if key in lists else 0
            types |= dict.fromkeys([f"{key}_{number + 1}" for number in range(many)] or [key], bind.type)
        named = [name for name in types if f"%({name})s" in compiled.string]
        names = tuple(compiled.positiontup if compiled.positional else named)
        columns = statement.selected_columns if isinstance(statement, Select) else ()
        return _Form(
            compiled.string,
            names,
            _those([_impl(types[name], dialect).bind_processor(dialect) for name in names]),
            compiled.positional,
            tuple(str(column.key) for column in columns),
            _those([_impl(column.type, dialect).result_processor(dialect, None) for column in columns]),
        )


def _impl(type: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    return type.dialect_impl(dialect)


def _those(processes: Sequence[Process | None]) -> tuple[tuple[int, Process], ...]:
    """The processes that there are, with their places."""
    return tuple((at, process) for at, process in enumerate(processes) if process is not None)


@contextmanager
def _errors(db: Connection, text: str) -> Iterator[None]:
    """The driver's errors as SQLAlchemy's, without values."""
    driver = db.dialect.loaded_dbapi.Error
    try:
        yield
    except driver as error:
        raise sql_errors.DBAPIError.instance(
            text, None, error, driver, hide_parameters=True, dialect=db.dialect
        ) from error
