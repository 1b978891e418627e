"""All of the audit log's parts, on PostgreSQL: their files lie beside the daemon, their chain in the database."""

from tests.unit.store.test_audit_parts import *  # noqa: F403
