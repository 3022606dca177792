"""The tables that a session captures: which ones, with which schema, what changed, and whether history is continuous.
Pure."""
