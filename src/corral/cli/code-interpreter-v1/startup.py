"""Run in each kernel first: figures and tables are told as data too, beside their pictures."""

import contextlib

from IPython import get_ipython  # type: ignore[import-not-found]


def _figure(figure: object) -> object:
    from e2b_charts import chart_figure_to_dict  # type: ignore[import-not-found]

    with contextlib.suppress(Exception):
        return chart_figure_to_dict(figure)
    return None


def _table(frame: object) -> object:
    with contextlib.suppress(Exception):
        return frame.to_dict(orient="list")  # type: ignore[attr-defined]
    return None


def _begin() -> None:
    shell = get_ipython()
    if shell is None:
        return
    shell.run_line_magic("matplotlib", "inline")
    figures = shell.display_formatter.formatters
    for kind, module, name, work in (
        ("e2b/chart", "matplotlib.figure", "Figure", _figure),
        ("e2b/data", "pandas", "DataFrame", _table),
    ):
        from IPython.core.formatters import BaseFormatter  # type: ignore[import-not-found]
        from traitlets import ObjectName, Unicode  # type: ignore[import-not-found]

        class Formatter(BaseFormatter):  # type: ignore[misc]
            format_type = Unicode(kind)
            print_method = ObjectName(f"_repr_{kind.replace('/', '_')}_")
            _return_type = (dict, list)

        figures[kind] = Formatter(parent=shell.display_formatter)
        figures[kind].for_type_by_name(module, name, work)


_begin()
del _begin
