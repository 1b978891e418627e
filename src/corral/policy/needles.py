"""Looking for byte strings in any amount of bytes, in time linear in them, however many strings there are."""

from collections.abc import Iterator, Mapping

from corral.policy.forms import distinct, forms


class Needles:
    """Finds any of the byte strings of `labels`, which says for each what it is; at least one."""

    def __init__(self, labels: Mapping[bytes, str]) -> None:
        import re2  # type: ignore[import-untyped]  # 2 MiB that a daemon without secrets never needs

        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.longest_match = True
        options.max_mem = 256 << 20
        self.labels = labels
        self.longest = max(map(len, labels))
        self._pattern = re2.compile(b"|".join(map(re2.escape, sorted(labels))), options)

    @classmethod
    def of_secrets(cls, values: Mapping[str, str]) -> "Needles | None":
        """Those of these secrets' forms, by their names, that can be no words; None if there are none."""
        labels = {form: name for name, value in values.items() for form in forms(value) if distinct(form)}
        return cls(labels) if labels else None

    def hits(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        """Where one is, and which."""
        return ((match.start(), match.group()) for match in self._pattern.finditer(text))

    def first(self, text: bytes) -> str | None:
        """What the first one in a text is."""
        found = self._pattern.search(text)
        return self.labels[found.group()] if found is not None else None
