"""Errors of derived stores and of the jobs that write to them."""

from cdc.model.errors import WatershedError


class SinkError(WatershedError):
    """A derived store or a sink's job can't continue."""


class FullError(SinkError):
    """The disk or the memory of a store is full. A sink tries again; a rebuild gives up and deletes what it has
    built."""


class RefusedError(SinkError):
    """A table or a row that a store can never hold. A retry can't help: the sink stops, nothing is skipped."""
