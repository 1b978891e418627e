"""Takes a secret out of a stream of bytes, wherever the stream is cut (block I of the gateway's rules).

An upstream may send back what it was given: in an error message, a debug page, an echo. The secret is looked
for in the forms that it may take, and each hit is replaced by as many bytes, so that lengths stay true. Bytes
are held back only while they could be the beginning of a hit, so events pass at once.

What this cannot catch is an upstream that transforms the secret in a way of its own; see `SECURITY.md`.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping

from corral.policy.forms import distinct, forms


class Forms:
    """What is searched for in a stream: made once, since that costs more than a search.

    `labels` says for each pattern which secret it is a form of.
    """

    def __init__(self, secret: str, label: str = "") -> None:
        self._set(dict.fromkeys(forms(secret), label))

    @classmethod
    def of(cls, labels: Mapping[bytes, str]) -> "Forms":
        """These patterns, at least one."""
        made = cls.__new__(cls)
        made._set(labels)
        return made

    @classmethod
    def joined(cls, several: Iterable["Forms"]) -> "Forms":
        """Those of several, at least one."""
        return cls.of({pattern: label for one in several for pattern, label in one.labels.items()})

    def _set(self, labels: Mapping[bytes, str]) -> None:
        self.labels = labels
        self.patterns = sorted(labels, key=len, reverse=True)
        self.search = re.compile(b"|".join(re.escape(pattern) for pattern in self.patterns))
        self.longest = len(self.patterns[0])
        self._in_order = sorted(labels)
        firsts = {pattern[:1] for pattern in self.patterns}
        self._first = re.compile(b"[" + b"".join(map(re.escape, sorted(firsts))) + b"]")

    def occur_in(self, data: bytes) -> bool:
        """Whether there is a hit: one plain search per form, many times as fast as the expression of them
        all.
        """
        return any(pattern in data for pattern in self.patterns)

    def distinct(self) -> "Forms | None":
        """Those that can be no word of a text."""
        left = {pattern: label for pattern, label in self.labels.items() if distinct(pattern)}
        return Forms.of(left) if left else None

    def first_in(self, data: bytes) -> str | None:
        """The label of the first hit."""
        match = self.search.search(data) if self.occur_in(data) else None
        return self.labels[match[0]] if match is not None else None

    def plainly_in(self, text: bytes) -> str | None:
        """The label of a pattern that stands in `text` and can be no word of it."""
        return next(
            (label for pattern, label in self.labels.items() if distinct(pattern) and pattern in text),
            None,
        )

    def pending(self, tail: bytes) -> int:
        """How many bytes at the end of `tail` could be the beginning of a hit."""
        for match in self._first.finditer(tail):
            rest = tail[match.start() :]
            # What begins with `rest` and is longer comes right behind it in the order of bytes.
            at = bisect_right(self._in_order, rest)
            if at < len(self._in_order) and self._in_order[at].startswith(rest):
                return len(rest)
        return 0


class Redactor:
    """Replaces every form of a secret in a stream. `hits` counts."""

    def __init__(self, wanted: Forms, label: str = "") -> None:
        self._forms = wanted
        self._label = label
        self._held = b""
        self.hits = 0
        self.found: dict[str, int] = {}
        """Hits by the label of their secret."""

    def feed(self, data: bytes) -> bytes:
        """The bytes that can be passed on now."""
        data = self._held + data if self._held else data
        longest = self._forms.longest
        if not self._forms.occur_in(data):
            cut = len(data) - self._forms.pending(data[-longest + 1 :])
            self._held = data[cut:]
            return data[:cut]
        done = max(match.end() for match in self._forms.search.finditer(data))
        # Only behind the last hit: its own end may look like the beginning of another.
        cut = len(data) - self._forms.pending(data[max(done, len(data) - longest + 1) :])
        self._held = data[cut:]
        return self._forms.search.sub(self._replace, data[:cut])

    def finish(self) -> bytes:
        """The bytes that were held back and turned out to be nothing."""
        left, self._held = self._held, b""
        return self._forms.search.sub(self._replace, left)

    def whole(self, data: bytes) -> bytes:
        """Bytes that stand for themselves, redacted: nothing is held back."""
        return self._forms.search.sub(self._replace, data)

    def text(self, value: str) -> str:
        """A short text, such as a header field's value, redacted."""
        return self.whole(value.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def _replace(self, match: re.Match[bytes]) -> bytes:
        self.hits += 1
        name = self._label or self._forms.labels[match[0]]
        self.found[name] = self.found.get(name, 0) + 1
        return f"[redacted:{name}]".encode()[: len(match[0])].ljust(len(match[0]), b"*")
