"""All of rates, on PostgreSQL."""

from tests.unit.store.test_rates_store import *  # noqa: F403
