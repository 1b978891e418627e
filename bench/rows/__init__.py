"""The rows, in the order in which they are measured: what is sensitive to a used machine first."""

from collections.abc import Callable, Iterator, Mapping

from bench.figures import Row
from bench.rows import (
    churn,
    create,
    e2b,
    egress,
    execs,
    files,
    fleet,
    git,
    idle,
    life,
    llm,
    policy,
    template,
    warm,
)
from bench.stand import Stand

GROUPS: Mapping[str, Callable[[Stand], Iterator[Row]]] = {
    "idle": idle.rows,
    "create": create.rows,
    "exec": execs.rows,
    "fleet": fleet.rows,
    "warm": warm.rows,
    "life": life.rows,
    "files": files.rows,
    "llm": llm.rows,
    "egress": egress.rows,
    "git": git.rows,
    "policy": policy.rows,
    "template": template.rows,
    "e2b": e2b.rows,
    "churn": churn.rows,
}
"""Groups by name; each yields its rows as they are done."""
