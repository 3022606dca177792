"""Existing rows, read in chunks beside the stream: what is read when, and which of it may be published. Pure."""
