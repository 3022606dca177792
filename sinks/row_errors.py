"""Errors that a value causes and that no store expects: they belong to the row, and the rows beside it are applied."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from sinks.contract import Change, Outcome, Result

log = structlog.get_logger(__name__)

Apply = Callable[[Sequence[Change]], list[Result]]

# What Python and the libraries of stores raise for a value that they can't convert. The errors of connections are
# others: SinkError, OSError, and those of each client.
VALUE_ERRORS: Final = (
    TypeError,
    ValueError,  # of Unicode, too, and Arrow's
    ArithmeticError,  # overflow, and those of decimals
    LookupError,
    AttributeError,
    RecursionError,
)


def apply_each(apply: Apply, changes: Sequence[Change]) -> list[Result]:
    """Applies changes as `sinks.contract.Sink.apply` does. If that fails by one of VALUE_ERRORS, they are applied in
    halves, down to the ones that fail, which are rejected. What was applied before is applied again as a replay."""
    try:
        return apply(changes)
    except VALUE_ERRORS as error:
        log.warning("a batch is written in parts", rows=len(changes), error=_described(error))
    return _in_parts(apply, changes)


def _in_parts(apply: Apply, changes: Sequence[Change]) -> list[Result]:
    middle = len(changes) // 2
    results: list[Result] = []
    for part in filter(None, (changes[:middle], changes[middle:])):
        try:
            results += apply(part)
        except VALUE_ERRORS as error:
            if len(part) > 1:
                results += _in_parts(apply, part)
                continue
            reason = f"a value can't be converted ({_described(error)})"
            results.append(Result(Outcome.REJECTED, reason))
    return results


def _described(error: BaseException) -> str:
    """Returns the error's class and where it was raised. Its text may have a value in it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _ROOT in Path(frame.filename).parents] or frames
    place = f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
    return f"{type(error).__name__}{place}"


_ROOT: Final = Path(__file__).parents[1]
