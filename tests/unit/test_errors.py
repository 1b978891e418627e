"""The error hierarchy is complete and consistent."""

import inspect

import pytest

from corral import errors
from corral.errors import CorralError, all_errors

CLASSES = sorted(all_errors().values(), key=lambda c: c.code)


def test_every_class_of_the_module_has_a_code_of_its_own() -> None:
    defined = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, CorralError)}
    assert defined == set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_class_is_complete_and_drawn_in_the_docstring(cls: type[CorralError]) -> None:
    error = cls("what happened")
    assert error.hint
    assert 400 <= cls.status < 600
    assert 1 <= cls.exit_code <= 125
    assert error.to_dict() == {"code": cls.code, "message": "what happened", "hint": error.hint}
    assert errors.__doc__ is not None
    assert cls.__name__ in errors.__doc__
