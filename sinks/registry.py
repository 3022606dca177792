"""Opens what a store's section names as its parts. A client library is imported only when a part that needs it is used.

`prefix` is the topic prefix, with which the store's names begin unless the section sets another.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any

from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from configuration.findings import Finding
from configuration.sink_settings import StoreConfig
from sinks.check import held
from sinks.contents import Removal, StoreContents
from sinks.contract import Sink
from sinks.errors import RefusedError, SinkError
from sinks.lineage import Lineage
from sinks.shaping.sink import shaped
from sinks.shaping.table import TableShape
from sinks.slots import Slots


def make_sink(name: str, section: StoreConfig, prefix: str, slot: str | None = None) -> Sink:
    """Opens the sink: connects to its store and checks it. Rows are written in the shape of the section's mapping.

    `slot`: of the generation to write, see sinks.slots; None: of the one that readers see. Raises SinkError if the
    client library is not installed or the store can't be used. A warehouse needs a Spark session, so the job that has
    one opens it.
    """
    if section.parts.sink is None:
        raise SinkError(f"the {section.type} {name} is written by Spark", f"cdc sink run {name}")
    options = {} if slot is None else {"slot": slot}
    opened: Sink = _part(section, section.parts.sink).open(section, prefix, name=name, **options)
    return shaped(opened, section)


def open_contents(name: str, section: StoreConfig, prefix: str, removal: Removal | None = None) -> StoreContents:
    """Opens the contents. `removal`: for a warehouse from which rows are to be removed. Raises SinkError if the client
    library is not installed, or no server answers.
    """
    if section.parts.contents is None:
        raise SinkError(f"the store of sink {name} can't be compared", "name other sinks by --sink")
    opened: StoreContents = _part(section, section.parts.contents).open(section, prefix, name)
    opened.removal = removal
    return opened


def open_slots(section: StoreConfig, prefix: str) -> Slots | None:
    """Opens the slots of a store; None for a store that can hold only one generation, and for a warehouse, whose slots
    need a Spark session.
    """
    if section.parts.slots is None:
        return None
    opened: Slots = _part(section, section.parts.slots)(section, prefix)
    return opened


def store_findings(name: str, section: StoreConfig, prefix: str, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields the findings of `cdc check` about the store of this sink: whether it answers, and can take the tables that
    the sink is to hold. Writes nothing to it. `schemas`: of the captured tables."""
    try:
        if section.parts.findings is not None:
            findings = _part(section, section.parts.findings)
            yield from findings(name, section, prefix, _stored(name, section, schemas))
            return
        with closing(make_sink(name, section, prefix)) as sink:
            yield Finding(f"store {name}", "ok", held(sink.generation))
    except WatershedError as error:
        yield Finding.failed(f"store {name}", error)


def store_contents(
    name: str, section: StoreConfig, prefix: str, tables: Collection[TableId], *, removes: bool
) -> list[str]:
    """Returns the names of what the sink has made in its store; with `removes`, it is removed, all generations of it,
    and what others made stays. `tables`: those that the sink was to hold. Idempotent, and may be killed at any point.
    Raises SinkError."""
    if section.parts.removal is None:
        raise SinkError(
            f"teardown does not know what stores of type {section.type} hold",
            f"remove what the sink {name} created with that store's own tools",
        )
    if removes and (slots := open_slots(section, prefix)) is not None:
        with closing(slots):
            for slot in slots.others():
                slots.drop(slot)
    found: list[str] = _part(section, section.parts.removal)(section, prefix, tables, removes=removes)
    return found


def _part(section: StoreConfig, named: str) -> Any:
    """Imports `module:name`. Raises SinkError if the client library of the section is not installed."""
    module, _, name = named.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        # Where something else is missing, that advice would not help.
        if section.needs is None or (error.name or "").partition(".")[0] != section.needs[0]:
            raise
        library, extra = section.needs
        raise SinkError(
            f"the sink {extra} needs the Python package {library}", f"pip install 'watershed-cdc[{extra}]'"
        ) from error


def _stored(name: str, section: StoreConfig, schemas: Sequence[TableSchema]) -> list[TableSchema]:
    """Returns the tables as the store gets them. A mapping that does not fit its table is a finding of its own."""
    found = []
    for schema in schemas:
        if schema.key and section.holds(schema.table):
            try:
                found.append(TableShape(name, section, Lineage((schema,))).schema)
            except RefusedError:
                continue
    return found
