"""OpenLineage's events about a sink: which topics it reads, what it writes of them, and how columns follow. Pure.

A run begins when the sink continues a generation, and ends with an error, a request to stop, or another generation.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from cdc import __version__
from cdc.config.config_file import Config
from cdc.config.stores import StoreConfig
from cdc.model.events import TableId, TableSchema
from cdc.model.lsn import format_lsn
from sinks.datasets import Dataset, store_dataset, topic_dataset
from sinks.schema_history import SchemaHistory
from sinks.shaping.bounds import FLAG
from sinks.shaping.table import TableShape

EventType = Literal["START", "RUNNING", "COMPLETE", "FAIL"]
Facet = dict[str, Any]
PRODUCER: Final = f"urn:watershed-cdc:{__version__}"
SPEC: Final = "https://openlineage.io/spec"
EVENT_SCHEMA: Final = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
TABLES_MAX: Final = 1_000  # with their columns in one event; further ones are named without


@dataclass(frozen=True, slots=True)
class SinkRun:
    """One generation of a sink, from an attempt to continue it until the attempt ends."""

    run_id: str  # a UUID
    sink: str
    generation: int
    role: str
    section: StoreConfig  # with the mappings with which rows are written
    histories: Callable[[], Mapping[TableId, SchemaHistory]]  # of the tables that the store holds, as known now


@dataclass(frozen=True, slots=True)
class Position:
    """What readers of the generation see."""

    applied_lsn: int = 0
    written: int = 0  # changes, since the run began


class LineageEvents:
    """Makes the events of one run."""

    def __init__(self, config: Config, run: SinkRun) -> None:
        self._config = config
        self._prefix = config.topics.prefix
        self._run = run
        self._job = {
            "namespace": config.telemetry.openlineage_namespace or self._prefix,
            "name": f"{self._prefix}.{run.sink}",
            "facets": {
                "jobType": _facet(
                    "2-0-4/JobTypeJobFacet", processingType="STREAMING", integration="WATERSHED", jobType="JOB"
                )
            },
        }

    def event(
        self,
        kind: EventType,
        at_us: int,
        position: Position = Position(),
        *,
        tables: Collection[TableId] | None = None,
        described: Collection[TableId] = (),
        error: str = "",
    ) -> dict[str, Any]:
        """Returns an event. `tables`: those that it names; None: all. `described`: those of them whose columns it has.
        `error`: for FAIL."""
        histories = self._run.histories()
        named = sorted(histories if tables is None else histories.keys() & set(tables))
        with_columns = frozenset(sorted(described)[:TABLES_MAX])
        pairs = [self._datasets(histories[table], is_described=table in with_columns) for table in named]
        facets: Facet = {
            "processing_engine": _facet(
                "1-1-1/ProcessingEngineRunFacet",
                version=__version__,
                name="watershed",
                openlineageAdapterVersion=__version__,
            ),
            "watershed": {
                "_producer": PRODUCER,
                "_schemaURL": f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunFacet",
                "generation": self._run.generation,
                "role": self._run.role,
                "appliedLsn": format_lsn(position.applied_lsn),
                "written": position.written,
            },
        }
        if error:
            facets["errorMessage"] = _facet("1-0-1/ErrorMessageRunFacet", message=error, programmingLanguage="PYTHON")
        return {
            "eventType": kind,
            "eventTime": datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="milliseconds"),
            "run": {"runId": self._run.run_id, "facets": facets},
            "job": self._job,
            "inputs": [pair[0] for pair in pairs],
            "outputs": [pair[1] for pair in pairs],
            "producer": PRODUCER,
            "schemaURL": EVENT_SCHEMA,
        }

    def _datasets(self, history: SchemaHistory, *, is_described: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the topic and the store's table."""
        schema = history.newest
        source = topic_dataset(self._config.kafka.bootstrap_servers, schema.topic)
        target = store_dataset(self._run.section, self._prefix, schema.table)
        if not is_described:
            return _dataset(source, {}), _dataset(target, {})
        shape = TableShape(self._run.sink, self._run.section, history, checks_excluded=False)
        lineage = _facet("1-2-0/ColumnLineageDatasetFacet", fields=column_lineage(shape, source))
        return (
            _dataset(source, {"schema": _schema(schema)}),
            _dataset(target, {"schema": _schema(shape.schema), "columnLineage": lineage}),
        )


def column_lineage(shape: TableShape, source: Dataset) -> dict[str, Any]:
    """Returns the columns of the topic from which each column of the store is made; none for a constant."""
    masked, bounded = shape.masks, shape.bounds
    found: dict[str, Any] = {stored: {"inputFields": []} for stored in shape.constants}
    for column, stored in shape.names.items():
        is_same = column not in masked and column not in shape.texts
        found[stored] = _from(source, [column], is_same=is_same, is_masked=column in masked)
        if column in bounded:
            found[stored + FLAG] = _from(source, [column], is_same=False)
    for stored, expression in shape.computed.items():
        found[stored] = _from(source, sorted(expression.columns), is_same=False)
    if shape.function is not None:
        found |= {one: _from(source, sorted(shape.function.reads), is_same=False) for one in shape.function.types}
    return found


def _from(source: Dataset, columns: Sequence[str], *, is_same: bool, is_masked: bool = False) -> dict[str, Any]:
    transformation = {
        "type": "DIRECT",
        "subtype": "IDENTITY" if is_same else "TRANSFORMATION",
        "description": "",
        "masking": is_masked,
    }
    return {
        "inputFields": [
            {**source._asdict(), "field": column, "transformations": [transformation]} for column in columns
        ]
    }


def _dataset(dataset: Dataset, facets: Mapping[str, Facet]) -> dict[str, Any]:
    return {**dataset._asdict(), "facets": dict(facets)}


def _schema(schema: TableSchema) -> Facet:
    return _facet(
        "1-2-0/SchemaDatasetFacet", fields=[{"name": one.name, "type": one.type_name} for one in schema.columns]
    )


def _facet(schema: str, **fields: Any) -> Facet:
    """`schema`: version and name of the facet in OpenLineage's specification."""
    name = schema.partition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{schema}.json#/$defs/{name}", **fields}
