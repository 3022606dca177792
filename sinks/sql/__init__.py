"""The SQL store: one table for each source table, in PostgreSQL or SQLite, written through SQLAlchemy Core."""
