"""US dollars as people write and read them."""

import pytest

from corral.errors import InvalidInput
from corral.policy.money import dollars, parse_dollars


@pytest.mark.parametrize(
    ("text", "micro"),
    [("25", 25_000_000), ("$0.50", 500_000), ("0", 0), (" 1_000 ", 10**9), ("0.0000019", 1)],
)
def test_dollars_are_read(text: str, micro: int) -> None:
    assert parse_dollars(text) == micro


@pytest.mark.parametrize("text", ["", "-1", "many", "nan", "inf", "1e12", "1,5", "--"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    """A negative cap among it."""
    with pytest.raises(InvalidInput):
        parse_dollars(text)


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "$0.00"), (25_000_000, "$25.00"), (450, "$0.000450"), (10_001, "$0.02"), (10**12, "$1,000,000.00")],
)
def test_dollars_are_shown(micro: int, text: str) -> None:
    assert dollars(micro) == text
