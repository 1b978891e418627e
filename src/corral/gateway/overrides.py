"""Bodies by which a server takes a POST for another method (G-60): web frameworks read it from a field `_method`.

A body is looked through as it passes. What is refused never ends at the server, which therefore does nothing.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from corral.errors import Forbidden

FIELD = "_method"
_FORM, _PARTS = "application/x-www-form-urlencoded", "multipart/form-data"
_JSON = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json")
_OVERLAP = 128
"""Bytes that a field's name takes at most, in any spelling."""


def _spelled(escape: str) -> str:
    """The field's name, any of its letters written with an escape."""
    return "".join(f"(?:{letter}|{escape}{ord(letter):02x})" for letter in FIELD)


_IN_FORM = re.compile(rf"[&;]\+?{_spelled('%')}(?:=|%3d)".encode(), re.I)
_IN_PARTS = re.compile(rb"name\*?=\s*(?:utf-8'[a-z-]*')?\"?" + _spelled("%").encode(), re.I)
_IN_JSON = re.compile(rf'"{_spelled(chr(92) * 2 + "u00")}"\s*:'.encode(), re.I)


@dataclass(slots=True)
class Overrides:
    """What looks for the field in one body. `found`: it was there."""

    pattern: re.Pattern[bytes]
    found: bool = False

    @classmethod
    def of(cls, method: str, content_type: str, coding: str) -> "Overrides | None":
        """For a request of this kind; None where no server looks for the field. Raises Forbidden for a form that cannot be
        read.
        """
        kind = content_type.partition(";")[0].strip().lower()
        if method != "POST":
            return None
        if kind in (_FORM, _PARTS):
            if coding not in ("", "identity"):
                raise Forbidden("a compressed form is not looked into", "send it uncompressed")
            return cls(_IN_FORM if kind == _FORM else _IN_PARTS)
        return cls(_IN_JSON) if _JSON.fullmatch(kind) else None

    async def stream(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The body as it is. Raises Forbidden before the field has passed."""
        last = b"&"
        async for chunk in body:
            seen = last + chunk
            if self.pattern.search(seen) is not None:
                self.found = True
                raise refusal()
            last = seen[-_OVERLAP:]
            yield chunk


def refusal() -> Forbidden:
    """Why such a request is not made."""
    return Forbidden("the request asks the server to take another method", "send the method itself")
