"""A secret's value cannot be shown by accident."""

import json
import pickle

import pytest

from corral.errors import InvalidInput
from corral.model.secrets import Secret

CANARY = "sk-canary-0123456789"


def test_no_rendering_shows_the_value() -> None:
    secret = Secret(CANARY)
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>40}",
        repr([secret]),
        repr({"k": secret}),
    ]
    assert not [text for text in shown if CANARY in text]


def test_it_cannot_be_serialised() -> None:
    with pytest.raises(TypeError):
        json.dumps(Secret(CANARY))
    with pytest.raises(TypeError):
        pickle.dumps(Secret(CANARY))


def test_surrounding_white_space_is_dropped() -> None:
    assert Secret.checked(f"  {CANARY}\n").reveal() == CANARY


@pytest.mark.parametrize(
    "value", ["", "short", "has\nnewline-inside", "nul\0inside-value", "x" * 65537, "ünïcode-secret"]
)
def test_what_no_header_could_carry_is_refused(value: str) -> None:
    """G-39, G-146: nor what is so short that ordinary text holds it."""
    with pytest.raises(InvalidInput) as caught:
        Secret.checked(value)
    assert value not in caught.value.message or not value
