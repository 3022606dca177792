"""A table whose columns come and go in the simulated PostgreSQL: its catalog, and the reader of its existing rows.

Which columns it has beside the others' is a row of a table of its own, SHAPE: what a transaction changes there is in
the log at its commit, and visible later, like any other change.
"""

import random
from dataclasses import replace
from typing import Final

from cdc.model.errors import SourceError
from cdc.model.events import Column, TableSchema
from cdc.model.table_state import ColumnFacts, StorageFacts, TableFacts
from cdc.pgoutput.messages import Relation, RelationColumn
from cdc.ports.catalog_reader import CatalogAnswer, CatalogPoll, CatalogPollFailed, DivergedTable, KnownTable
from cdc.ports.chunk_reader import Chunk, ChunkRead, DescribeTable, Lookup, ReadFailed
from tests.mixed.operations import ALTERED, Alter
from tests.simulation.snapshots.source import COLUMNS, TEXT, Op, Reader, Row, Rows, Source, _Task

SHAPE: Final = "shape"
PUBLICATION: Final = "p"
EXTRA_MAX: Final = 3
_FIRST: Final = Row("", "")  # no other columns

# "5:x0 7:x1": numbers and names of columns; `big` of the row counts the numbers that were ever given.
Extra = list[tuple[int, str]]


def first_shape() -> Rows:
    return {0: _FIRST._replace(big=str(len(COLUMNS)))}


def extra(fingerprint: Row) -> Extra:
    """Columns that the table has beside the others'."""
    return [(int(number), name) for number, _, name in (each.partition(":") for each in fingerprint.v.split())]


def altered(alter: Alter, fingerprint: Row) -> Op | None:
    """What comes of it; None where the column is there already, or is not."""
    name, columns, given = f"x{alter.number % EXTRA_MAX}", extra(fingerprint), int(fingerprint.big)
    is_there = any(name == other for _, other in columns)
    if alter.change == "add" and not is_there:
        columns, given = [*columns, (given + 1, name)], given + 1
    elif alter.change == "drop" and is_there:
        columns = [column for column in columns if column[1] != name]
    else:
        return None
    return Op(SHAPE, 0, (0, Row(" ".join(f"{number}:{name}" for number, name in columns), str(given))))


def column(name: str) -> Column:
    return Column(name, TEXT, -1, "text", True, "b", TEXT)


def relation(plain: Relation, fingerprint: Row) -> Relation:
    """The table's, with its other columns."""
    added = tuple(RelationColumn(False, name, TEXT, -1) for _, name in extra(fingerprint))
    return replace(plain, columns=(*plain.columns, *added))


class Catalog:
    """cdc.ports.catalog_reader.CatalogReader"""

    def __init__(self, chance: random.Random, source: Source) -> None:
        self._chance = chance
        self._source = source
        self._poll: CatalogPoll | None = None
        self._mark = ""
        self._looks: list[CatalogAnswer | CatalogPollFailed] = []

    # ---- CatalogReader

    def ask(self, poll: CatalogPoll) -> None:
        self._poll = poll

    def answers(self) -> list[CatalogAnswer | CatalogPollFailed]:
        came, self._looks = self._looks, []
        return came

    # ---- what happens

    def live(self) -> None:
        if self._mark:
            self._source.emit(self._mark.encode())
            self._mark = ""
        elif self._poll is not None and self._chance.random() < 0.5:
            poll, self._poll = self._poll, None
            seen = {
                table: self._see(known, table.name == ALTERED)
                for table, known in poll.tables.items()
                if known.facts != self.facts(known.schema)
            }
            self._looks.append(CatalogAnswer(poll.nonce, PUBLICATION, seen, frozenset()))
            self._mark = poll.nonce if seen else ""

    def facts(self, schema: TableSchema) -> TableFacts:
        """As they are visible."""
        fingerprint = self._source.visible[SHAPE][0]
        numbered = [(number, each.name) for number, each in enumerate(COLUMNS, 1)]
        is_altered = schema.table.name == ALTERED
        columns = [*numbered, *extra(fingerprint)] if is_altered else numbered
        return TableFacts(
            oid=schema.oid,
            columns=tuple(ColumnFacts(number=n, name=name, changed_in="1", has_missing=False) for n, name in columns),
            storage=(StorageFacts(oid=schema.oid, file=1),),
            generated="",
            others="",
            attributes=int(fingerprint.big) if is_altered else len(COLUMNS),
        )

    def _see(self, known: KnownTable, is_altered: bool) -> DivergedTable:
        schema = known.schema
        if is_altered:
            columns = (*COLUMNS, *(column(name) for _, name in extra(self._source.visible[SHAPE][0])))
            if [each.name for each in columns] != [each.name for each in schema.columns]:
                schema = replace(schema, version=schema.version + 1, columns=columns)
        return DivergedTable(schema, self.facts(schema), None, known.entry, frozenset())


class MixedReader(Reader):
    """A table that is not as the request has it can't be read."""

    def _answer(self, task: _Task, request: DescribeTable | Chunk | Lookup) -> None:
        names = [each.name for each in request.schema.columns]
        if request.schema.table.name == ALTERED and names != self._names():
            task.is_answered = True  # its mark means nothing
            self._answers.append(ReadFailed(request.nonce, SourceError("altered", "again"), is_permanent=False))
        else:
            super()._answer(task, request)

    def _names(self) -> list[str]:
        added = [name for _, name in extra(self._source.visible[SHAPE][0])]
        return [*(each.name for each in COLUMNS), *added]

    def _chunk(self, request: Chunk) -> ChunkRead:
        read = super()._chunk(request)
        nulls = b"\t\\N" * (len(request.schema.columns) - len(COLUMNS))
        return replace(read, lines=tuple(line.removesuffix(b"\n") + nulls + b"\n" for line in read.lines))
