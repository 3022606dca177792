"""The exceptions to the repository's rules that tests/test_tidy.py enforces, each with its reason."""

# `path::name`, or `path` of a file: reason. What reads better whole.
LONG_FUNCTIONS: dict[str, str] = {}

# `path::name`: reason. Functions with more than PARAMETERS_MAX parameters.
_COMMAND = "each parameter is an option of the command"
WIDE_FUNCTIONS: dict[str, str] = {
    "operations/cli/snapshot.py::start": _COMMAND,
    "operations/cli/demo.py::demo": _COMMAND,
}

# Packages with modules that import each other in a circle: which do.
CIRCULAR: dict[str, str] = {
    "tests": "simulation.mixed.run and simulation.mixed.process",
}

# Source files without a test file of their own: what tests them, and why there.
_CAPTURE = "tests/integration/test_capture.py"
_SINK_RUN = "tests/integration/test_sink_run.py"
_WAIT = "tests/integration/test_wait.py"
_TEARDOWN = "tests/integration/test_teardown.py"
_CHECK_STORES = "tests/integration/test_check_stores.py"
_VERIFY = "tests/integration/test_verify.py"
_VIEWS = "tests/integration/test_views.py"
_VIEW_MAINTENANCE = "tests/integration/test_view_maintenance.py"
_VIEW_TOPIC = "tests/integration/test_view_topic.py"
_EVENT_LOG = "tests/integration/test_event_log.py"
COVERED_ELSEWHERE: dict[str, str] = {
    "operations/cli/view_readers.py": f"{_VIEWS}: the base of a real server, which goes away",
    "views/figures.py": f"{_VIEWS}: figures of a real database",
    "views/topic_writer.py": f"{_VIEW_TOPIC}: transactions of a real broker",
    "operations/cli/event_log.py": f"{_EVENT_LOG}: commands on a log of a real topic",
    "views/event_records.py": f"{_EVENT_LOG}: topics of a real broker",
    "views/event_log.py": f"{_EVENT_LOG}: a job that is killed, on a real topic and database",
    "views/event_log_base.py": f"{_EVENT_LOG}: statements on a real database",
    "views/event_log_figures.py": f"{_EVENT_LOG}: figures of a real log",
    "views/event_log_tables.py": f"{_EVENT_LOG}: statements on a real database",
    "views/clock.py": "tests/integration/test_view_clock.py: minutes in a real database",
    "views/published.py": f"{_VIEW_TOPIC}: notes in a real database of what a real topic holds",
    "views/targets.py": f"{_VIEW_TOPIC}: a topic of a real broker",
    "views/topic.py": f"{_VIEW_TOPIC}: a topic of a real broker, written by jobs that are killed",
    "views/connection.py": f"{_VIEW_MAINTENANCE}: errors of a real database",
    "views/states.py": f"{_VIEW_MAINTENANCE}: statements on a real database",
    "views/base.py": f"{_VIEW_MAINTENANCE}: statements on a real database",
    "views/folding.py": "tests/integration/test_view_folds.py: events and snapshots of a real database",
    "views/triggers.py": "tests/integration/test_view_locks.py: triggers of a real database",
    "views/statements.py": f"{_VIEW_MAINTENANCE}: statements on a real database",
    "cdc/daemon/first_start.py": f"{_CAPTURE}: wiring of real servers at the first start",
    "cdc/daemon/record_making.py": f"{_CAPTURE}: limits of real topics in every session",
    "cdc/daemon/topic_identity.py": "tests/integration/test_topic_identity.py: topics of a real broker",
    "cdc/daemon/adding_tables.py": "tests/integration/test_joining.py: tables added to a real publication",
    "cdc/daemon/outbox_setup.py": "tests/integration/test_outbox.py: wiring of real servers in every session",
    "operations/cli/outbox.py": "tests/integration/test_outbox.py: creates and prunes in a real database",
    "migrations/env.py": "tests/integration/test_outbox.py: Alembic executes it, in a real database",
    "migrations/versions/table_0001.py": "tests/integration/test_outbox.py: creates in a real database",
    "migrations/versions/function_0002.py": "tests/integration/test_outbox.py: publishes in a real database",
    "watershed_client/outbox.py": "tests/integration/test_outbox.py: sessions on a real database",
    "cdc/postgres/seal_key.py": "tests/integration/test_outbox.py: the key of a real database",
    "operations/cli/outbox_rows.py": "tests/integration/test_outbox.py: rows of a real database",
    "cdc/config/section.py": "tests/unit/configuration/test_settings.py: names and errors of every section",
    "cdc/daemon/streaming_session.py": f"{_CAPTURE}: wiring of real servers in every session",
    "operations/cli/check.py": "tests/integration/test_check.py: broken set-ups of real servers",
    "operations/cli/interrupts.py": "tests/integration/test_snapshot_command.py: Ctrl-C at a command that waits",
    "operations/cli/rebuild.py": "tests/integration/test_rebuild.py: a job that answers, or is started",
    "spark_jobs/building.py": "tests/integration/test_rebuild.py: a query beside another",
    "sinks/slots.py": "tests/unit/sinks/search/test_slots.py: slots of a real index",
    "operations/cli/init.py": "tests/integration/test_init.py: a real database, whose file is then checked",
    "operations/cli/status.py": "tests/integration/test_readiness.py: a pipeline of real servers",
    "operations/cli/teardown.py": f"{_TEARDOWN}: what was made on real servers",
    "sinks/cache/removal.py": f"{_TEARDOWN}: keys of a real server",
    "sinks/search/removal.py": f"{_TEARDOWN}: indexes of a real server",
    "sinks/sql/removal.py": f"{_TEARDOWN}: tables of a real server",
    "sinks/warehouse/teardown.py": f"{_TEARDOWN}: tables of a real catalog",
    "sinks/check.py": f"{_CHECK_STORES}: broken set-ups of real servers",
    "sinks/cache/check.py": f"{_CHECK_STORES}: broken set-ups of a real server",
    "sinks/search/check.py": f"{_CHECK_STORES}: broken set-ups of a real server",
    "sinks/contract.py": "tests/conformance/test_notes.py: every store follows it",
    "watershed_client/waiting.py": f"{_WAIT}: a store that is written meanwhile",
    "operations/findings/capture.py": "tests/integration/test_check.py: broken set-ups of real servers",
    "operations/http/server.py": "tests/integration/test_readiness.py: in a capture process",
    "operations/http/waits.py": "tests/unit/operations/http/test_routes.py: requests that wait, over a socket",
    "watershed_client/pipeline_watch.py": f"{_WAIT}: topics of a real broker",
    "monitoring/topic_facts.py": "tests/integration/test_readiness.py: topics of a real broker",
    "configuration/findings.py": "tests/integration/test_check.py: made of errors of real servers",
    "operations/setup/prospects.py": "tests/integration/test_init.py: a real database",
    "watershed_client/source_reader.py": "tests/integration/test_readiness.py: slots of a real server",
    "operations/findings/source.py": "tests/integration/test_check.py: broken set-ups of a real server",
    "monitoring/model.py": "tests/unit/monitoring/test_problems.py: which problems concern which process",
    "operations/cli/verify.py": f"{_VERIFY}: a pipeline of real servers",
    "verification/source_rows.py": f"{_VERIFY}: rows of a real server",
    "sinks/cache/contents.py": "tests/conformance/test_contents.py: rows of a real server",
    "sinks/search/contents.py": "tests/conformance/test_contents.py: documents of a real server",
    "sinks/contents.py": f"{_VERIFY}: contents of real stores",
    "sinks/warehouse/slots.py": "tests/unit/spark_jobs/test_warehouse_slots.py: with a real Spark session",
    "spark_jobs/archive_maker.py": "tests/unit/spark_jobs/test_class_archive.py: a session maps what it made",
    "spark_jobs/removal.py": "tests/faults/drift_campaign.py: in a Spark session of its own",
    "monitoring/children.py": "tests/unit/spark_jobs/test_bootstrap.py: a sink's process that ends with its parent",
    "monitoring/comparisons.py": "tests/unit/verification/test_history.py: what runs add to a record",
    "verification/model.py": f"{_VERIFY}: what a pipeline's comparison has found",
    "operations/cli/run.py": f"{_CAPTURE}: started as a user does, as a process",
    "operations/cli/demo.py": "tests/integration/test_demo.py: started as a user does, as a process",
    "cdc/kafka/state_reader.py": f"{_CAPTURE}: reads what capture wrote to a real broker",
    "cdc/kafka/compacted.py": "tests/integration/test_topics.py: reads topics of a real broker",
    "watershed_client/signal_sender.py": "tests/integration/test_signals.py: signals and answers through a real broker",
    "cdc/kafka/signals.py": "tests/integration/test_signals.py: signals and answers through a real broker",
    "watershed_client/compacted_tail.py": "tests/integration/test_signals.py: reads topics of a real broker",
    "cdc/kafka/topic_keys.py": "tests/integration/test_topic_keys.py: reads topics of a real broker",
    "cdc/ports/source_table.py": "tests/unit/cdc/tables/test_selection.py: tables that can't be read in chunks",
    "cdc/postgres/catalog.py": "tests/integration/test_values.py: reads a real server's catalog",
    "cdc/postgres/chunk_table.py": "tests/integration/test_chunk_keys.py: indexes and types in a real server's catalog",
    "cdc/postgres/chunks.py": "tests/integration/test_chunks.py: chunks and marks of a real server",
    "cdc/postgres/connection.py": f"{_CAPTURE}: opens and loses connections to a real server",
    "cdc/postgres/transaction_barrier.py": "tests/integration/test_chunk_waits.py: transactions of a real server",
    "cdc/postgres/connection_worker.py": "tests/integration/test_chunk_waits.py: ends while a real server hangs",
    "cdc/postgres/exported_snapshot.py": "tests/integration/test_values.py: COPY from a real server",
    "cdc/postgres/replication.py": "tests/integration/test_values.py: the stream of a real server",
    "cdc/postgres/source.py": f"{_CAPTURE}: asks a real server what is wrong with it",
    "cdc/postgres/catalog_facts.py": "tests/integration/test_schema_changes.py: a real server's catalog",
    "cdc/postgres/catalog_poll.py": "tests/integration/test_schema_changes.py: tables altered on a real server",
    "verification/table_rows.py": "tests/integration/test_table_rows.py: rows as a real server prints them",
    "sinks/sql/check.py": "tests/integration/test_sql_sink.py: cdc check of a real database",
    "sinks/sql/tables.py": "tests/unit/sinks/sql/test_preparation.py: shapes that are refused, in real databases",
    "sinks/warehouse/staged_files.py": "tests/unit/sinks/warehouse/test_staging.py: files of staged rows",
    "spark_jobs/reading.py": "tests/integration/test_reading.py: topics of a real broker",
    "spark_jobs/session.py": f"{_SINK_RUN}: starts Spark",
}
