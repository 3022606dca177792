"""Snapshots: existing rows are read in chunks beside the stream, and published where no newer change was. The
world is reached through cdc.ports only.
"""
