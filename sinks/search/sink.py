"""The sink that keeps rows in OpenSearch or Elasticsearch. Its names are described in sinks/search/names.py."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Self

from opensearchpy.exceptions import NotFoundError, TransportError

from cdc.config.store_shapes import TOMBSTONE_TTL_S, SearchShape
from cdc.config.stores import SearchConfig
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Json, Outcome, Result, StoredRow
from sinks.errors import SinkError
from sinks.reduction import completed
from sinks.retries import Retries
from sinks.schema_history import SchemaHistory
from sinks.search import bulk, mapping
from sinks.search.bulk import Busy, Item
from sinks.search.documents import DocumentForm
from sinks.search.generations import Generations, serving_slot
from sinks.search.mapping import DELETED_FIELD, LIVE, VERSION_FIELD, Capabilities, shape_digest
from sinks.search.names import SearchNames
from sinks.search.pages import live_documents
from sinks.search.preparation import Preparation
from sinks.search.server import SearchServer, error_reason, error_type, is_transient, status
from sinks.search.tombstones import TombstonePurge

_ANSWER_FIELDS: Final = "items.*.status,items.*._index,items.*.error.type,items.*.error.reason"
_NAMES_MAX: Final = 5  # in one URL, of which servers take 4 KiB
_READ_DOCUMENTS_MAX: Final = 16  # of large rows, whose unchanged columns are read from the index
_STALE: Final = Result(Outcome.STALE)
_TOO_LARGE: Final = Result(Outcome.REJECTED, "the row is larger than the search index takes in one request")
_NO_ANSWER = Busy(0, "no answer")


class _Table(NamedTuple):
    """A table that was prepared or attached."""

    alias: str  # SearchNames.own
    form: DocumentForm


class SearchSink:
    """Implements sinks.contract.Sink. Rejects a row with a value that its field can't hold."""

    def __init__(
        self,
        server: SearchServer,
        prefix: str,
        shapes: Mapping[str, SearchShape] | None = None,
        capabilities: Capabilities | None = None,
        *,
        slot: str | None = None,
        tombstone_ttl_s: int = TOMBSTONE_TTL_S,
        name: str = "search",
    ) -> None:
        """`slot`: of the generation to write, see SearchNames; None: that of the generation that readers see."""
        self.name = name
        self._server = server
        self._names = SearchNames(prefix, shapes)
        self._follows_readers = slot is None
        self._names = self._names.in_slot(serving_slot(server, self._names) if slot is None else slot)
        self._capabilities = capabilities or Capabilities()
        self._generations = Generations(
            server, self._names, lambda table: shape_digest(self._names.shape(table), self._capabilities)
        )
        self._preparation = Preparation(server, self._names, self._generations, self._capabilities)
        self._tombstones = TombstonePurge(server, tombstone_ttl_s)
        self._tables: dict[TableId, _Table] = {}
        self._is_shown = False  # whether readers saw the generation when a table was prepared last

    @classmethod
    def open(
        cls,
        config: SearchConfig,
        prefix: str,
        retries: Retries | None = None,
        name: str = "search",
        slot: str | None = None,
    ) -> Self:
        """Connects. Raises SinkError if no server answers at the address, or one that the sink can't use."""
        server = SearchServer(config, retries or Retries())
        try:
            capabilities = Capabilities.of(server.product, _plugins(server))
            index_prefix = prefix if config.index_prefix is None else config.index_prefix
            ttl_s = config.tombstone_ttl_s
            sink = cls(server, index_prefix, config.shapes, capabilities, slot=slot, tombstone_ttl_s=ttl_s, name=name)
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

    def reset_versions(self, table: TableId) -> None:
        self._preparation.discard(table)

    def save_position(self, text: str, before: str | None) -> None:
        self._generations.save_position(text, before)

    def saved_position(self) -> str | None:
        return self._generations.saved_position()

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        made = self._table(schema)
        mapping.check_columns(schema, self._names.shape(schema.table), self._capabilities)
        made.form.check()
        table, index, alias = schema.table, self._names.index(schema.table), self._names.alias(schema.table)
        for other in self._tables:
            if other != table and {index, alias} & {self._names.index(other), self._names.alias(other)}:
                raise self._preparation.shared(table, other)
        self._preparation.prepare(SchemaHistory.of([*earlier, schema]))
        self._is_shown = self._generations.is_serving()
        self._tables[table] = made

    def check(self, schema: TableSchema) -> tuple[str, str]:
        """Returns the names of the index and the alias that `prepare` would make, without making them. Raises SinkError
        where it would fail."""
        table = schema.table
        mapping.check_columns(schema, self._names.shape(table), self._capabilities)
        self._table(schema).form.check()
        self._preparation.check(table)
        return self._names.index(table), self._names.alias(table)

    def attach(self, schema: TableSchema) -> None:
        self._tables[schema.table] = self._table(schema)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        sent: list[int] = []

        def items() -> Iterator[Item]:
            for number, change in completed(changes, self._held, _READ_DOCUMENTS_MAX):
                sent.append(number)
                yield self._item(change)

        written = [result for request in bulk.requests(items()) for result in self._write(request)]
        results = [_STALE] * len(changes)
        for number, result in zip(sent, written, strict=True):
            results[number] = result
        return results

    def sweep(self, table: TableId, floor: int) -> int:
        alias = self._names.own(table)
        self._refresh([alias])
        query = {"bool": {"filter": [LIVE, {"range": {VERSION_FIELD: {"lt": floor}}}]}}
        swept = 0
        deletions = (
            bulk.item(alias, hit["_id"], floor, None, hit.get("_routing"))
            for hit in live_documents(self._server, alias, query, with_row=False)
        )
        for request in bulk.requests(deletions):
            swept += sum(result.outcome is Outcome.WRITTEN for result in self._write(request))
        return swept

    def make_readable(self, tables: Collection[TableId]) -> None:
        # The readers' alias is refreshed, too, so that its deletion is noticed.
        names = [self._names.own, self._names.alias] if self._is_shown else [self._names.own]
        self._refresh(sorted(name(table) for table in tables for name in names))
        self._tombstones.purge_hourly([table.alias for table in self._tables.values()])

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        """Yields the rows that readers see; those written since make_readable may be missing."""
        form = self._known(table).form
        name = self._names.alias(table) if self._follows_readers else self._names.own(table)
        for hit in live_documents(self._server, name, LIVE, with_row=True):
            version = int(hit["_source"][VERSION_FIELD])
            row = form.row(hit["_source"])
            yield StoredRow({column: row[column] for column in form.schema.key}, row, version)

    def close(self) -> None:
        self._server.close()

    @property
    def server(self) -> SearchServer:
        return self._server

    def place(self, table: TableId) -> tuple[str, DocumentForm]:
        """Returns the alias through which a table's documents are read, and their form."""
        known = self._known(table)
        return known.alias, known.form

    def _held(self, changes: Sequence[Change]) -> list[dict[str, Json] | None]:
        """Returns the live row that the index holds now for each change's key; None where there is none."""
        forms = [self._known(change.table).form for change in changes]
        wanted: list[dict[str, str]] = []
        for form, change in zip(forms, changes, strict=True):
            document = {"_index": self._known(change.table).alias, "_id": form.document_id(change.key)}
            routing = form.routing(change.key)
            wanted.append(document if routing is None else document | {"routing": routing})
        answer = self._server.call(lambda client: client.mget(body={"docs": wanted}))
        documents = [found.get("_source") for found in answer["docs"]]
        return [
            None if found is None or found[DELETED_FIELD] else form.row(found)
            for form, found in zip(forms, documents, strict=True)
        ]

    def _item(self, change: Change) -> Item:
        alias, form = self._known(change.table)
        document_id, routing = form.document_id(change.key), form.routing(change.key)

        if change.row is None or not form.has_objects:
            document = None if change.row is None else form.document(change.row)
            return bulk.item(alias, document_id, change.version, document, routing)

        def item(*, objects: bool) -> Item:
            document = form.document(change.row or {}, objects=objects)
            return bulk.item(alias, document_id, change.version, document, routing)

        return item(objects=True)._replace(plain=partial(item, objects=False))

    def _write(self, items: Sequence[Item]) -> list[Result]:
        """Returns one result for each item. A document that its index refuses is written again with its JSON as text,
        if the JSON may be the reason.
        """
        results = self._write_once(items)
        for number, result in enumerate(results):
            if (
                result.outcome is Outcome.REJECTED
                and result is not _TOO_LARGE
                and (plain := items[number].plain) is not None
            ):
                results[number] = self._write_once([plain()])[0]
        return results

    def _write_once(self, items: Sequence[Item]) -> list[Result]:
        """Returns one result for each item. Items that were busy are sent again with the same versions."""
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
            # require_alias: the write must not create a deleted index again, without the sink's mapping.
            answer = self._server.once(
                lambda client: client.bulk(body=body, params={"require_alias": "true", "filter_path": _ANSWER_FIELDS})
            )
        except TransportError as error:
            if bulk.is_too_large(status(error), error_reason(error)):
                return self._send_smaller(items)
            if is_transient(error):
                return [Busy(status(error), error_type(error) or type(error).__name__)] * len(items)
            raise self._server.explained(error) from error
        answers = answer.get("items", [])
        if len(answers) != len(items):
            raise SinkError(
                f"{self._server.name} answered a bulk request only in part",
                "check the proxy in between, if there is one",
            )
        outcomes = [bulk.outcome(entry) for entry in answers]
        if any(isinstance(found, Busy) and found.is_too_large for found in outcomes):
            return self._send_smaller(items)
        return outcomes

    def _send_smaller(self, items: Sequence[Item]) -> Sequence[Result | Busy]:
        """Sends the items in halves, down to one document. Items that were written before are stale now."""
        if len(items) == 1:
            return [_TOO_LARGE]
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

    def _table(self, schema: TableSchema) -> _Table:
        form = DocumentForm(schema, self._names.shape(schema.table), self._capabilities)
        return _Table(self._names.own(schema.table), form)

    def _known(self, table: TableId) -> _Table:
        known = self._tables.get(table)
        assert known is not None, f"{table} was not prepared"
        return known


def _plugins(server: SearchServer) -> list[str]:
    """Returns the names of the server's plugins. Elasticsearch has nothing of the sink's in plugins."""
    if server.product.is_elasticsearch:
        return []
    found = server.call(lambda client: client.cat.plugins(format="json"))
    return [str(plugin.get("component")) for plugin in found]
