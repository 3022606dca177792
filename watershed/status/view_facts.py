"""A view, or an event log, as its base describes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ViewFacts:
    """The figures of one view. Rows are counted up to a limit."""

    name: str
    state: str  # never run, filling, filled, serving, rebuild, failed
    changes: int = 0  # changes of base tables that are noted and not collected
    oldest_s: float | None = None  # the age of the oldest of them
    keys: int = 0  # keys of view rows that are to be computed
    rejected: int = 0  # rows that the target does not take, or that the query can't compute
    applied_s: float | None = None  # since rows were written last
    error: str | None = None
    next: str | None = None
    failing_s: float = 0.0  # for how long the view has had an error; 0: it has none
    is_kept: bool = False  # a process has the view's lock
    behind: int | None = None  # records that an event log has not loaded; None for a view
