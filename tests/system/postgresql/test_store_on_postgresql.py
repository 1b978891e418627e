"""The whole suite of the store, on PostgreSQL; without what is about SQLite's file."""

from tests.unit.store.test_sql_store import *  # noqa: F403

for _name in (
    "test_no_secret_reaches_a_file_or_a_log",
    "test_files_are_private",
    "test_a_corrupt_file_is_reported",
    "test_a_symlink_in_place_of_the_database_is_refused",
    "test_other_databases_are_refused",
    "test_a_malformed_url_is_refused",
):
    del globals()[_name]
