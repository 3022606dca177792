"""Derived views: rows computed by one SQL query over captured tables, kept equal to it change by change."""
