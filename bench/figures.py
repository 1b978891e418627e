"""What was measured: figures, rows that set them beside yardsticks, and what counts as missed. Pure values."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Figure:
    """One subject's result. Nine of ten samples are as good as `p90` or better; `best` is the best sample."""

    who: str
    unit: str
    median: float
    best: float
    p90: float
    n: int

    @classmethod
    def of(cls, who: str, unit: str, samples: Sequence[float], *, more_is_better: bool = False) -> Self:
        """From single samples. Raises ValueError if there are none."""
        if not samples:
            raise ValueError(f"{who}: no samples")
        ordered = sorted(samples, reverse=more_is_better)
        p90 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
        return cls(who, unit, statistics.median(ordered), ordered[0], p90, len(ordered))

    @classmethod
    def single(cls, who: str, unit: str, value: float, n: int = 1) -> Self:
        """From one value: a total over `n` things, or a single look."""
        return cls(who, unit, value, value, value, n)


@dataclass(frozen=True, slots=True)
class Row:
    """One claim: Corral's figure, yardsticks of the same unit, and what is asked of it.

    `budget` is the design's absolute value, shown only: machines differ. `bounds` name yardsticks and the worst ratio
    (Corral's median to the yardstick's) that is accepted. `parts` are shown below and compared with nothing. `remark` tells
    what the comparison means and where it is weak.
    """

    title: str
    ours: Figure
    yardsticks: tuple[Figure, ...] = ()
    parts: tuple[Figure, ...] = ()
    budget: float | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    more_is_better: bool = False
    remark: str = ""

    def ratio(self, yardstick: Figure) -> float | None:
        """Corral's median in relation to a yardstick's; None where that is nothing."""
        return self.ours.median / yardstick.median if yardstick.median > 0 else None

    def missed(self) -> list[str]:
        """The bounds that do not hold, as sentences; a bound without its yardstick is missed too."""
        found = {figure.who: figure for figure in self.yardsticks}
        sentences = []
        for who, bound in self.bounds.items():
            ratio = self.ratio(found[who]) if who in found else None
            if ratio is None:
                sentences.append(f"{self.title}: {who} was not measured")
            elif not self._good(ratio, bound):
                sentences.append(f"{self.title}: {ratio:.2f} x {who}, asked for {self._sign} {bound:g}")
        return sentences

    @property
    def within_budget(self) -> bool | None:
        """Whether the budget is kept; None where there is none."""
        return None if self.budget is None else self._good(self.ours.median, self.budget)

    @property
    def _sign(self) -> str:
        return "≥" if self.more_is_better else "≤"

    def _good(self, value: float, bound: float) -> bool:
        return value >= bound if self.more_is_better else value <= bound

    def verdict(self, figure: Figure) -> str:
        """The table's last cell for Corral's figure or a yardstick's."""
        if figure is self.ours:
            if self.budget is None:
                return ""
            return f"budget {self._sign} {number(self.budget)} {figure.unit}: {'met' if self.within_budget else 'missed'}"
        ratio = self.ratio(figure)
        if ratio is None or figure in self.parts:
            return ""
        text = f"{ratio:.2f} ×"
        if figure.who in self.bounds:
            bound = self.bounds[figure.who]
            text += f" (asked {self._sign} {bound:g}: {'met' if self._good(ratio, bound) else 'missed'})"
        return text

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "title": self.title,
            "ours": _figure_json(self.ours),
            "yardsticks": [
                {**_figure_json(figure), "ratio": self.ratio(figure), "bound": self.bounds.get(figure.who)}
                for figure in self.yardsticks
            ],
            "parts": [_figure_json(figure) for figure in self.parts],
            "budget": self.budget,
            "within_budget": self.within_budget,
            "missed": self.missed(),
            "remark": self.remark,
        }


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "who": figure.who,
        "unit": figure.unit,
        "median": figure.median,
        "best": figure.best,
        "p90": figure.p90,
        "n": figure.n,
    }
