"""Comparing derived stores with the source while both are written, and repairing what differs."""
