"""Observes the demo's views as their readers do: a document, the revenue of hours, and alerts that start and stop."""

import threading
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from typing import Final

import psycopg
from opensearchpy import OpenSearch

from cdc.config.config_file import Config
from cdc.config.stores import SearchConfig, SqlConfig
from cdc.config.views import TopicTarget, target_prefix
from cdc.model.errors import WatershedError
from cdc.postgres.connection import connect
from sinks.registry import make_sink
from sinks.search.names import SearchNames
from watershed.demo.alert_topic import Alerts, AlertTopic, stored_alerts
from watershed.demo.followed import ORDER, document
from watershed.demo.shop_views import DOCUMENTS, REVENUE, SHOP_VIEWS, ShopView
from watershed.demo.view_figures import Revenue, ViewsNow
from watershed.verify.comparison import SourceRows, compare
from watershed.verify.model import TableResult
from watershed.views.base import Base
from watershed.views.maintainer import RowEncoder, define
from watershed.views.targets import open_base

INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 10
STOP_TIMEOUT_S: Final = 15.0


class ViewWatch:
    """Reads the views in a separate thread, between start() and stop()."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.revenue, self.alerts = Revenue(), Alerts()
        self._now: ViewsNow | None = None
        self._stopping = threading.Event()
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="views", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def check(self) -> None:
        """Raises WatershedError if the thread has failed, or a view has stopped."""
        if self._errors:
            raise WatershedError(f"the demo can't read its views: {self._errors[0]}") from self._errors[0]

    def now(self) -> ViewsNow | None:
        """Returns the views as they were read last; None before."""
        return self._now

    def are_current(self) -> bool:
        """Returns whether every change that the base has was written to the views. Asks the base."""
        with open_base(self._config, DOCUMENTS.name) as base:
            base.install()  # before the views run for the first time, it has no state of them
            return _waiting(base) == 0

    def compared(self) -> list[TableResult]:
        """Compares every row of each view with its query over the source, which is not written meanwhile."""
        return [compare_view(self._config, view) for view in SHOP_VIEWS]

    # ---- the thread

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - handed to check(), in the thread that can report it
            if not self._stopping.is_set():
                self._errors.append(error)

    def _watch(self) -> None:
        targets = {name: view.target for name, view in self._config.views.items()}
        search, revenue = targets[DOCUMENTS.name], targets[REVENUE.name]
        assert isinstance(search, SearchConfig) and isinstance(revenue, SqlConfig), "the demo's configuration"
        client = OpenSearch([search.url.get_secret_value()], timeout=TIMEOUT_S)
        alias = SearchNames(target_prefix(self._config.topics.prefix, DOCUMENTS.name)).alias(DOCUMENTS.table)
        with (
            closing(AlertTopic(self._config)) as topic,
            open_base(self._config, DOCUMENTS.name) as base,
            psycopg.connect(revenue.url.get_secret_value(), autocommit=True, options="-c timezone=UTC") as reader,
        ):
            base.install()
            while not self._stopping.is_set():
                topic.take(self.alerts, INTERVAL_S)
                self.revenue.take(_hours(reader))
                self._now = ViewsNow(
                    document(client, alias, {"id": ORDER}),
                    self.revenue.shown(),
                    self.alerts.count,
                    self.alerts.shown(),
                    _waiting(base),
                )


def compare_view(config: Config, view: ShopView) -> TableResult:
    """Compares every row and column of a view's target with the view's query over the source."""
    section = config.views[view.name]
    with (
        connect(config.source, application="watershed demo") as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({view.sql}) TO STDOUT".encode()) as copy,
    ):
        source = SourceRows(view.table, view.columns, view.key, copy.rows())
    with source, open_base(config, view.name) as base:
        schema = RowEncoder(definition := define(view.name, section, base), base.described(definition)).schema
        if isinstance(section.target, TopicTarget):
            return compare(view.name, source, stored_alerts(config))
        sink = make_sink(view.name, section.target, target_prefix(config.topics.prefix, view.name))
        try:
            sink.attach(schema)
            return compare(view.name, source, sink.rows(view.table))
        finally:
            sink.close()


def _waiting(base: Base) -> int:
    """Returns the number of changes and rows that wait, at least 1 until all views are filled. Raises WatershedError
    for a view that has stopped.
    """
    waiting = 0
    for view in SHOP_VIEWS:
        counts = base.counts(view.name)
        if counts is not None and counts.state == "failed":
            raise WatershedError(f"view {view.name} has stopped: {counts.error}", counts.next or "see cdc view status")
        is_filled = counts is not None and counts.state == "serving"
        waiting += counts.changes + counts.keys if counts is not None and is_filled else 1
    return waiting


def _hours(connection: psycopg.Connection) -> dict[datetime, Decimal]:
    """Returns the rows of the view of revenue; {} before there are any."""
    try:
        return dict(connection.execute(f"SELECT hour, revenue FROM {REVENUE.table}".encode()).fetchall())
    except psycopg.errors.UndefinedTable:
        return {}
