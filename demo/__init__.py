"""The demo: an online shop whose PostgreSQL feeds a search index, a cache and a warehouse, with kill -9 in between.

It is part of the repository, not of the wheel: run `make demo`, or `cdc demo` in a clone.
"""
