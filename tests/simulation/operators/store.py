"""A store in memory, with the guard, generations beside each other, and readers that see what was made readable."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdc.config.store_mapping import StoredTables
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Outcome, Result, StoredRow
from sinks.errors import SinkError
from sinks.reduction import reduce_changes
from sinks.slots import FIRST
from tests.simulation.operators.source import BAD, Row
from tests.simulation.operators.world import World

Rows = dict[int, tuple[int, Row | None]]  # key → version and row; None: it is deleted


@dataclass
class Content:
    """What a slot holds."""

    generation: int | None = None
    noted: str | None = None
    rows: dict[TableId, Rows] = field(default_factory=dict)
    readable: dict[TableId, Rows] = field(default_factory=dict)
    prepared: dict[TableId, int] = field(default_factory=dict)  # generation in which it was
    forms: dict[TableId, dict[int, str]] = field(default_factory=dict)  # of each row the fingerprint of its mapping

    def copied(self) -> "Content":
        rows = {table: dict(held) for table, held in self.rows.items()}
        readable = {table: dict(held) for table, held in self.readable.items()}
        forms = {table: dict(held) for table, held in self.forms.items()}
        return Content(self.generation, self.noted, rows, readable, dict(self.prepared), forms)


class Store:
    """Survives its jobs."""

    def __init__(self, world: World, *, refreshes: bool) -> None:
        """`refreshes`: readers see what was written when it was made readable, and not at once."""
        self.world = world
        self.refreshes = refreshes
        self.slots: dict[str, Content] = {FIRST: Content()}
        self.serving = FIRST

    def copied(self) -> tuple[dict[str, Content], str]:
        return {slot: content.copied() for slot, content in self.slots.items()}, self.serving

    def restore(self, copy: tuple[dict[str, Content], str]) -> None:
        slots, self.serving = copy
        self.slots = {slot: content.copied() for slot, content in slots.items()}

    def empty(self) -> None:
        self.slots, self.serving = {FIRST: Content()}, FIRST

    @property
    def serving_generation(self) -> int | None:
        return self.slots[self.serving].generation

    def shown(self, table: TableId) -> dict[int, Row]:
        """What readers see."""
        content = self.slots[self.serving]
        rows = (content.readable if self.refreshes else content.rows).get(table, {})
        return {key: row for key, (_, row) in rows.items() if row is not None}

    def forms(self, table: TableId) -> set[str]:
        """Returns the fingerprints of the mappings with which the rows that readers see were written."""
        forms = self.slots[self.serving].forms.get(table, {})
        return {forms[key] for key in self.shown(table)}


class FakeSink:
    """Implements sinks.contract.Sink on one slot."""

    name = "store"

    def __init__(self, store: Store, slot: str, section: StoredTables) -> None:
        self._store = store
        self._slot = slot
        self._section = section

    @property
    def _content(self) -> Content:
        return self._store.slots.setdefault(self._slot, Content())

    def _call(self, effect: Any = lambda: None, name: str = "") -> None:
        self._store.world.call(f"store.{name}", effect)

    def generation(self) -> int | None:
        self._call()
        return self._content.generation

    def begin_generation(self, generation: int) -> None:
        def effect() -> None:
            self._content.generation = generation
            self._content.noted = None

        self._call(effect)

    def discard(self, table: TableId) -> None:
        def effect() -> None:
            self._content.rows[table] = {}
            self._content.readable[table] = {}

        self._call(effect)

    def reset_versions(self, table: TableId) -> None:
        def effect() -> None:
            for rows in (self._content.rows, self._content.readable):
                held = rows.get(table, {})
                rows[table] = {key: (0, row) for key, (_, row) in held.items() if row is not None}

        self._call(effect)

    def save_position(self, text: str, before: str | None) -> None:
        def effect() -> None:
            if before is not None and self._content.noted != before:
                raise SinkError("the store has lost its last writes", "nothing to do")
            self._content.noted = text

        self._call(effect, "note")

    def saved_position(self) -> str | None:
        self._call()
        return self._content.noted

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        del earlier
        generation, table = self._content.generation, schema.table
        if generation is None or (self._content.prepared.get(table) == generation and table not in self._content.rows):
            raise SinkError(f"{table} was deleted from the store", "nothing to do")

        def effect() -> None:
            self._content.prepared[table] = generation
            self._content.rows.setdefault(table, {})

        self._call(effect)

    def attach(self, schema: TableSchema) -> None:
        """Rows are held as they come."""

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        results: list[Result] = []

        def effect() -> None:
            if gone := {change.table for change in changes} - self._content.rows.keys():
                raise SinkError(f"{min(gone)} was deleted from the store", "nothing to do")
            results.extend(self._applied(change) for change in changes)

        self._call(effect)
        return results

    def _applied(self, change: Change) -> Result:
        rows = self._content.rows[change.table]
        key = change.key["id"]
        if rows.get(key, (-1, None))[0] >= change.version:
            return Result(Outcome.STALE)
        if change.row is not None and str(change.row["v"]).startswith(BAD):
            return Result(Outcome.REJECTED, "column v: too odd")
        rows[key] = change.version, change.row
        form = self._section.fingerprints([change.table]).get(str(change.table), "")
        self._content.forms.setdefault(change.table, {})[key] = form
        return Result(Outcome.WRITTEN)

    def sweep(self, table: TableId, floor: int) -> int:
        gone: list[int] = []

        def effect() -> None:
            rows = self._content.rows.setdefault(table, {})
            gone.extend(key for key, (version, row) in rows.items() if row is not None and version < floor)
            rows.update(dict.fromkeys(gone, (floor, None)))

        self._call(effect, "sweep")
        return len(gone)

    def make_readable(self, tables: Collection[TableId]) -> None:
        def effect() -> None:
            for table in tables:
                self._content.readable[table] = dict(self._content.rows.get(table, {}))

        self._call(effect, "readable")

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        for key, (version, row) in self._content.rows.get(table, {}).items():
            if row is not None:
                yield StoredRow({"id": key}, row, version)

    def close(self) -> None:
        """Nothing to release."""


class FakeTarget:
    """Implements spark_jobs.piece_writer.ChangeWriter: the same store, in a task."""

    def __init__(self, sink: FakeSink) -> None:
        self._sink = sink

    def reduced(self, changes: Sequence[Change]) -> list[Change]:
        return reduce_changes(changes)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        return self._sink.apply(changes)

    def finish(self) -> tuple[Any, ...]:
        return ()

    def close(self) -> None:
        """Nothing to release."""


class FakeSlots:
    """Implements sinks.slots.Slots."""

    in_place = False

    def __init__(self, store: Store) -> None:
        self._store = store

    def serving(self) -> str:
        return self._store.serving

    def others(self) -> dict[str, int | None]:
        return {
            slot: content.generation
            for slot, content in self._store.slots.items()
            if slot != self._store.serving and (content.generation is not None or content.rows)
        }

    def generation(self, slot: str) -> int | None:
        content = self._store.slots.get(slot)
        return None if content is None else content.generation

    def check_room(self, tables: Collection[TableId] | None = None) -> None:
        """There is room."""

    def remove_unmet(self, slot: str, version: int, tables: Collection[TableId] | None = None) -> int:
        del slot, version, tables
        return 0

    def serve(self, slot: str, *, adopts: bool = False) -> None:
        def effect() -> None:
            if adopts and slot != self._store.serving:
                self._adopt(self._store.slots[slot], self._store.slots[self._store.serving])
            self._store.serving = slot

        self._store.world.call("store", effect)

    def _adopt(self, new: Content, former: Content) -> None:
        for table in former.prepared.keys() - new.prepared.keys():
            for mine, other in ((new.rows, former.rows), (new.readable, former.readable), (new.forms, former.forms)):
                if table in other:
                    mine[table] = other.pop(table)  # type: ignore[assignment]
            assert new.generation is not None
            new.prepared[table] = new.generation

    def drop(self, slot: str) -> None:
        def effect() -> None:
            self._store.slots.pop(slot, None)

        if slot != self._store.serving:
            self._store.world.call("store", effect)

    def close(self) -> None:
        """Nothing to release."""
