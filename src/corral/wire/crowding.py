"""How much a JSON text becomes in memory, told before it is parsed.

A list or an object takes some seventy bytes where its text takes two, a number or a short text up to fifty where its takes
two; and Python's parser lets nobody else run while it makes them. A long text has few of them: what a model reads is
words, and pictures in base64.
"""

MOST_CONTAINERS = 500_000
"""Objects and lists, those that only seem so in a text counted in."""
MOST_ITEMS = 2_000_000
"""Commas, likewise; the items of a context full of numbers are fewer."""


def crowded(
    text: str | bytes | bytearray, containers: int = MOST_CONTAINERS, items: int = MOST_ITEMS
) -> bool:
    """Whether a JSON text holds too many values to be parsed, by the signs that values cannot do without."""
    if isinstance(text, str):
        return text.count("{") + text.count("[") > containers or text.count(",") > items
    return text.count(b"{") + text.count(b"[") > containers or text.count(b",") > items
