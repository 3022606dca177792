"""Opens the servers of a view: its base, and its target, which is the store of a sink's kind or a topic."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Final

from cdc.config.config_file import Config
from cdc.config.event_logs import log_table
from cdc.config.stores import SearchConfig, SqlConfig, StoreConfig, WarehouseConfig, sink_config
from cdc.config.views import MINUTES, TopicTarget, target_prefix, view_topics
from cdc.kafka.state_reader import read_in_force
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.findings import Finding
from sinks.errors import SinkError
from sinks.registry import make_sink, open_slots, store_contents, store_findings
from sinks.slots import Slots
from watershed.views.base import Base
from watershed.views.definition import SCHEMA_OF_VIEWS
from watershed.views.statements import schema_of
from watershed.views.target import Gathering, TargetGenerations, ViewTarget
from watershed.views.topic import Published, TopicSink

KEYS_PER_COMMIT_MAX: Final = 10_000


def open_base(settings: Config, name: str) -> Base:
    """Connects to the base of this view. Raises SinkError, UnreachableError."""
    section = base_section(settings, name)
    settings = read_in_force(settings)
    kept = [table for table in settings.source.stored_table_ids if section.holds(table)]
    base = settings.views[name].base
    kept += [log_table(log) for log, of_log in settings.event_logs.items() if of_log.base == base]
    return Base(section, settings.topics.prefix, [*kept, MINUTES])


OpenWarehouse = Callable[[str, WarehouseConfig], ViewTarget]  # by the view's name


def open_target(settings: Config, name: str, open_warehouse: OpenWarehouse | None = None) -> ViewTarget:
    """Connects to the target of this view. `open_warehouse`: of a process that has Spark. Raises SinkError."""
    target = settings.views[name].target
    if isinstance(target, TopicTarget):
        return open_topic(settings, name, target)
    if isinstance(target, WarehouseConfig):
        if open_warehouse is None:
            raise SinkError(f"the target of view {name} is written by Spark", f"cdc view run {name}")
        return open_warehouse(name, target)
    return make_sink(name, target, target_prefix(settings.topics.prefix, name))


def target_generations(settings: Config, name: str) -> TargetGenerations | None:
    """Returns the generations of this view's target; None if the target holds only one."""
    target = settings.views[name].target
    if not isinstance(target, SearchConfig | SqlConfig):
        return None
    prefix = target_prefix(settings.topics.prefix, name)
    return TargetGenerations(partial(_slots, target, prefix), partial(make_sink, name, target, prefix))


def _slots(target: SearchConfig | SqlConfig, prefix: str) -> Slots:
    slots = open_slots(target, prefix)
    assert slots is not None, "a search index and a SQL database hold several generations"
    return slots


def gathering(settings: Config, name: str) -> Gathering:
    """Returns when this view is written."""
    view = settings.views[name]
    if isinstance(view.target, WarehouseConfig):
        return Gathering(KEYS_PER_COMMIT_MAX, settings.spark.warehouse_trigger_ms / 1000)
    return Gathering(view.keys_per_batch)


def target_findings(settings: Config, name: str, schema: TableSchema) -> Iterator[Finding]:
    """Yields what `cdc view check` finds about the target of rows with this schema; writes nothing to it."""
    target = settings.views[name].target
    if not isinstance(target, TopicTarget):
        yield from store_findings(name, target, target_prefix(settings.topics.prefix, name), [schema])
        yield from _layout_findings(name, target, schema)
        return
    try:
        with closing(open_topic(settings, name, target)) as topic:
            yield from topic.findings(f"target of view {name}")
    except WatershedError as error:
        yield Finding.failed(f"target of view {name}", error)


def _layout_findings(name: str, target: StoreConfig, schema: TableSchema) -> Iterator[Finding]:
    """Yields what of a warehouse's table can't be as its section says; nothing where it can."""
    if not isinstance(target, WarehouseConfig):
        return
    with suppress(ModuleNotFoundError):  # which is a finding of the store
        from sinks.warehouse.layout import layout_of

        try:
            layout_of(target.shape(schema.table), schema)
        except WatershedError as error:
            yield Finding.failed(f"target of view {name}", error)


def target_contents(settings: Config, name: str, *, removes: bool) -> list[str]:
    """Returns the names of what the view has made in its target; with `removes`, it is removed. Idempotent."""
    target = settings.views[name].target
    if isinstance(target, TopicTarget):
        topic = view_topics(settings.views, settings.topics.prefix)[name]
        admin = TopicAdmin(settings.kafka)
        found = list(admin.describe([topic]))
        if removes:
            admin.delete(found)
        return found
    if removes and (generations := target_generations(settings, name)) is not None:
        generations.drop_others()
    table = TableId(SCHEMA_OF_VIEWS, name)
    return store_contents(name, target, target_prefix(settings.topics.prefix, name), [table], removes=removes)


def open_topic(settings: Config, name: str, target: TopicTarget) -> TopicSink:
    published = Published(base_section(settings, name), schema_of(settings.topics.prefix), name)
    return TopicSink(name, target, settings, published)


def base_section(settings: Config, name: str) -> SqlConfig:
    """Returns the section of the sink that keeps the tables of this view."""
    section = sink_config(settings.sinks, settings.views[name].base)
    assert isinstance(section, SqlConfig), "the configuration was checked"
    return section
