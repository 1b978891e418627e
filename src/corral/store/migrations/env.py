"""Run by alembic: applies the migrations on the connection, and in the transaction, of
`corral.store.database`.
"""

from alembic import context

from corral.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # A database that rolls back changes of schema leaves nothing half made when the daemon is killed here.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
