"""Preparation of a table's index: it is created, given new fields, or moved to a new index if a field's type can't
change in place.

A move can be killed at any point, and continued by any writer:

1. The new index is created; its name contains the version of the schema. The old index takes no writes from then on:
   other writers are refused, and restart.
2. The server copies the documents with their versions, including those of deleted rows. The copy can be repeated.
3. The generation's mark moves to the new index, if it is still the mark that was read: only one of two writers
   continues.
4. The alias moves and the old index is deleted, in one step. Until then readers see the old index.
"""

from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError, RequestError, TransportError

from cdc.model.events import TableId, TableSchema
from sinks.errors import RefusedError, SinkError
from sinks.json_documents import JSON_FIELD
from sinks.schema_history import SchemaHistory
from sinks.search import mapping
from sinks.search.generations import Generations, Mark, Overtaken
from sinks.search.mapping import LIVE, Capabilities, IndexForm
from sinks.search.names import SearchNames
from sinks.search.server import SearchServer, error_reasons, error_type

log = structlog.get_logger(__name__)

_READ_ONLY: Final = ("read_only", "read_only_allow_delete")  # blocks; OpenSearch sets the latter where a disk is full
_TASK_WAIT: Final = "20s"  # for one answer; below the client's patience


class _Index(NamedTuple):
    """An index as the server describes it."""

    name: str
    uuid: str
    aliases: frozenset[str]
    ours: dict[str, Any]  # Watershed's entry in `_meta`
    fields: dict[str, Any]  # the mapping's properties
    fields_max: int
    is_blocked: bool  # for writes
    settings: dict[str, Any]

    @property
    def schema_version(self) -> int:
        return int(self.ours.get("schema_version", 0))

    @property
    def shape(self) -> str:
        return str(self.ours.get("shape", ""))


class Preparation:
    """Prepares the tables of one prefix."""

    def __init__(
        self, server: SearchServer, names: SearchNames, generations: Generations, capabilities: Capabilities
    ) -> None:
        self._server = server
        self._capabilities = capabilities
        self._names = names
        self._generations = generations

    def prepare(self, schema_history: SchemaHistory) -> None:
        """Implements `sinks.contract.Sink.prepare`."""
        for _ in self._server.retries.attempts():
            try:
                return self._prepare(schema_history)
            except Overtaken:
                continue
        raise SinkError(
            f"{self._server.name}: other writers repeatedly prepare {schema_history.newest.table} at the same time",
            "only one job may write to a search index: stop the others",
        )

    def _prepare(self, schema_history: SchemaHistory) -> None:
        schema = schema_history.newest
        name = self._names.index(schema.table)
        form = self._form(schema)
        if not self._generations.is_begun():
            raise self.lost(self._names.marker)
        mark = self._generations.marked(name)
        index = self._found(mark.name if mark else self._aliased(schema.table) or name)
        if mark is not None and (index is None or index.uuid != mark.uuid):
            raise self.lost(mark.name)
        if index is not None and index.shape != form.digest:
            self._check_owner(schema.table, index)
            if mark is not None:
                raise SinkError(
                    f"{self._server.name}: index {index.name} of {schema.table} was prepared with another shape",
                    "nothing to do: the sink restarts and fills the index; stop a second job, if there is one",
                )
            log.warning("deleting a search index of another shape", table=str(schema.table), index=index.name)
            obsolete = index.name
            self._server.call(lambda client: client.indices.delete(index=obsolete, ignore_unavailable=True))
            index = None
        if index is None:
            aliases: dict[str, Any] = {self._names.own(schema.table): {}}
            if self._generations.is_serving():
                aliases[self._names.alias(schema.table)] = {"filter": LIVE}
            self._create(schema, name, aliases)
            index = self._found(name)
            if index is None:
                raise self.lost(name)
        self._check_owner(schema.table, index)
        if mark is not None and index.schema_version > schema.version:
            raise SinkError(
                f"{self._server.name}: index {index.name} was prepared with a later schema than version "
                f"{schema.version} of {schema.table}",
                "nothing to do: the sink restarts and reads the newest schema; stop a second job, if there is one",
            )
        clashes = mapping.clashes(index.fields, form.fields)
        if clashes or (index.is_blocked and self._others(schema, index.name)):
            self._move(schema_history, index, mark, clashes)
        else:
            self._update(schema, index)
            if mark is None:
                self._generations.mark(name, index.name, index.uuid, schema.table, mark)

    def check(self, table: TableId) -> None:
        """Raises SinkError for an index that is not the table's, or that accepts no writes. Changes nothing."""
        index = self._found(self._aliased(table) or self._names.index(table))
        for found in (index, self._found(self._names.alias(table))):
            if found is not None and not mapping.owner(table, self._names.prefix).items() <= found.ours.items():
                raise RefusedError(
                    f"{self._server.name}: index {found.name} exists, but does not belong to table {table}; it belongs "
                    f"to {_owner_name(found.ours)}",
                    "correct topics.prefix if it was changed or mistyped: the index may be that of another prefix, or "
                    "of another program; otherwise set another index_prefix for the sink",
                )
        for found in (index, self._found(self._names.marker)):
            blocks = {} if found is None else found.settings.get("blocks", {})
            for block in _READ_ONLY:
                if found is not None and blocks.get(block) == "true":
                    raise SinkError(
                        f"{self._server.name}: index {found.name} is read-only (index.blocks.{block})",
                        f'PUT /{found.name}/_settings {{"index.blocks.{block}": null}}, once its disk has room',
                    )

    def _update(self, schema: TableSchema, index: _Index) -> None:
        """Adds the schema's new fields, changed settings and the sink's aliases to the index."""
        form = self._form(schema)
        try:
            if any(str(value) != index.settings.get(name) for name, value in form.dynamic_settings.items()):
                settings = form.dynamic_settings
                self._server.call(lambda client: client.indices.put_settings(index=index.name, body=settings), (400,))
            if index.schema_version != schema.version:
                self._make_room(schema, index)
                body = mapping.mapping(form)
                self._server.call(lambda client: client.indices.put_mapping(index=index.name, body=body), (400,))
            wanted = {self._names.own(schema.table)}
            if self._generations.is_serving():
                wanted.add(self._names.alias(schema.table))
            if not wanted <= index.aliases:
                self._show(schema, index.name)
        except RequestError as error:
            raise self._unusable(schema.table, error) from error

    def _make_room(self, schema: TableSchema, index: _Index) -> None:
        """Raises the limit of fields. Fields of dropped columns stay, and count."""
        needed = mapping.fields_max(len(schema.columns) + len(index.fields))
        if needed > index.fields_max:
            limit = {"index.mapping.total_fields.limit": needed}
            self._server.call(lambda client: client.indices.put_settings(index=index.name, body=limit), (400,))

    # ---- a new index

    def _move(self, schema_history: SchemaHistory, old: _Index, mark: Mark | None, clashes: frozenset[str]) -> None:
        schema = schema_history.newest
        name, target = self._names.index(schema.table), self._names.moved(schema.table, schema.version)
        if old.name == target:
            raise RefusedError(
                f"{self._server.name}: index {target} of table {schema.table} has fields of other types",
                "undo the change of the sink's mapping or of its index options, if there was one; otherwise delete the "
                f"index {target}, which has nothing that the topics do not have, and restart the sink",
            )
        log.info("moving a search index", table=str(schema.table), source=old.name, target=target)
        self._create(schema, target, {})
        new = self._found(target)
        if new is None:
            raise Overtaken
        self._check_owner(schema.table, new)
        try:
            self._server.call(lambda client: client.indices.add_block(index=old.name, block="write"), (404,))
            self._server.call(lambda client: client.indices.refresh(index=old.name), (404,))
            is_known = schema_history.column_names(old.schema_version) is not None
            kept = schema_history.carried(old.schema_version) if is_known else frozenset()
            self._copy(old.name, target, clashes - kept)
        except NotFoundError as error:  # another writer has finished the move
            raise Overtaken from error
        self._generations.mark(name, target, new.uuid, schema.table, mark)
        self._show(schema, target)

    def _copy(self, source: str, target: str, without: frozenset[str]) -> None:
        """Copies all documents with their versions, without the fields in `without`. Raises NotFoundError if one of the
        indexes does not exist, Overtaken if one is deleted meanwhile.
        """
        body: dict[str, Any] = {
            "source": {
                "index": source,
                "_source": {"excludes": [path for name in sorted(without) for path in (name, f"{JSON_FIELD}.{name}")]},
            },
            # A document with this version or a greater one is right: an earlier or a concurrent copy has written it.
            "dest": {"index": target, "version_type": "external"},
            "conflicts": "proceed",
        }
        params = {"wait_for_completion": "false", "refresh": "true"}
        task = self._server.call(lambda client: client.reindex(body=body, params=params), (404,))["task"]
        while not (answer := self._asked(task))["completed"]:
            continue
        error = answer.get("error") or next(iter(answer.get("response", {}).get("failures", [])), None)
        if error is not None:
            cause = error.get("cause", error)
            if cause.get("type") == "index_not_found_exception":
                raise Overtaken
            raise SinkError(
                f"{self._server.name}: index {source} can't be copied to {target} ({cause.get('type')})",
                "see the server's log for this error; the sink tries again by itself",
            )
        held, copied = self._count(source), self._count(target)
        if copied < held:
            raise SinkError(
                f"{self._server.name}: {copied} of {held} documents of index {source} were copied to {target}",
                "nothing to do: the sink tries again by itself",
            )

    def _asked(self, task: str) -> dict[str, Any]:
        """Returns the description of the task after it has ended, or after _TASK_WAIT."""
        # The client would apply a parameter `timeout` to the request itself.
        url = f"/_tasks/{task}?wait_for_completion=true&timeout={_TASK_WAIT}"
        try:
            answer: dict[str, Any] = self._server.call(
                lambda client: client.transport.perform_request("GET", url), (404, 408, 500)
            )
        except NotFoundError as error:  # the task's node was restarted
            raise Overtaken from error
        except TransportError as error:
            if "timeout" in error_type(error):
                return {"completed": False}
            raise self._server.explained(error) from error
        return answer

    def _count(self, index: str) -> int:
        self._server.call(lambda client: client.indices.refresh(index=index), (404,))
        return int(self._server.call(lambda client: client.count(index=index), (404,))["count"])

    def _show(self, schema: TableSchema, index: str) -> None:
        """Moves the aliases to the index, and deletes the table's earlier and unfinished indexes."""
        alias, others = self._names.alias(schema.table), self._others(schema, index)
        actions: list[dict[str, Any]] = [{"add": {"index": index, "alias": self._names.own(schema.table)}}]
        if self._generations.is_serving():
            shown = [other for other in self._with_alias(alias) if other not in (index, *others)]
            actions += [{"remove": {"index": other, "alias": alias}} for other in shown]
            actions.append({"add": {"index": index, "alias": alias, "filter": LIVE}})
        actions += [{"remove_index": {"index": other}} for other in others]
        try:
            self._server.call(lambda client: client.indices.update_aliases(body={"actions": actions}), (400, 404))
        except NotFoundError as error:
            raise Overtaken from error
        except RequestError as error:
            raise self._unusable(schema.table, error) from error

    def discard(self, table: TableId) -> None:
        """Deletes all indexes of the table, of any version; their aliases are deleted with them."""
        for index in self._owned(table):
            found = index.name
            with suppress(NotFoundError):  # another writer has deleted it
                self._server.call(partial(_delete, name=found), (404,))

    def _others(self, schema: TableSchema, index: str) -> list[str]:
        """Returns the table's other indexes that are not of a later version."""
        return sorted(
            other.name
            for other in self._owned(schema.table)
            if other.name != index and other.schema_version <= schema.version
        )

    def _owned(self, table: TableId) -> list[_Index]:
        # The index that the job writes to may have been adopted from an earlier generation, whose names it has.
        pattern = f"{self._names.index(table)},{self._names.moved_pattern(table)},{self._names.own(table)}"
        held = self._server.call(
            lambda client: client.indices.get(index=pattern, params={"ignore_unavailable": "true"})
        )
        owner = mapping.owner(table, self._names.prefix)
        found = [_index(other, described) for other, described in held.items()]
        return [index for index in found if owner.items() <= index.ours.items()]

    # ---- reading and creating indexes

    def _aliased(self, table: TableId) -> str | None:
        """Returns the index that the sink's job writes to; None if there is none."""
        return min(self._with_alias(self._names.own(table)), default=None)

    def _with_alias(self, alias: str) -> list[str]:
        return aliased(self._server, alias)

    def _found(self, name: str) -> _Index | None:
        held = self._server.call(lambda client: client.indices.get(index=name, params={"ignore_unavailable": "true"}))
        if any(described.get("data_stream") == name for described in held.values()):
            raise RefusedError(
                f"{self._server.name}: {name} is a data stream, which takes no changes of documents",
                "set another alias or index in the table's shape, or another index_prefix for the sink",
            )
        return _index(name, held[name]) if name in held else None

    def _create(self, schema: TableSchema, index: str, aliases: dict[str, Any]) -> None:
        body = mapping.index_body(self._form(schema), aliases)
        try:
            self._server.call(lambda client: client.indices.create(index=index, body=body), (400,))
        except RequestError as error:
            if error_type(error) != "resource_already_exists_exception":  # another writer has created it: no error
                raise self._unusable(schema.table, error) from error

    def _check_owner(self, table: TableId, index: _Index) -> None:
        if not mapping.owner(table, self._names.prefix).items() <= index.ours.items():
            raise self.shared(table, _owner_name(index.ours))

    def lost(self, index: str) -> SinkError:
        return SinkError(
            f"{self._server.name}: index {index} was deleted, or created again by another program",
            "nothing to do: the sink restarts and fills the search index again from the topics",
        )

    def shared(self, table: TableId, other: object) -> SinkError:
        return RefusedError(
            f"table {table} and {other} would share the search index {self._names.index(table)}",
            "add one of them to the sink's exclude_tables, or set another index_prefix",
        )

    def _unusable(self, table: TableId, error: RequestError) -> SinkError:
        """Returns the error for an index that the server refuses. The server's reasons contain names and settings, no
        values.
        """
        return RefusedError(
            f"{self._server.name} refuses the index {self._names.index(table)} of table {table} "
            f"({error_type(error)}): {'; '.join(error_reasons(error))}",
            "correct mapping and settings of the table's shape; another program may have created an index of this name",
        )

    def _form(self, schema: TableSchema) -> IndexForm:
        return IndexForm(schema, self._names.shape(schema.table), self._capabilities, self._names.prefix)


def _index(name: str, described: dict[str, Any]) -> _Index:
    settings = described["settings"]["index"]
    fields = described["mappings"]
    return _Index(
        name=name,
        uuid=settings["uuid"],
        aliases=frozenset(described["aliases"]),
        ours=fields.get("_meta", {}).get("watershed", {}),
        fields=fields.get("properties", {}),
        fields_max=int(settings.get("mapping", {}).get("total_fields", {}).get("limit", 1000)),
        is_blocked=settings.get("blocks", {}).get("write") == "true",
        settings=settings,
    )


def _owner_name(meta: dict[str, Any]) -> str:
    if not meta:
        return "another program"
    return f"table {meta.get('table_schema')}.{meta.get('table_name')} of prefix {meta.get('prefix')}"


def aliased(server: SearchServer, alias: str) -> list[str]:
    """Returns the indexes that the alias points to."""
    try:
        return list(server.call(lambda client: client.indices.get_alias(name=alias), (404,)))
    except NotFoundError:
        return []


def _delete(client: OpenSearch, name: str) -> None:
    client.indices.delete(index=name)
