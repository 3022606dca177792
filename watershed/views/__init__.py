"""Derived views: rows computed by one SQL query over captured tables, kept equal to it change by change.

In the order of a view's life: parsing, refusals, branches, links and tracing read its query; definition makes
statements of it; triggers and base note changes and find keys; maintainer computes their rows; target, topic and
targets take them.
"""
