"""Public events: rows of outbox tables, and messages without a table, become records. Pure."""
