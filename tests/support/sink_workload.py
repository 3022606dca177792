"""A steady stream of transactions for sinks, and the rows that a store must show after them."""

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from sinks.contract import StoredRow
from tests.support.feed import Feed
from tests.support.waiting import eventually

COLUMNS: Final = {"id": (20, "bigint"), "name": (25, "text"), "note": (25, "text"), "amount": (23, "integer")}
TEXT: Final = (25, "text")
KEYS: Final = 400  # of each table; more in large transactions
LARGE_ROWS: Final = 2_000
TABLES_MAX: Final = 6
PAUSE_S_MAX: Final = 0.2
PROGRESS_SHARE: Final = 0.6  # of the transactions are followed by a progress record
ENDED_S_MAX: Final = 90.0
COMPLAINTS_MAX: Final = 5


class State(NamedTuple):
    """A key's state after one of its changes."""

    version: int
    lsn: int  # of the transaction's end
    row: Mapping[str, Any] | None  # None: deleted


class History:
    """All states of all keys of one table, in order."""

    def __init__(self) -> None:
        self.states: dict[int, list[State]] = {}

    def live(self) -> dict[int, State]:
        last = {key: states[-1] for key, states in self.states.items()}
        return {key: state for key, state in last.items() if state.row is not None}

    def complaints(self, shown: Collection[StoredRow], lsn: int) -> Iterator[str]:
        """Whatever contradicts that the store has applied everything up to `lsn`, and perhaps more."""
        versions: dict[int, int] = {}
        for row in shown:
            key = row.key["id"]
            if key in versions:
                yield f"key {key} is shown twice"
            versions[key] = row.version
            if not any(state.version == row.version and state.row for state in self.states.get(key, ())):
                yield f"key {key} is shown with version {row.version}, which no change has"
        for key, states in self.states.items():
            due = max((state.version for state in states if state.lsn <= lsn), default=None)
            if due is None:
                continue
            if key in versions:
                if versions[key] < due:
                    yield f"key {key} is shown with version {versions[key]}; LSN {lsn} brought version {due}"
            elif all(state.row for state in states if state.version >= due):
                yield f"key {key} is not shown; LSN {lsn} brought version {due}, and nothing has deleted it since"

    def differences(self, shown: Collection[StoredRow]) -> Iterator[str]:
        """Each row and version that is not the last state."""
        found = {row.key["id"]: row for row in shown}
        if len(found) != len(shown):
            yield "a key is shown twice"
        live = self.live()
        for key in sorted(found.keys() - live.keys()):
            yield f"key {key} is shown with version {found[key].version}; it is deleted"
        for key in sorted(live.keys() - found.keys()):
            yield f"key {key} is not shown; it has version {live[key].version}"
        for key in sorted(live.keys() & found.keys()):
            state, row = live[key], found[key]
            if (state.version, _filled(state.row or {})) != (row.version, _filled(row.row)):
                yield f"key {key} is shown as {row.version} {row.row}; it is {state.version} {state.row}"


def _filled(row: Mapping[str, Any]) -> dict[str, Any]:
    """A column that was added later is absent from the documents of earlier rows: that is NULL."""
    return {name: value for name, value in row.items() if value is not None}


class SinkWorkload:
    """Publishes transactions in a thread from entering to leaving. The same seed publishes the same transactions."""

    def __init__(self, feed: Feed, seed: int) -> None:
        self.feed = feed
        self.committed = 0
        self.histories: dict[str, History] = {}
        self.failure: Exception | None = None
        self._chance = random.Random(seed)
        self._columns: dict[str, dict[str, tuple[int, str]]] = {}
        self._pending: list[tuple[str, int, int, Mapping[str, Any] | None]] = []  # of the open transaction
        self._transaction = threading.Lock()  # held from the beginning of a transaction to the entry in the histories
        self._ended = threading.Event()
        self._is_large_next = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="workload", daemon=True)

    def __enter__(self) -> Self:
        for _ in range(3):
            self._add_table()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Ends after the transaction that is open. Idempotent."""
        self._ended.set()
        self._thread.join(ENDED_S_MAX)

    def rest(self, seconds: float) -> None:
        """Lets the caller wait while transactions are published, or while nothing can be."""
        self._ended.wait(seconds)

    def await_transactions(self, count: int, deadline_s: float = 90.0) -> None:
        until = self.committed + count
        eventually(lambda: self.failure or self.committed >= until, deadline_s, f"{count} transactions are published")
        self.check()

    def check(self) -> None:
        """Raises what ended the thread."""
        if self.failure is not None:
            raise self.failure

    def ask_for_large(self) -> None:
        """The next transaction is one whose piece takes workers a while."""
        self._is_large_next.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No transaction is open. Afterwards the brokers answer."""
        with self._transaction:
            yield
            eventually(self.feed.is_answered, ENDED_S_MAX, "the brokers answer")

    def complaints(self, table: str, shown: Collection[StoredRow], lsn: int) -> list[str]:
        """See History.complaints; `shown` was read after the store was said to have applied `lsn`."""
        with self._transaction:  # what was committed while the store was read is in the history now
            return [*self.histories[table].complaints(shown, lsn)][:COMPLAINTS_MAX]

    def final_lsn(self) -> int:
        """Publishes how far everything is; call it at the end."""
        with self._transaction:
            return self.feed.progress()

    def _publish(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self._small, 80),
            (self._medium, 10),
            (self._large, 2),
            (self._aborted, 3),
            (self._truncate, 1),
            (self._add_column, 1),
            (self._retype, 1),
            (self._add_table, 1),
        ]
        try:
            while not self._ended.wait(self._chance.uniform(0, PAUSE_S_MAX)):
                (step,) = self._chance.choices([s for s, _ in steps], [weight for _, weight in steps])
                if self._is_large_next.is_set():
                    self._is_large_next.clear()
                    step = self._large
                with self._transaction:
                    step()
                    if self._chance.random() < PROGRESS_SHARE:
                        self.feed.progress()
        except Exception as error:  # noqa: BLE001  (whatever it is: check() raises it)
            self.failure = error

    # ---- transactions

    def _small(self) -> None:
        self.feed.begin()
        for _ in range(self._chance.randint(1, 5)):
            self._change(self._any_table())
        self._commit()

    def _medium(self) -> None:
        self.feed.begin()
        for _ in range(self._chance.randint(100, 300)):
            self._change(self._any_table())
        self._commit()

    def _large(self) -> None:
        table = self._any_table()
        self.feed.begin()
        for key in range(LARGE_ROWS):
            self._upsert(table, key, "large" * 20)
        self._commit()

    def _aborted(self) -> None:
        self.feed.begin()
        for _ in range(self._chance.randint(1, 50)):
            self._change(self._any_table())
        self._pending.clear()
        self.feed.abort()

    def _truncate(self) -> None:
        table = self._any_table()
        self.feed.begin()
        floor = self.feed.truncate(table)
        self._pending += [(table, key, floor, None) for key in self.histories[table].live()]
        for key in range(self._chance.randint(0, 5)):
            self._upsert(table, key, "after the sweep")
        self._commit()

    def _add_column(self) -> None:
        """Earlier rows stay as they are."""
        table = self._any_table()
        columns = self._columns[table]
        columns[f"added{len(columns)}"] = TEXT
        self.feed.begin()
        self.feed.alter_table(table, columns)
        self._upsert(table, 1, "first with the column")
        self._commit()

    def _retype(self) -> None:
        """Every row is published again, as capture does."""
        table = self._any_table()
        columns = self._columns[table]
        if columns["amount"] == TEXT:
            return
        columns["amount"] = TEXT
        self.feed.begin()
        self.feed.alter_table(table, columns)
        for key in self.histories[table].live():
            self._upsert(table, key, "again")
        self._commit()

    def _add_table(self) -> None:
        if len(self.histories) >= TABLES_MAX:
            return
        table = f"table{len(self.histories)}"
        self._columns[table] = dict(COLUMNS)
        self.feed.add_table(table, self._columns[table], ["id"], partitions=self._chance.randint(1, 3))
        self.histories[table] = History()
        self.feed.begin()
        for key in range(self._chance.randint(1, 100)):
            self._upsert(table, key, "first")
        self._commit()

    # ---- changes

    def _any_table(self) -> str:
        return self._chance.choice([*self.histories])

    def _change(self, table: str) -> None:
        key = self._chance.randrange(KEYS)
        held = self._row(table, key)
        match self._chance.random():
            case share if share < 0.15:
                self.feed.delete(table, id=key)
                self._pending.append((table, key, self.feed.version, None))
            case share if share < 0.35 and held is not None and held.keys() == self._columns[table].keys():
                row = {**held, "name": f"without its note {self.feed.seq}"}
                self.feed.update_without(table, ["note"], **row)
                self._pending.append((table, key, self.feed.version, row))
            case _:
                self._upsert(table, key, "note " * self._chance.randint(1, 40))

    def _row(self, table: str, key: int) -> Mapping[str, Any] | None:
        """As the open transaction left it."""
        pending = [row for other, changed, _, row in self._pending if (other, changed) == (table, key)]
        states = self.histories[table].states.get(key)
        held: Mapping[str, Any] | None = pending[-1] if pending else states[-1].row if states else None
        return held

    def _upsert(self, table: str, key: int, note: str) -> None:
        columns = self._columns[table]
        amount = self._chance.randrange(1000)
        row: dict[str, Any] = {
            **{name: f"{name} of {key}" for name in columns},
            "id": key,
            "name": f"name {self.feed.seq}",
            "note": note,
            "amount": str(amount) if columns["amount"] == TEXT else amount,
        }
        self.feed.upsert(table, **row)
        self._pending.append((table, key, self.feed.version, row))

    def _commit(self) -> None:
        lsn = self.feed.commit()
        for table, key, version, row in self._pending:
            self.histories[table].states.setdefault(key, []).append(State(version, lsn, row))
        self._pending.clear()
        self.committed += 1
