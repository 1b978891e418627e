"""Money as people write and read it: US dollars in, millionths out, and back."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from corral.errors import InvalidInput

MAX_CAP = 10**15
"""A billion dollars."""


def parse_dollars(text: str, what: str = "budget") -> int:
    """US dollars as people write them, in millionths. Raises InvalidInput."""
    try:
        value = Decimal(text.strip().removeprefix("$").replace("_", ""))
    except ArithmeticError:
        value = Decimal("NaN")
    if not value.is_finite() or value < 0 or value * 1_000_000 > MAX_CAP:
        raise InvalidInput(
            f"{text[:40]!r} is no {what} in US dollars", "write for example 25 or 0.50, at most 1000000000"
        )
    return int((value * 1_000_000).to_integral_value(ROUND_FLOOR))


def dollars(micro: int) -> str:
    """Money as people read it: cents, and more places only where cents would show nothing."""
    places = Decimal("0.01") if micro == 0 or micro >= 10_000 else Decimal("0.000001")
    return f"${(Decimal(micro) / 1_000_000).quantize(places, ROUND_CEILING):,f}"


def usd_text(micro: int) -> str:
    """Money as `parse_dollars` reads it."""
    return f"{Decimal(micro) / 1_000_000:f}"
