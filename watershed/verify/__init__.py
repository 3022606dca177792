"""Comparison of derived stores with the source while both are written, and repair of differences."""
