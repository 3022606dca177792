"""Alembic's environment: it executes this file for each command, online on the connection that it was given."""

from alembic import context

names = context.config.attributes["names"]  # see watershed/client/outbox_migrations.py
settings = {"version_table": f"{names.table}_version", "version_table_schema": names.schema}
if context.is_offline_mode():
    context.configure(dialect_name="postgresql", **settings)
else:
    context.configure(connection=context.config.attributes["connection"], **settings)
with context.begin_transaction():
    context.run_migrations()
