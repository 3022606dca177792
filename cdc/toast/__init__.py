"""Unchanged TOAST values: large values that an update did not change, and that PostgreSQL therefore did not log. They
are filled in before a record is produced.
"""
