"""The codec between model values and JSON."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import HostError, InternalError
from corral.store.codec import decode
from corral.wire.codec import encode

Id = NewType("Id", str)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: int
    share: float = 1.0


@dataclass(frozen=True)
class Outer:
    id: Id
    at: datetime
    colour: Colour
    inners: tuple[Inner, ...] = ()
    table: dict[str, tuple[int, ...]] = field(default_factory=dict)
    maybe: Id | None = None
    flag: bool = False


AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
WHOLE = Outer(Id("x"), AT, Colour.RED, (Inner(1, 2), Inner(3)), {"a": (1, 2)}, Id("y"), flag=True)


def plain(**changes: Any) -> dict[str, Any]:
    return {"id": "x", "at": AT.isoformat(), "colour": "red", **changes}


def test_round_trip_through_json_text() -> None:
    assert decode(Outer, json.loads(json.dumps(encode(WHOLE)))) == WHOLE


def test_missing_fields_take_their_defaults() -> None:
    assert decode(Outer, plain()) == Outer(Id("x"), AT, Colour.RED)


@given(st.text(), st.lists(st.integers()), st.floats(allow_nan=False), st.none() | st.text())
def test_round_trip_of_any_value(text: str, numbers: list[int], share: float, maybe: str | None) -> None:
    value = Outer(
        Id(text),
        AT,
        Colour.RED,
        (Inner(1, share),),
        {text: tuple(numbers)},
        None if maybe is None else Id(maybe),
    )
    assert decode(Outer, json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (plain(novelty=1), "unknown field 'novelty'"),
        ({"id": "x"}, "lacks the field"),
        (plain(id=1), "expected str, found int"),
        (plain(flag=1), "expected bool, found int"),
        (plain(inners=[{"number": True}]), "expected int, found bool"),
        (plain(inners=[{"number": 1, "share": "1"}]), "expected a number"),
        (plain(inners={}), "expected an array"),
        (plain(table=[]), "expected an object"),
        (plain(colour="blue"), "unknown Colour 'blue'"),
        (plain(colour=[]), "unknown Colour"),
        (plain(at="yesterday"), "time is malformed"),
        (plain(at=5), "time is malformed"),
        ([], "expected a Outer"),
        (None, "expected a Outer"),
    ],
)
def test_what_does_not_fit_is_refused(data: object, message: str) -> None:
    with pytest.raises(HostError, match=message):
        decode(Outer, data)


def test_values_that_json_cannot_hold_are_a_defect() -> None:
    with pytest.raises(InternalError):
        encode({"a": object()})
