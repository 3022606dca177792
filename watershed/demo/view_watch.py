"""The demo's views: read while they are kept, and at the end compared with the results of their queries."""

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import psycopg
from confluent_kafka import Message

from cdc.config.config_file import Config
from cdc.config.stores import SearchConfig, SqlConfig
from cdc.config.views import TopicTarget, target_prefix, view_topics
from cdc.model.errors import WatershedError
from cdc.postgres.connection import connect
from sinks.contract import StoredRow
from sinks.registry import make_sink
from sinks.search.names import SearchNames
from watershed.demo.followed import ORDER
from watershed.demo.shop_views import ALERTS, DOCUMENTS, REVENUE, SHOP_VIEWS, ShopView
from watershed.demo.stores import search_client, searched_order
from watershed.demo.topic_tail import TopicTail
from watershed.verify.comparison import SourceRows, compare
from watershed.verify.model import TableResult
from watershed.views.maintainer import RowEncoder, define
from watershed.views.states import ViewFigures
from watershed.views.targets import base_section, open_base

INTERVAL_S: Final = 1.0
SHOWN: Final = 3  # corrected hours, and alerts


class Hour(NamedTuple):
    """An hour of the view of revenue, as it is and as it was before."""

    hour: datetime
    revenue: Decimal | None  # None: the row has disappeared
    before: Decimal | None  # None: it is new, or it was not seen before


class Revenue:
    """The revenue of hours over time. Pure."""

    def __init__(self) -> None:
        self._known: dict[datetime, Decimal] | None = None
        self._before: dict[datetime, Decimal | None] = {}  # of corrected hours, the one corrected last at the end

    def take(self, hours: Mapping[datetime, Decimal]) -> None:
        """Takes the rows as they are now. The first time nothing was corrected."""
        known, self._known = self._known, dict(hours)
        if known is None:
            return
        for hour in sorted(known.keys() | hours.keys()):
            if known.get(hour) != hours.get(hour):
                self._before.pop(hour, None)
                self._before[hour] = known.get(hour)
        last = max(hours, default=None)
        for hour in [hour for hour in self._before if hour != last][:-SHOWN]:
            del self._before[hour]

    def shown(self) -> tuple[Hour, ...]:
        """Returns the last hour, and then those that were corrected last."""
        known = self._known or {}
        last = max(known, default=None)
        corrected = [hour for hour in reversed(self._before) if hour != last][:SHOWN]
        return tuple(
            Hour(hour, known.get(hour), self._before.get(hour)) for hour in ([last] if last else []) + corrected
        )


class Alerts:
    """The alerts over time, from the records of their topic: a record starts an alert or changes it, and one without a
    value stops it. Pure.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, StoredRow] = {}  # by the record's key
        self._lines: deque[str] = deque(maxlen=SHOWN)
        self.started = self.stopped = 0

    def take(self, key: bytes, value: bytes | None, version: int) -> None:
        known = self._rows.pop(key, None)
        if value is not None:
            self._rows[key] = StoredRow(json.loads(key), json.loads(value), version)
        if value is not None and known is None:
            self.started += 1
            self._note(self._rows[key], "meets")
        elif value is None and known is not None:
            self.stopped += 1
            self._note(known, "no longer meets")

    @property
    def rows(self) -> list[StoredRow]:
        """The view's rows."""
        return list(self._rows.values())

    def shown(self) -> tuple[str, ...]:
        """Returns what started or stopped last."""
        return tuple(self._lines)

    def _note(self, alert: StoredRow, what: str) -> None:
        self._lines.appendleft(f"order {alert.row['order_id']} {what} “{alert.row['search']}”")


class ViewsNow(NamedTuple):
    """The views at one moment."""

    document: Mapping[str, Any] | None  # of the order that the screen follows; None: it is not there
    hours: tuple[Hour, ...]  # the last one, and those that were corrected last
    alerts: int
    changed_alerts: tuple[str, ...]  # those that started or stopped last


class ViewWatch:
    """For one thread. Opens its connections with the first read; close() ends them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.alerts = Alerts()
        self.now: ViewsNow | None = None  # None: not read yet
        self._revenue = Revenue()
        self._read_at = 0.0  # monotonic seconds
        self._open = ExitStack()
        topic = view_topics(config.views, config.topics.prefix)[ALERTS.name]
        self._topic = self._open.enter_context(closing(TopicTail(config.kafka, topic)))
        targets = {name: view.target for name, view in config.views.items()}
        search, revenue = targets[DOCUMENTS.name], targets[REVENUE.name]
        assert isinstance(search, SearchConfig) and isinstance(revenue, SqlConfig), "the demo's configuration"
        self._search = search_client(search)
        self._alias = SearchNames(target_prefix(config.topics.prefix, DOCUMENTS.name)).alias(DOCUMENTS.table)
        url = revenue.url.get_secret_value()
        self._reader = self._open.enter_context(psycopg.connect(url, autocommit=True, options="-c timezone=UTC"))
        base = base_section(config, DOCUMENTS.name)
        self._figures = self._open.enter_context(closing(ViewFigures(base, config.topics.prefix)))

    def read(self) -> None:
        """Reads the views, at most once in INTERVAL_S."""
        if time.monotonic() < self._read_at + INTERVAL_S:
            return
        self._read_at = time.monotonic()
        self._take(self._topic.read(0.0))
        self._revenue.take(self._hours())
        document = searched_order(self._search, self._alias, ORDER)
        self.now = ViewsNow(document, self._revenue.shown(), len(self.alerts.rows), self.alerts.shown())

    def are_current(self) -> bool:
        """Returns whether all views are filled, and every change that the base has was written to them. Raises
        WatershedError for a view that has stopped.
        """
        facts = [self._figures.of(view.name) for view in SHOP_VIEWS]
        if failed := next((one for one in facts if one.state == "failed"), None):
            raise WatershedError(
                f"view {failed.name} has stopped: {failed.error}", failed.next or "see cdc view status"
            )
        return all(one.state == "serving" and one.changes + one.keys == 0 for one in facts)

    def compared(self) -> list[TableResult]:
        """Compares every row of each view with its query over the source, which is not written meanwhile."""
        return [self._compared(view) for view in SHOP_VIEWS]

    def close(self) -> None:
        self._open.close()

    def _compared(self, view: ShopView) -> TableResult:
        with (
            connect(self._config.source, application="watershed demo") as connection,
            connection.cursor() as cursor,
            cursor.copy(f"COPY ({view.sql}) TO STDOUT".encode()) as copy,
        ):
            source = SourceRows(view.table, view.columns, view.key, copy.rows())
        with source:
            return compare("views", source, self._stored(view))

    def _stored(self, view: ShopView) -> Iterator[StoredRow]:
        section = self._config.views[view.name]
        if isinstance(section.target, TopicTarget):
            self._take(self._topic.read_to_end())
            yield from self.alerts.rows
            return
        with (
            open_base(self._config, view.name) as base,
            closing(make_sink(view.name, section.target, target_prefix(self._config.topics.prefix, view.name))) as sink,
        ):
            definition = define(view.name, section, base)
            sink.attach(RowEncoder(definition, base.described(definition)).schema)
            yield from sink.rows(view.table)

    def _take(self, messages: Iterator[Message] | list[Message]) -> None:
        for message in messages:
            headers: dict[str, Any] = dict(message.headers() or ())
            self.alerts.take(message.key() or b"", message.value(), int(headers.get("version", 0)))

    def _hours(self) -> dict[datetime, Decimal]:
        """Returns the rows of the view of revenue; {} before there are any."""
        try:
            return dict(self._reader.execute(f"SELECT hour, revenue FROM {REVENUE.table}".encode()).fetchall())
        except psycopg.errors.UndefinedTable:
            return {}
