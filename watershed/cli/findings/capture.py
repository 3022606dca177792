"""Findings of `cdc check`: what `cdc run` would find at a start, for source, brokers and history; all of it, not just
the first failure.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from cdc.config.config_file import Config
from cdc.daemon.matched_tables import read_matches, with_matches
from cdc.daemon.outbox_setup import open_outbox, require_format
from cdc.daemon.record_making import check_encoding
from cdc.daemon.service import Service
from cdc.kafka.state_reader import read_selection
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription
from cdc.model.errors import WatershedError
from cdc.model.findings import Finding
from cdc.model.topics import Topics
from cdc.ports.source_table import SourceTable
from cdc.postgres.connection import connect
from cdc.postgres.source import Source, check_source
from cdc.tables.matching import idle_patterns, require_tables
from watershed.cli.failpoints import armed_probe
from watershed.cli.findings.source import SOURCE, source_findings
from watershed.cli.findings.topics import (
    BROKERS,
    broker_setting_findings,
    creation_findings,
    existing_topic_findings,
)

MATCHED: Final = "source.tables"
ENCODING: Final = "format.encoding"


def capture_findings(config: Config, tables: list[SourceTable]) -> Iterator[Finding]:
    """Checks the source; writes nothing. Adds the tables that can be captured to `tables`."""
    is_source_well, are_brokers_well = True, True
    config, found = _matched(config)
    yield from found
    for finding in _source(config, tables):
        is_source_well = is_source_well and finding.level != "fail"
        yield finding
    yield from _formats(config, tables)
    for finding in broker_findings(config):
        are_brokers_well = are_brokers_well and finding.level != "fail"
        yield finding
    if are_brokers_well:
        yield from encoding_findings(config)
    if is_source_well and are_brokers_well:
        yield from _history(config)


def _matched(config: Config) -> tuple[Config, list[Finding]]:
    """Returns the configuration with the tables that its patterns take, and what there is to say about them."""
    patterns = config.source.choice.patterns
    if not patterns:
        return config, []
    try:
        record = read_selection(config)
    except WatershedError:
        record = None  # unreachable brokers are another finding
    try:
        matches = read_matches(config, record)
        require_tables(config.source, matches)
    except WatershedError as error:
        return config, [Finding.failed(MATCHED, error)]
    found = [Finding(MATCHED, "ok", f"{', '.join(patterns)} match {len(matches.taken)} tables")]
    found += [
        Finding(MATCHED, "warn", f"{pattern} matches no table yet", "correct it, unless it is for tables to come")
        for pattern in idle_patterns(config.source, matches)
    ]
    found += [Finding(f"table {table}", "warn", error.message, error.hint) for table, error in matches.stopped.items()]
    if matches.ignored:
        names = ", ".join(map(str, matches.ignored))
        why = f"{names} began to match later, and are left out by source.new_tables"
        found.append(Finding(MATCHED, "ok", why))
    return with_matches(config, matches), found


def _source(config: Config, tables: list[SourceTable]) -> Iterator[Finding]:
    try:
        with connect(config.source, application="watershed check") as connection:
            yield from source_findings(connection, config.source, config.snapshot, tables)
    except WatershedError as error:
        yield Finding.failed(SOURCE, error)


def _formats(config: Config, tables: Sequence[SourceTable]) -> Iterator[Finding]:
    try:
        outbox = open_outbox(config, promises_utf8=True)
    except WatershedError as error:
        yield Finding.failed("outbox", error)
        return
    for table in tables:
        try:
            require_format(config, outbox, table)
        except WatershedError as error:
            yield Finding.failed(f"table {table.table}", error)
    if outbox is not None:
        yield Finding("outbox", "ok", "everything that events need exists")


def encoding_findings(config: Config) -> Iterator[Finding]:
    """Checks the encoding of topics that exist already, and the schema registry if records need one."""
    try:
        check_encoding(config)
    except WatershedError as error:
        yield Finding.failed(ENCODING, error)
        return
    registry, encoding = config.kafka.schema_registry, config.format.encoding
    if encoding != "json" and registry is not None:
        yield Finding(ENCODING, "ok", f"schema registry {registry.url} answers, and takes schemas of {encoding}")


def broker_findings(config: Config) -> Iterator[Finding]:
    """Checks the brokers, and topics that exist already."""
    topics = Topics(config.topics.prefix)
    keyless = [topics.table(table) for table in config.source.table_ids if config.source.chosen(table).key == ()]
    try:
        admin = TopicAdmin(config.kafka, frozenset([*keyless, topics.dead_letter]))
        count = admin.broker_count()
    except WatershedError as error:
        yield Finding.failed(BROKERS, error)
        return
    factor = config.topics.replication_factor
    if factor is None:
        yield Finding(BROKERS, "ok", f"{count} brokers answer, topics have as many replicas as these give them")
    elif factor > count:
        yield Finding(
            BROKERS,
            "fail",
            f"topics.replication_factor is {factor}, and there are {count} brokers",
            f"topics.replication_factor: {count}",
        )
    elif factor == 1 and count >= 3:
        yield Finding(
            BROKERS,
            "warn",
            f"there are {count} brokers, but topics.replication_factor is 1: losing one broker loses topics",
            "topics.replication_factor: 3",
        )
    else:
        yield Finding(BROKERS, "ok", f"{count} brokers answer, topics have {factor} replicas")
    own = [topics.state, topics.control, topics.progress]
    tables = [topics.table(table) for table in config.source.table_ids]
    existing: dict[str, TopicDescription] = {}
    kept = [topics.signals, topics.audit]
    for name in [*tables, topics.dead_letter, *own, *kept]:
        try:
            existing |= admin.describe([name])
            if name not in kept:
                admin.check([name])
            if name in own:
                admin.check_single([name], [])
            elif name in (*kept, *keyless):
                admin.check_single([], [name])
        except WatershedError as error:
            yield Finding.failed(f"topic {name}", error)
    yield from existing_topic_findings(existing.values(), config.topics, frozenset(tables).difference(keyless))
    names = {*tables, *own, *kept}
    yield from broker_setting_findings(config, admin, are_created=not names <= existing.keys(), broker_count=count)
    if factor is None or factor <= count:  # otherwise each topic would be refused for the same reason
        yield from creation_findings(config, admin)
    yield Finding("topics", "ok", f"{len(existing)} exist, the others are created at the first start")


def _history(config: Config) -> Iterator[Finding]:
    try:
        source: Source = check_source(config.source, config.snapshot, is_running_on=True)
        Service(config, armed_probe({})).check_history(source)
    except WatershedError as error:
        yield Finding.failed("history", error)
    else:
        yield Finding("history", "ok", "capture can start: for the first time, or from its last position")
