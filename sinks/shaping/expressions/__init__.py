"""Expressions of computed columns: read by sqlglot, checked against a table's types, and evaluated for each row as
PostgreSQL does it. What can't be computed exactly is refused when the expression is checked, not when a row comes.
"""
