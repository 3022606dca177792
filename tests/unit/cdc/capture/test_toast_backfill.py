"""How long the stream waits for large values, and for whom it does not wait at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from cdc.capture.toast_backfill import BRIEF_PATIENCE_S, PATIENCE_S, ToastBackfill
from cdc.model.topic_record import TopicRecord
from cdc.ports.row_reader import FoundRows, RowsRequest, Unfilled, Unreadable
from cdc.ports.stream import WhileWaiting
from tests.support.holes import U, consumed, insert, published_rows, sees, update
from tests.unit.cdc.capture.loops import Clock

NOTE = TopicRecord("shop.state", b"holes/public.pages", b"{}")
Answer = Callable[[RowsRequest], FoundRows | Unreadable | None]


@dataclass
class World:
    """A clock, a reader, and who hears of what stays unfilled."""

    answer: Answer
    read_s: float = 0.001
    clock: Clock = field(default_factory=Clock)
    asked: list[RowsRequest] = field(default_factory=list)
    noted: list[Unfilled] = field(default_factory=list)
    statuses: int = 0

    def __post_init__(self) -> None:
        self.backfill = ToastBackfill(self, self.note, self.clock, self.pause)

    def read(self, wanted: RowsRequest, bytes_max: int, while_waiting: WhileWaiting) -> FoundRows | Unreadable | None:
        assert bytes_max > 0
        while_waiting()
        self.clock.now_s += self.read_s
        self.asked.append(wanted)
        return self.answer(wanted)

    def note(self, rows: Sequence[Unfilled]) -> list[TopicRecord]:
        self.noted += rows
        return [NOTE]

    def pause(self, seconds: float) -> None:
        assert 0 < seconds <= 0.05
        self.clock.now_s += seconds

    def wait(self) -> None:
        self.statuses += 1

    def fill(self, *transactions: tuple[int, list[bytes]]) -> tuple[list[TopicRecord], float]:
        """The records, and seconds that it took."""
        began = self.clock.now_s
        records = consumed(*transactions)
        return [r for piece in self.backfill.fill(records, self.wait) for r in piece], self.clock.now_s - began


def everything(wanted: RowsRequest) -> FoundRows:
    return FoundRows(sees(1_000), tuple((b"B",) * len(wanted.columns) for _ in wanted.rows))


def frozen(*xids: int) -> Answer:
    return lambda wanted: FoundRows(sees(1_000, but=xids), everything(wanted).rows)


def test_what_is_visible_is_read_once_for_all_rows() -> None:
    world = World(everything)
    records, took_s = world.fill((7, [update(n, "a", U, None) for n in range(100)]))
    assert [row and row["big"] for row in published_rows(records)] == ["B"] * 100
    assert len(world.asked) == 1
    assert took_s < 0.01
    assert not world.noted


def test_a_commit_that_becomes_visible_a_moment_later_is_waited_for() -> None:
    world = World(lambda wanted: everything(wanted) if len(world.asked) > 5 else frozen(7)(wanted))
    records, took_s = world.fill((7, [update(1, "a", U, None)]))
    assert published_rows(records)[0] == {"id": 1, "v": "a", "big": "B", "huge": None, "filled!": ["big"]}
    assert took_s < PATIENCE_S
    assert world.statuses > 5  # PostgreSQL hears from us meanwhile


def test_a_frozen_commit_is_waited_for_once_then_its_rows_go_out_and_are_noted() -> None:
    world = World(frozen(7))
    changes = [update(1, "a", U, None), insert(2, "b", "C", None)]
    records, took_s = world.fill((7, changes))
    assert published_rows(records[:2]) == [
        {"id": 1, "v": "a", "huge": None, "unchanged!": ["big"]},
        {"id": 2, "v": "b", "big": "C", "huge": None},
    ]
    assert records[2:] == [NOTE]
    assert [row.key for row in world.noted] == [("1",)]
    assert PATIENCE_S <= took_s < PATIENCE_S + 0.1
    for _ in range(20):  # the same transaction goes on, others freeze beside it
        _, took_s = world.fill((7, [update(1, "a", U, None)]), (8, [update(2, "a", U, None)]))
        assert took_s < 2 * BRIEF_PATIENCE_S + 0.01
    world.answer = everything
    world.fill((9, [update(1, "a", U, None)]))
    world.answer = frozen(10)
    _, took_s = world.fill((10, [update(1, "a", U, None)]))
    assert took_s >= PATIENCE_S, "a new freeze is worth a wait of its own"


def test_beside_a_frozen_transaction_others_are_filled() -> None:
    world = World(frozen(7))
    records, _ = world.fill((7, [update(n, "a", U, None) for n in range(600)]), (8, [update(1_000, "b", U, None)]))
    assert published_rows(records[600:601]) == [{"id": 1_000, "v": "b", "big": "B", "huge": None, "filled!": ["big"]}]
    assert len(world.noted) == 600


def test_a_reader_that_does_not_answer_is_not_waited_for_again_until_it_does() -> None:
    world = World(lambda _: None)
    _, took_s = world.fill((7, [update(1, "a", U, None)]))
    assert took_s >= PATIENCE_S
    _, took_s = world.fill((8, [update(1, "a", U, None)]))
    assert took_s < 2 * BRIEF_PATIENCE_S
    world.answer = everything
    records, _ = world.fill((9, [update(1, "a", U, None)]))
    assert "filled!" in (published_rows(records)[0] or {})


def test_a_table_that_can_not_be_read_is_not_waited_for() -> None:
    world = World(lambda _: Unreadable("it was dropped"))
    records, took_s = world.fill((7, [update(1, "a", U, None)]))
    assert published_rows(records[:1]) == [{"id": 1, "v": "a", "huge": None, "unchanged!": ["big"]}]
    assert took_s < 0.01
    assert len(world.noted) == 1


def test_large_rows_are_read_and_published_a_few_at_a_time() -> None:
    world = World(lambda wanted: FoundRows(sees(9), everything(wanted).rows[:3]))
    records = consumed((7, [update(n, "a", U, None) for n in range(100)]))
    pieces = list(world.backfill.fill(records, world.wait))
    assert max(map(len, pieces)) == 3
    assert sum(map(len, pieces)) == 100
    assert max(len(wanted.rows) for wanted in world.asked[1:]) <= 6, "what is not read is not asked for"


def test_what_is_noted_comes_last() -> None:
    """Among the records may be what was noted before, at the end of a chunk: the last one counts."""
    world = World(frozen(7))
    records = consumed((7, [update(1, "a", U, None)]), (8, [update(2, "a", U, None), insert(3, "a", "b", None)]))
    pieces = list(world.backfill.fill(records, world.wait))
    assert pieces[-1] == [NOTE]
    assert NOTE not in [record for piece in pieces[:-1] for record in piece]


@pytest.mark.parametrize("count", [1, 40])
def test_nothing_is_read_for_what_the_batch_itself_says(count: int) -> None:
    world = World(lambda _: pytest.fail("nothing is to be read"))
    records, _ = world.fill((7, [insert(1, "a", "B", None), *[update(1, f"v{n}", U, None) for n in range(count)]]))
    assert len(records) == count + 1


def test_how_far_values_were_read_is_known() -> None:
    ends = iter([0, 700, 600])
    world = World(lambda wanted: replace(everything(wanted), read_lsn=next(ends)))
    reached = []
    for xid in (7, 8, 9):
        world.fill((xid, [update(1, "a", U, None)]))
        reached.append(world.backfill.read_lsn)
    assert reached == [0, 700, 700]
