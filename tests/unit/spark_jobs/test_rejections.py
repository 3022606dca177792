"""Which letters the results of a piece open and close."""

from typing import Any

import pytest

from cdc.config.stores import CacheConfig
from sinks.contract import Change, Outcome, Result
from sinks.errors import RefusedError
from spark_jobs.rejections import ROW_BYTES_MAX, Accepted, Rejections
from tests.conformance.tables import CUSTOMERS
from tests.unit.spark_jobs.records import piece, upsert

WRITTEN, STALE = Result(Outcome.WRITTEN), Result(Outcome.STALE)
REJECTED = Result(Outcome.REJECTED, "column name: too odd")
LETTER = "3/public.customers/1"


def rejections(open_dead_letters: dict[str, int] | None = None, **options: Any) -> Rejections:
    section = CacheConfig.model_validate({"url": "redis://c", **options})
    return Rejections(section, 3, open_dead_letters or {}, lambda: 77)


def settle(made: Rejections, change: Change, result: Result) -> Any:
    read = piece(upsert(12, 1, 1))
    return made.settle([change], [result], [change], read.records, read)


def test_a_letter_says_what_is_needed_to_find_the_row() -> None:
    dead_letter = settle(rejections(), CUSTOMERS.upsert(5, id=1, name="x"), REJECTED)[LETTER]
    assert (dead_letter.reason, dead_letter.version, dead_letter.rejected_us) == ("column name: too odd", 5, 77)
    assert (dead_letter.topic, dead_letter.partition, dead_letter.offset) == ("shop.public.a", 0, 12)
    assert dead_letter.row is None


def test_a_letter_has_the_row_where_that_is_chosen_and_it_is_not_too_large() -> None:
    made = rejections(dead_letter_rows=True)
    change = CUSTOMERS.upsert(5, id=1, name="x")
    assert settle(made, change, REJECTED)[LETTER].row == change.row
    assert settle(made, CUSTOMERS.upsert(5, id=1, name="x" * ROW_BYTES_MAX), REJECTED)[LETTER].row is None


@pytest.mark.parametrize(
    ("change", "result", "is_closed"),
    [
        (CUSTOMERS.upsert(6, id=1), WRITTEN, True),
        (CUSTOMERS.upsert(5, id=1), WRITTEN, True),  # the mapping was corrected, and the same record is read again
        (CUSTOMERS.upsert(6, id=1), STALE, True),
        (
            CUSTOMERS.upsert(5, id=1),
            STALE,
            False,
        ),  # a sweep of this floor deleted the former row (simulation, seed 32108)
        (CUSTOMERS.delete(6, id=1), WRITTEN, True),
        (CUSTOMERS.upsert(4, id=1), STALE, False),
        (CUSTOMERS.update(6, ["photo"], id=1), STALE, False),
        (CUSTOMERS.update(6, ["photo"], id=1), WRITTEN, False),
        (CUSTOMERS.upsert(6, id=2), WRITTEN, False),
    ],
)
def test_a_letter_is_closed_by_a_whole_row_of_its_version_or_later(
    change: Change, result: Result, is_closed: bool
) -> None:
    made = rejections({LETTER: 5})
    taken = Accepted(change.version if result is WRITTEN else change.version - 1)
    assert settle(made, change, result) == ({LETTER: taken} if is_closed else {})
    assert settle(made, change, result) == {}, "said once"


def test_a_sink_that_is_to_stop_says_which_row() -> None:
    with pytest.raises(
        RefusedError, match=r"a row of public\.customers can't be stored: column name: too odd"
    ) as caught:
        settle(rejections(on_rejected="stop"), CUSTOMERS.upsert(5, id=1), REJECTED)
    assert "dead_letter" in caught.value.hint


def test_a_row_that_is_read_again_does_not_take_the_place_of_a_later_letter() -> None:
    """Seen in simulation (seed 32108): a topic lost its last records and was read again; the letter got the version of
    an older record, and the sweep that was due closed it, although the row was still missing."""
    made = rejections({LETTER: 5})
    assert settle(made, CUSTOMERS.upsert(4, id=1), REJECTED) == {}
    assert settle(made, CUSTOMERS.upsert(5, id=1), REJECTED)[LETTER].version == 5
    assert settle(made, CUSTOMERS.upsert(6, id=1), REJECTED)[LETTER].version == 6
