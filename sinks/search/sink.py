"""The sink that keeps rows in OpenSearch. Its names are described in sinks/search/names.py."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Self

from opensearchpy.exceptions import NotFoundError, TransportError

from cdc.config.sink_settings import SearchConfig
from cdc.model.errors import SinkError
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Outcome, Result, StoredRow
from sinks.lineage import Lineage
from sinks.reduction import completed, document_id
from sinks.retries import Retries
from sinks.search import bulk, mapping
from sinks.search.bulk import Busy, Item
from sinks.search.generations import Generations
from sinks.search.mapping import DELETED_FIELD, LIVE, VERSION_FIELD
from sinks.search.names import SearchNames
from sinks.search.pages import live_documents
from sinks.search.preparation import Preparation
from sinks.search.server import SearchServer, error_reason, error_type, is_transient, status

_ANSWER_FIELDS: Final = "items.*.status,items.*._index,items.*.error.type,items.*.error.reason"
_NAMES_MAX: Final = 5  # in one URL, of which servers take 4 KiB
_LOOK_DOCUMENTS_MAX: Final = 16  # of large rows
_STALE: Final = Result(Outcome.STALE)
_NO_ANSWER = Busy(0, "no answer")


class SearchSink:
    """See sinks.contract.Sink. Rejects a row that has a value which its field can't hold."""

    def __init__(self, server: SearchServer, prefix: str, name: str = "search") -> None:
        self.name = name
        self._server = server
        self._names = SearchNames(prefix)
        self._generations = Generations(server, self._names.marker)
        self._preparation = Preparation(server, self._names, self._generations)
        self._schemas: dict[TableId, TableSchema] = {}

    @classmethod
    def open(cls, config: SearchConfig, prefix: str, retries: Retries | None = None, name: str = "search") -> Self:
        """Connect. Raises SinkError when nothing answers there."""
        server = SearchServer(config.url.get_secret_value(), retries or Retries())
        try:
            sink = cls(server, prefix if config.index_prefix is None else config.index_prefix, name)
            server.call(lambda client: client.info())
        except SinkError:
            server.close()
            raise
        return sink

    def generation(self) -> int | None:
        return self._generations.current()

    def begin_generation(self, generation: int) -> None:
        if self._generations.current() != generation:
            self._generations.begin(generation)

    def discard(self, table: TableId) -> None:
        self._preparation.discard(table)

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        mapping.check_columns(schema)
        table, index, alias = schema.table, self._names.index(schema.table), self._names.alias(schema.table)
        for other in self._schemas:
            if other != table and {index, alias} & {self._names.index(other), self._names.alias(other)}:
                raise self._preparation.shared(table, other)
        self._preparation.prepare(Lineage.of([*earlier, schema]))
        self._schemas[table] = schema

    def attach(self, schema: TableSchema) -> None:
        self._schemas[schema.table] = schema

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        sent: list[int] = []

        def items() -> Iterator[Item]:
            for number, change in completed(changes, self._held, _LOOK_DOCUMENTS_MAX):
                sent.append(number)
                yield self._item(change)

        written = [result for request in bulk.requests(items()) for result in self._write(request)]
        results = [_STALE] * len(changes)
        for number, result in zip(sent, written, strict=True):
            results[number] = result
        return results

    def sweep(self, table: TableId, floor: int) -> int:
        alias = self._names.alias(table)
        self._refresh([alias])
        query = {"bool": {"filter": [LIVE, {"range": {VERSION_FIELD: {"lt": floor}}}]}}
        swept = 0
        deletions = (
            bulk.item(alias, hit["_id"], floor, None)
            for hit in live_documents(self._server, alias, query, with_row=False)
        )
        for request in bulk.requests(deletions):
            swept += sum(result.outcome is Outcome.WRITTEN for result in self._write(request))
        return swept

    def make_readable(self, tables: Collection[TableId]) -> None:
        self._refresh(sorted(map(self._names.alias, tables)))

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        """As readers see them: what was written since make_readable may be missing."""
        schema = self._schema(table)
        for hit in live_documents(self._server, self._names.alias(table), LIVE, with_row=True):
            row: dict[str, Any] = hit["_source"]
            del row[DELETED_FIELD]
            version = int(row.pop(VERSION_FIELD))
            yield StoredRow({column: row[column] for column in schema.key}, row, version)

    def close(self) -> None:
        self._server.close()

    def _held(self, changes: Sequence[Change]) -> list[dict[str, Any] | None]:
        """The live rows that the index holds of these keys, as of this moment."""
        wanted = [{"_index": self._names.alias(change.table), "_id": document_id(change.key)} for change in changes]
        answer = self._server.call(lambda client: client.mget(body={"docs": wanted}))
        documents = [found.get("_source") for found in answer["docs"]]
        return [None if found is None or found[DELETED_FIELD] else found for found in documents]

    def _item(self, change: Change) -> Item:
        self._schema(change.table)
        return bulk.item(self._names.alias(change.table), document_id(change.key), change.version, change.row)

    def _write(self, items: Sequence[Item]) -> list[Result]:
        """One result for each item, after what was busy was sent again with the same versions."""
        results: dict[int, Result] = {}
        waiting = list(range(len(items)))
        blocked = _NO_ANSWER
        for _ in self._server.retries.attempts():
            answers = self._send([items[number] for number in waiting])
            for number, answer in zip(waiting, answers, strict=True):
                match answer:
                    case Result():
                        results[number] = answer
                    case Busy():
                        blocked = answer
            waiting = [number for number in waiting if number not in results]
            if not waiting:
                return [results[number] for number in range(len(items))]
        raise bulk.busy(blocked, self._server.name)

    def _send(self, items: Sequence[Item]) -> Sequence[Result | Busy]:
        body = b"".join(item.content for item in items)
        try:
            # require_alias: an index that was deleted must not be made anew by the write, without our mapping.
            answer = self._server.once(
                lambda client: client.bulk(body=body, params={"require_alias": "true", "filter_path": _ANSWER_FIELDS})
            )
        except TransportError as error:
            if bulk.is_too_large(status(error), error_reason(error)):
                return self._send_smaller(items)
            if is_transient(error):
                return [Busy(status(error), error_type(error) or type(error).__name__)] * len(items)
            raise self._server.explained(error) from error
        said = answer.get("items", [])
        if len(said) != len(items):
            raise SinkError(f"{self._server.name} answered a bulk request in part", "is there a proxy in between?")
        outcomes = [bulk.outcome(entry) for entry in said]
        if any(isinstance(found, Busy) and found.is_too_large for found in outcomes):
            return self._send_smaller(items)
        return outcomes

    def _send_smaller(self, items: Sequence[Item]) -> Sequence[Result | Busy]:
        """In halves, down to one document. What was taken of them before is stale now."""
        if len(items) == 1:
            return [Result(Outcome.REJECTED, "the row is larger than the search index takes in one request")]
        middle = len(items) // 2
        return [*self._send(items[:middle]), *self._send(items[middle:])]

    def _refresh(self, aliases: Sequence[str]) -> None:
        for start in range(0, len(aliases), _NAMES_MAX):
            names = ",".join(aliases[start : start + _NAMES_MAX])
            self._refresh_some(names)

    def _refresh_some(self, names: str) -> None:
        try:
            self._server.call(lambda client: client.indices.refresh(index=names), (404,))
        except NotFoundError as error:
            raise self._preparation.lost(names) from error

    def _schema(self, table: TableId) -> TableSchema:
        schema = self._schemas.get(table)
        assert schema is not None, f"{table} was not prepared"
        return schema
