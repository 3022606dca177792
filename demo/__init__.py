"""The demo: an online shop whose PostgreSQL feeds a search index, a cache and a warehouse, with kill -9 on the way.

A room of the repository, not of the wheel: `make demo`, or `cdc demo` in a clone.
"""
