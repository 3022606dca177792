"""The demo: an online shop whose PostgreSQL feeds a search index, a cache and a warehouse, with kill -9 in between.

`cdc demo` runs it, also from the wheel; in a clone, `make demo` prepares what it needs first.
"""
