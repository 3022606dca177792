"""The warehouse's engine: a Spark session of its own on the Iceberg catalog."""

import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, Window
from pyspark.sql.functions import col, row_number

from sinks.contract import Json
from sinks.errors import SinkError
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.engine import Conflict, DataFile, NewFiles, OpenTable, Snapshot, VectorPlace
from sinks.warehouse.evolution import Evolution
from sinks.warehouse.naming import VERSION, quoted
from sinks.warehouse.object_store import hadoop_settings
from sinks.warehouse.statements import CATALOG
from spark_jobs.jvm import is_cut_off, java_classes, java_session, java_strings, jvm_failure

T = TypeVar("T")

# The JVM's exceptions, and those of py4j when the JVM has ended.
_FAILURES: Final = (Py4JError, PySparkException, OSError)
RANK: Final = "ws_rank"  # a column that is there for a moment
JVM_END_S_MAX: Final = 1.0  # after its connections
CAUSES_MAX: Final = 20  # of an exception: a chain is short, a cycle never ends
REASON_CHARS_MAX: Final = 300
_SNAPSHOT_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."
_IN_VECTORS: Final = "spark.sql.iceberg.vectorization.enabled"  # 5,000 rows at once
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_METADATA_LOCATION: Final = (
    "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ? "
    "AND coalesce(iceberg_type, 'TABLE') = 'TABLE'"
)
_WITH_PATTERNS: Final = "__globPaths__"  # a file's name may have `[` in it
BUSY_S_MAX: Final = 30.0
POOL: Final = "warehouse"  # of Spark's scheduler
_CONFLICTS: Final = frozenset(
    {"org.apache.iceberg.exceptions.ValidationException", "org.apache.iceberg.exceptions.CommitFailedException"}
)
_MISSING: Final = frozenset(
    {
        "org.apache.iceberg.exceptions.NoSuchTableException",
        "org.apache.iceberg.exceptions.NoSuchNamespaceException",
        "org.apache.iceberg.exceptions.NotFoundException",  # the metadata file
    }
)


KnownProperties = dict[tuple[str, ...], tuple[str, Mapping[str, str]]]  # table → metadata file, its properties


@dataclass(frozen=True, slots=True)
class _Handle:
    """An open table."""

    name: tuple[str, ...]
    table: Any  # Java's
    location: str  # of its metadata file when it was opened

    def state(self) -> str:
        return str(self.table.operations().current().metadataFileLocation())


class SparkEngine:
    """Implements `sinks.warehouse.engine.Engine`. A new session shares only the JVM, so that settings and source views
    of two engines are separate."""

    def __init__(self, spark: SparkSession, catalog: CatalogPlace, known: "KnownProperties | None" = None) -> None:
        """`known`: shared by engines on the same catalog, one of which knows what another has committed."""
        self._session = spark.newSession()
        self._database = catalog.database
        self._location = catalog.location.rstrip("/")
        if catalog.database is not None:
            catalog.database.parent.mkdir(parents=True, exist_ok=True)
        prefix = f"spark.sql.catalog.{CATALOG}"
        for name, value in {
            **hadoop_settings(catalog.location, catalog.s3),
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{prefix}.{name}": value for name, value in catalog.spark_properties.items()},
            # For each file that Hadoop creates in a local folder, it starts a process that sets permissions; for a file
            # with checksums beside it, five. The setting is Iceberg's alone, which shares no file system with others.
            f"{prefix}.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            f"{prefix}.hadoop.fs.file.impl.disable.cache": "true",
            # Other sessions' commits are seen at once.
            f"{prefix}.cache-enabled": "false",
            # There are many small statements, and each query stage would be a job of its own. Merges set the number of
            # partitions for their joins; compaction needs none.
            "spark.sql.adaptive.enabled": "false",
            # A commit's tasks may delete rows of the same file: Iceberg 1.11 and later join their deletion vectors. To
            # bring these rows together first is a shuffle of all rows, in which all new ones go to one task.
            "spark.sql.iceberg.distribution-mode": "none",
            # A column may be named like a variable of Spark's.
            "spark.sql.variable.substitute": "false",
        }.items():
            self._session.conf.set(name, value)
        self._jvm: Any = java_classes(self._session)
        # A catalog is made from the settings of the session that runs the first statement with it.
        self.query(f"SHOW NAMESPACES IN {CATALOG}")
        self._catalog: Any = self._call(
            lambda: self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
                java_session(self._session), CATALOG
            )
        )
        self._has_views = catalog.catalog is None or not catalog.is_flat
        self._known: KnownProperties = {} if known is None else known
        self._opened = catalog.database.stat().st_ino if catalog.database is not None else 0

    def run(
        self,
        statement: str,
        properties: Mapping[str, str] | None = None,
        *,
        by_row: bool = False,
        partitions: int | None = None,
    ) -> None:
        settings = {_SNAPSHOT_PROPERTY + name: value for name, value in (properties or {}).items()}
        if by_row:
            settings[_IN_VECTORS] = "false"
        if partitions is not None:
            settings[_PARTITIONS] = str(partitions)

        def work() -> None:
            # A property of the thread, which the caller may have started since; a job of the default pool would wait
            # for all others.
            self._session.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
            for name, value in settings.items():
                self._session.conf.set(name, value)
            try:
                self._session.sql(statement)
            finally:
                for name in settings:
                    self._session.conf.unset(name)

        self._call(work)

    def query(self, statement: str) -> pa.Table:
        return self._call(lambda: self._session.sql(statement).toArrow())

    def staged_source(
        self, name: str, files: Sequence[str], columns: str, key: Sequence[str] | None, *, is_small: bool
    ) -> None:
        def register() -> None:
            rows = self._session.read.schema(columns).option(_WITH_PATTERNS, "false").parquet(*files)
            if key is not None:
                newest = Window.partitionBy(*[col(quoted(part)) for part in key]).orderBy(col(VERSION).desc())
                rows = rows.withColumn(RANK, row_number().over(newest)).where(col(RANK) == 1).drop(RANK)
            (rows.coalesce(1) if is_small else rows).createOrReplaceTempView(name)

        self._call(register)

    def history(self, table: tuple[str, ...]) -> Iterator[Snapshot]:
        found = self._call(lambda: self._catalog.loadTable(self._identifier(table)))
        yield from self._snapshots(found)

    def _snapshots(self, found: Any) -> Iterator[Snapshot]:
        """Yields the commits of a loaded table, newest first."""
        snapshot = self._call(found.currentSnapshot)
        while snapshot is not None:
            # One text, because each property would be a call of its own.
            found_snapshot = json.loads(self._jvm.org.apache.iceberg.SnapshotParser.toJson(snapshot))
            parent_id = found_snapshot.get("parent-snapshot-id")
            number = found_snapshot["sequence-number"]
            yield Snapshot(found_snapshot["snapshot-id"], parent_id, found_snapshot["summary"], number)
            snapshot = None if parent_id is None else found.snapshot(parent_id)

    def tags(self, table: tuple[str, ...]) -> Mapping[str, int]:
        def read() -> dict[str, int]:
            refs = self._catalog.loadTable(self._identifier(table)).refs()
            return {str(name): int(ref.snapshotId()) for name, ref in refs.items() if ref.isTag()}

        return self._call(read)

    def tag(self, table: tuple[str, ...], name: str, snapshot: int | None, removed: Sequence[str]) -> None:
        def work() -> None:
            loaded = self._catalog.loadTable(self._identifier(table))
            number = snapshot
            if number is None:
                if loaded.currentSnapshot() is not None:
                    raise Conflict
                loaded.newFastAppend().commit()
                loaded.refresh()
                number = loaded.currentSnapshot().snapshotId()
            changed = loaded.manageSnapshots()
            is_there = name in loaded.refs()
            changed = changed.replaceTag(name, number) if is_there else changed.createTag(name, number)
            for other in removed:
                changed = changed.removeTag(other)
            changed.commit()

        self._call(work)

    def open_table(self, table: tuple[str, ...], bounds: Mapping[str, tuple[Json, Json]]) -> OpenTable | None:
        return self._call(lambda: self._open_table(table, bounds))

    def _open_table(self, table: tuple[str, ...], bounds: Mapping[str, tuple[Json, Json]]) -> OpenTable | None:
        found = self._catalog.loadTable(self._identifier(table))
        new_path, name = found.locationProvider().newDataLocation, uuid.uuid4().hex
        data_path = new_path(f"{name}.parquet")
        if (
            found.spec().isPartitioned()
            or found.sortOrder().isSorted()
            or not data_path.startswith(f"{self._location}/")
            or found.properties().get("write.format.default") not in (None, "parquet")
        ):
            return None
        files = self._files(found, bounds)
        if files is None:
            return None
        iceberg = self._jvm.org.apache.iceberg
        fields = json.loads(iceberg.SchemaParser.toJson(found.schema()))["fields"]
        handle = _Handle(table, found, str(found.operations().current().metadataFileLocation()))
        return OpenTable(
            snapshots=partial(self._snapshots, found),
            state=handle.state,
            fields=fields,
            files=files,
            new_data_path=data_path,
            new_vectors_path=new_path(f"{name}-deletes.puffin"),
            handle=handle,
        )

    def _files(self, found: Any, bounds: Mapping[str, tuple[Json, Json]]) -> list[DataFile] | None:
        """Returns the files with rows within the bounds; None if one of them is of another kind than ours."""
        iceberg = self._jvm.org.apache.iceberg
        scan = found.newScan().ignoreResiduals()
        for name, (low, high) in bounds.items():
            for kind, value in (("gt-eq", low), ("lt-eq", high)):
                if value is not None:
                    text = json.dumps({"type": kind, "term": name, "value": value})
                    scan = scan.filter(iceberg.expressions.ExpressionParser.fromJson(text))
        files = []
        planned = scan.planFiles()
        try:
            tasks = planned.iterator()
            while tasks.hasNext():
                file = _data_file(json.loads(iceberg.ScanTaskParser.toJson(tasks.next())))
                if file is None:
                    return None
                files.append(file)
        finally:
            planned.close()
        return files

    def commit(
        self, opened: OpenTable, files: NewFiles, properties: Mapping[str, str], *, is_guarded: bool
    ) -> Iterator[Snapshot]:
        self._call(lambda: self._commit(opened, files, properties, is_guarded))
        self._call(lambda: self._follow(opened.handle))
        return opened.snapshots()

    def _commit(self, opened: OpenTable, files: NewFiles, properties: Mapping[str, str], is_guarded: bool) -> None:
        table, iceberg = opened.handle.table, self._jvm.org.apache.iceberg
        delta = table.newRowDelta()
        if files.rows is not None:
            path, size = files.rows
            written = table.io().newInputFile(path)
            metrics = iceberg.parquet.ParquetUtil.fileMetrics(written, iceberg.MetricsConfig.forTable(table))
            made = iceberg.DataFiles.builder(table.spec()).withPath(path).withFormat("parquet")
            delta.addRows(made.withFileSizeInBytes(size).withMetrics(metrics).build())
        changed = self._jvm.java.util.ArrayList()
        former = {file.path: file.vector for file in opened.files}
        for path, vector in files.vectors.items():
            changed.add(path)
            delta.addDeletes(self._vector(table, path, vector))
            before = former[path]
            if before is not None:
                delta.removeDeletes(self._vector(table, path, before))
        if is_guarded:
            base = opened.snapshot
            if base is not None:
                delta.validateFromSnapshot(base.id)
            delta.conflictDetectionFilter(iceberg.expressions.Expressions.alwaysTrue())
            delta.validateDataFilesExist(changed)
            delta.validateDeletedFiles()
            delta.validateNoConflictingDataFiles()
            delta.validateNoConflictingDeleteFiles()
        for name, value in properties.items():
            delta.set(name, value)
        delta.commit()

    def _follow(self, handle: _Handle) -> None:
        """Keeps the known properties of a table after a commit of files, which leaves them as they are."""
        known = self._known.get(handle.name)
        metadata = handle.table.operations().current()
        former = metadata.previousFiles()
        if known is not None and former and former[len(former) - 1].file() == known[0] == handle.location:
            self._known[handle.name] = handle.state(), known[1]

    def _vector(self, table: Any, data_path: str, place: VectorPlace) -> Any:
        described = {
            "spec-id": table.spec().specId(),
            "content": "position-deletes",
            "file-path": place.path,
            "file-format": "puffin",
            "partition": [],
            "file-size-in-bytes": place.file_bytes,
            "record-count": place.row_count,
            "referenced-data-file": data_path,
            "content-offset": place.offset,
            "content-size-in-bytes": place.length,
        }
        iceberg = self._jvm.org.apache.iceberg
        return iceberg.ContentFileParser.fromJson(
            iceberg.util.JsonUtil.mapper().readTree(json.dumps(described)), table.spec()
        )

    def state(self, table: tuple[str, ...]) -> str | None:
        return self._metadata_location(table)

    def table_properties(self, table: tuple[str, ...]) -> Mapping[str, str] | None:
        if self._database is None:
            return self._read(lambda: self._catalog.loadTable(self._identifier(table)).properties())
        # A metadata file describes a table completely and never changes: it is read again only if the catalog names
        # another one. (Properties are read every few seconds for each table.)
        location = self._metadata_location(table)
        if location is None or not _is_there(location):
            self._known.pop(table, None)
            return None
        known = self._known.get(table)
        if known is None or known[0] != location:
            found = self._read(lambda: self._catalog.loadTable(self._identifier(table)).properties())
            if found is None:
                return None
            known = self._known[table] = (location, found)
        return dict(known[1])

    def _metadata_location(self, table: tuple[str, ...]) -> str | None:
        if self._database is None:
            return self._loaded_metadata_location(table)
        names = (CATALOG, ".".join(table[:-1]), table[-1])
        try:
            with closing(
                sqlite3.connect(f"{self._database.as_uri()}?mode=ro", uri=True, timeout=BUSY_S_MAX)
            ) as catalog:
                row = catalog.execute(_METADATA_LOCATION, names).fetchone()
        except sqlite3.Error:
            return None  # the catalog's file, or its table, does not exist
        return None if row is None else str(row[0])

    def _loaded_metadata_location(self, table: tuple[str, ...]) -> str | None:
        def read() -> str:
            loaded = self._catalog.loadTable(self._identifier(table))
            return str(loaded.operations().current().metadataFileLocation())

        try:
            return self._call(read)
        except SinkError as error:
            if error.__cause__ is not None and _is_missing(error.__cause__):
                return None
            raise

    def namespace_properties(self, namespace: tuple[str, ...]) -> Mapping[str, str] | None:
        return self._read(lambda: self._catalog.loadNamespaceMetadata(self._namespace(namespace)))

    def table_columns(self, table: tuple[str, ...]) -> Mapping[str, str]:
        def read() -> Any:
            schema = self._catalog.loadTable(self._identifier(table)).schema()
            return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(schema).fields()

        return {field.name(): field.dataType().catalogString() for field in self._call(read)}

    def evolve(
        self, table: tuple[str, ...], change: Evolution, found: Mapping[str, str], saved: Mapping[str, str]
    ) -> None:
        def work() -> None:
            loaded = self._catalog.loadTable(self._identifier(table))
            if dict(loaded.properties()) != found:
                raise Conflict
            # The transaction's base is the table as it was loaded: any commit in between makes it fail.
            transaction = loaded.newTransaction()
            if change.renamed:
                columns = transaction.updateSchema()
                for name, other in change.renamed:
                    columns = columns.renameColumn(name, other)
                columns.commit()
            if change:
                columns = transaction.updateSchema()
                for name in change.dropped:
                    columns = columns.deleteColumn(name)
                for name, kind in change.added:
                    columns = columns.addColumn(None, name, self._iceberg_type(kind))
                for name, kind in change.widened:
                    columns = columns.updateColumn(name, self._iceberg_type(kind))
                columns.commit()
            properties = transaction.updateProperties()
            for name, value in saved.items():
                properties = properties.set(name, value)
            properties.commit()
            transaction.commitTransaction()

        self._call(work)

    def _iceberg_type(self, kind: str) -> Any:
        spark_type = self._jvm.org.apache.spark.sql.types.DataType.fromDDL(kind)
        return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(spark_type)

    def drop(self, name: tuple[str, ...]) -> None:
        identifier = self._identifier(name)
        self._call(lambda: self._catalog.dropTable(identifier, False))
        if self._has_views:
            self._call(lambda: self._catalog.dropView(identifier))

    def close(self) -> None:
        """Does nothing: a session is only settings, and the JVM is the process's."""

    def _read(self, properties: Callable[[], Any]) -> Mapping[str, str] | None:
        if not self._is_there():
            return None
        try:
            return dict(properties())
        except _FAILURES as error:
            if _is_missing(error):
                return None
            raise self._failure(error) from error

    def _is_there(self) -> bool:
        """Says whether the file exists: an open connection continues to read a deleted file."""
        if self._database is None:
            return True
        try:
            return self._database.stat().st_ino == self._opened
        except FileNotFoundError:
            return False

    def _namespace(self, parts: tuple[str, ...]) -> Any:
        return self._jvm.org.apache.iceberg.catalog.Namespace.of(java_strings(self._session, parts))

    def _identifier(self, name: tuple[str, ...]) -> Any:
        return self._jvm.org.apache.iceberg.catalog.TableIdentifier.of(self._namespace(name[:-1]), name[-1])

    def _call(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except _FAILURES as error:
            if any(name in _CONFLICTS for name, _ in _causes(error)):
                raise Conflict from error
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> SinkError:
        wait_s = JVM_END_S_MAX if is_cut_off(error) else 0.0
        return jvm_failure(self._session, wait_s) or _sink_error(error)


def _data_file(task: Mapping[str, Any]) -> DataFile | None:
    """Returns the file of a task of Iceberg's scan (its JSON); None if it is of another kind than ours."""
    file, deletes = task["data-file"], task.get("delete-files", [])
    if file["file-format"] != "parquet" or file.get("partition") or "key-metadata" in file or len(deletes) > 1:
        return None
    vector = None
    for found in deletes:
        if found["file-format"] != "puffin":
            return None
        vector = VectorPlace(
            found["file-path"],
            found["file-size-in-bytes"],
            found["content-offset"],
            found["content-size-in-bytes"],
            found["record-count"],
        )
    return DataFile(file["file-path"], file["record-count"], vector)


def _is_there(location: str) -> bool:
    """Says whether a metadata file exists. For a store elsewhere the catalog is trusted."""
    path = location.removeprefix("file:")
    return path == location or Path(path).exists()


def _sink_error(error: Exception) -> SinkError:
    """Returns an error with the class and the first line of the innermost cause: no statement, no rows."""
    name, message = next(reversed(list(_causes(error))), (type(error).__name__, str(error)))
    reason = (message.splitlines() or [""])[0][:REASON_CHARS_MAX]
    return SinkError(
        f"warehouse: {name.rpartition('.')[2]}: {reason}",
        "check catalog and location in the sink's section, and that they can be reached and written",
    )


def _is_missing(error: BaseException) -> bool:
    return any(name in _MISSING for name, _ in _causes(error))


def _causes(error: BaseException) -> Iterator[tuple[str, str]]:
    """Returns (class, message) of a Java exception and its causes, outermost first."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    for _ in range(CAUSES_MAX):
        if cause is None:
            return
        yield cause.getClass().getName(), str(cause.getMessage())
        cause = cause.getCause()
