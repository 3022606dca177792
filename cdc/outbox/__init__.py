"""Public events from private tables: rows of outbox tables, and messages without a table, to records. Pure, but for
`publish`, which applications call.
"""
