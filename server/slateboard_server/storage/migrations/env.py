"""How Alembic runs a migration here: on the connection it is given, inside the caller's transaction."""

from alembic import context

from slateboard_server.storage import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    transactional_ddl=True,
)
context.run_migrations()
