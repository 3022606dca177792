"""Large values (TOAST) that an update left unchanged and PostgreSQL therefore did not log: filled in before a record is
produced.
"""
