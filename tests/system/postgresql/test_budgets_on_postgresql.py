"""All of budgets, on PostgreSQL: what holds under concurrency holds there too."""

from tests.unit.store.test_budgets_store import *  # noqa: F403
from tests.unit.store.test_prepared import *  # noqa: F403

# An older database was a file.
del globals()["test_what_was_spent_before_there_were_budgets_counts"]
