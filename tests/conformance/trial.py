"""A sink beside the model: whatever is applied goes to both, and each outcome is checked at once."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from cdc.model.events import TableId
from sinks.contract import Change, Outcome, Sink
from sinks.reduction import reduce_changes
from tests.conformance.model import Model, assert_rows
from tests.conformance.tables import CUSTOMERS, LABELS, ORDER_LINES, PAIRS, Table, draw_row

if TYPE_CHECKING:
    from tests.conformance.stores import Store  # brings every client library

TABLES = {table.id: table for table in (CUSTOMERS, ORDER_LINES, LABELS, PAIRS)}


class Trial:
    """The sink under test. Tables are prepared when a change of theirs is first applied."""

    def __init__(self, store: "Store") -> None:
        self.store = store
        self.model = Model()
        self._opened: list[Sink] = []
        self._prepared: set[tuple[int, TableId]] = set()  # by identity of the sink, which the trial keeps
        self.sink = self.another()
        self.fresh_generation = self.sink.generation()
        self.sink.begin_generation(1)

    def another(self) -> Sink:
        """A second Sink object on the same store: a restarted job, or a zombie. Closed with the trial."""
        sink = self.store.open()
        self._opened.append(sink)
        return sink

    def prepare(self, table: Table, sink: Sink | None = None) -> None:
        sink = sink or self.sink
        if (id(sink), table.id) not in self._prepared:
            sink.prepare(table.schema)
            self._prepared.add((id(sink), table.id))

    def apply(self, *changes: Change, sink: Sink | None = None) -> list[Outcome]:
        """Reduce and apply as one batch; the outcomes, which are the model's."""
        sink = sink or self.sink
        batch = reduce_changes(changes)
        for table in {change.table for change in batch}:
            self.prepare(TABLES[table], sink)
        results = sink.apply(batch)
        expected = [self.model.apply(change) for change in batch]
        if self.store.tells_stale:
            assert [result.outcome for result in results] == expected
        else:
            assert {result.outcome for result in results} <= {Outcome.WRITTEN, Outcome.STALE}
        return expected

    def sweep(self, table: Table, floor: int, sink: Sink | None = None) -> int:
        """Rows swept, as many as the model's."""
        sink = sink or self.sink
        self.prepare(table, sink)
        count = sink.sweep(table.id, floor)
        assert count == self.model.sweep(table.id, floor)
        return count

    def check(self, sink: Sink | None = None) -> None:
        """Every table that was used holds the model's rows, for a reader who comes after each writer's
        make_readable."""
        sink = sink or self.sink
        for writer in self._opened:
            writer.make_readable({table for prepared_by, table in self._prepared if prepared_by == id(writer)})
        for table_id in self.model.held:
            table = TABLES[table_id]
            self.prepare(table, sink)
            assert_rows(table, list(sink.rows(table_id)), self.model, self.store.exact_json)

    def close(self) -> None:
        for sink in self._opened:
            sink.close()


class History:
    """Random lives of a few keys of several tables, as records in order of version."""

    def __init__(self, random: Random, tables: Sequence[Table], first_id: int, first_version: int) -> None:
        self._random = random
        self._version = first_version
        self._keys = [(table, key) for table in tables for key in _keys(table, first_id)]

    def changes(self, count: int) -> list[Change]:
        """A delete is followed by its tombstone; now and then the epoch rises, or a key is deleted unseen."""
        changes: list[Change] = []
        for _ in range(count):
            table, key = self._random.choice(self._keys)
            if self._random.random() < 0.03:
                self._version = ((self._version >> 48) + 1) << 48
            self._version += 1
            if self._random.random() < 0.3:
                changes += [table.delete(self._version, **key), table.tombstone(self._version, **key)]
            else:
                changes.append(table.upsert(self._version, **draw_row(self._random, table, key)))
        return changes

    @property
    def version(self) -> int:
        return self._version


def delivered(random: Random, changes: Sequence[Change]) -> list[list[Change]]:
    """The changes as a bad day delivers them: shuffled, some twice or three times, some parts of a delete lost to
    compaction, in batches of any size. The last change of each key always comes at least once."""
    newest = {id(change) for change in reduce_changes(changes)}
    sent = [
        change
        for change in changes
        for _ in range(random.choice((1, 1, 1, 2, 3)) if id(change) in newest else random.choice((0, 1, 1, 2)))
    ]
    random.shuffle(sent)
    batches: list[list[Change]] = []
    while sent:
        size = random.choice((1, 2, 5, 20, 100))
        batches.append(sent[:size])
        del sent[:size]
    # A replay: some batches come again, as they were or split.
    for batch in random.sample(batches, len(batches) // 4):
        middle = random.randrange(len(batch) + 1)
        batches += [part for part in (batch[:middle], batch[middle:]) if part]
    return batches


def _keys(table: Table, first_id: int) -> list[dict[str, object]]:
    match table.id.name:
        case "customers":
            return [{"id": first_id + number} for number in range(6)]
        case "order_lines":
            return [{"order_id": first_id + number // 3, "line_no": number % 3} for number in range(6)]
        case "labels":
            return [{"name": f"{first_id} {end}"} for end in ("a", "a:*", "/ü", "'\"\n")]
        case name:
            raise AssertionError(f"no keys for {name}")
