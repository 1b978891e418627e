"""The benchmarks' arithmetic and table; what they measure is no test's business."""

import pytest
from bench.figures import Figure, Row, number
from bench.report import BEGIN, END, replace_section, section, table


def test_figure_of_times_takes_the_smallest_as_best() -> None:
    figure = Figure.of("a", "ms", [float(n) for n in range(10, 0, -1)])
    assert (figure.best, figure.median, figure.p90, figure.n) == (1.0, 5.5, 10.0, 10)


def test_figure_of_rates_takes_the_largest_as_best() -> None:
    figure = Figure.of("a", "MB/s", [float(n) for n in range(1, 11)], more_is_better=True)
    assert (figure.best, figure.p90) == (10.0, 1.0)


def test_figure_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Figure.of("a", "ms", [])


@pytest.mark.parametrize(
    ("ours", "bound", "more_is_better", "missed"),
    [(1.5, 1.5, False, 0), (1.6, 1.5, False, 1), (0.9, 0.9, True, 0), (0.8, 0.9, True, 1)],
)
def test_ratio_to_a_yardstick(ours: float, bound: float, more_is_better: bool, missed: int) -> None:
    row = Row(
        "row",
        Figure.single("corral", "s", ours),
        (Figure.single("other", "s", 1.0),),
        bounds={"other": bound},
        more_is_better=more_is_better,
    )
    assert len(row.missed()) == missed
    assert ("missed" in table([row])) == bool(missed)


@pytest.mark.parametrize("yardsticks", [(), (Figure.single("other", "s", 0.0),)])
def test_bound_without_a_yardstick_is_missed(yardsticks: tuple[Figure, ...]) -> None:
    row = Row("row", Figure.single("corral", "s", 1.0), yardsticks, bounds={"other": 1.0})
    assert row.missed() == ["row: other was not measured"]


def test_missed_budget_is_shown_and_is_no_missed_ratio() -> None:
    row = Row("row", Figure.single("corral", "ms", 61.0), budget=60)
    assert row.within_budget is False
    assert row.missed() == []
    assert "budget ≤ 60 ms: missed" in table([row])
    assert row.as_json()["within_budget"] is False


def test_parts_are_shown_and_compared_with_nothing() -> None:
    row = Row("row", Figure.single("all", "MiB", 3.0), parts=(Figure.single("some", "MiB", 1.0),))
    assert "some" in table([row])
    assert "×" not in table([row])


def test_table_lines_have_one_width() -> None:
    rows = [Row("a row", Figure.single("x", "ms", 1.0), (Figure.single("longer name", "ms", 1234.5),))]
    lines = table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.1234, "0.123"), (12.345, "12.3"), (123.4, "123"), (12345.6, "12,346")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_section_is_replaced_between_its_markers_only() -> None:
    text = section([Row("row", Figure.single("x", "ms", 1.0), remark="why")], {"kernel": "6"})
    once = replace_section(f"before\n{BEGIN}\nold\n{END}\nafter\n", text)
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert "- **row**: why" in once
    assert replace_section(once, text) == once


@pytest.mark.parametrize("document", ["", BEGIN, f"{END} {BEGIN}", f"{BEGIN}{END}{END}"])
def test_document_without_markers_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match=r"markers|must hold"):
        replace_section(document, "text")
