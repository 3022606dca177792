"""The demo's views: read while they are kept, and at the end compared with the results of their queries."""

import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import psycopg

from cdc.config.config_file import Config
from cdc.config.views import target_prefix, view_topics
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from sinks.contract import StoredRow
from sinks.search.names import SearchNames
from watershed.demo.followed import ORDER
from watershed.demo.stores import TopicTail, search_client, searched_order
from watershed.verify.model import TableResult
from watershed.views.comparison import compare_view
from watershed.views.definition import SCHEMA_OF_VIEWS
from watershed.views.states import ViewFigures
from watershed.views.targets import base_section

DOCUMENTS, REVENUE, ALERTS = "order_documents", "revenue_by_hour", "alerts"
INTERVAL_S: Final = 1.0
SHOWN: Final = 3  # corrected hours


class Revenue:
    """The revenue of hours over time. Pure."""

    def __init__(self) -> None:
        self._known: Mapping[datetime, Decimal] = {}
        self._before: dict[datetime, Decimal | None] = {}  # of corrected hours, the one corrected last at the end

    def observe(self, hours: Mapping[datetime, Decimal]) -> None:
        """Compares the rows with those before. The first ones were not corrected."""
        known, self._known = self._known, hours
        for hour in sorted(known.keys() | hours.keys()) if known else ():
            if known.get(hour) != hours.get(hour):
                self._before.pop(hour, None)
                self._before[hour] = known.get(hour)

    def lines(self) -> list[str]:
        """Returns a line for the last hour, and then for those that were corrected last."""
        last = [max(self._known)] if self._known else []
        corrected = [hour for hour in reversed(self._before) if hour not in last][:SHOWN]
        return [self._line(hour) for hour in last + corrected]

    def _line(self, hour: datetime) -> str:
        now = f"{self._known[hour]:,}" if hour in self._known else "no revenue any more"
        before = self._before.get(hour)  # None: it is new, or it was not seen before
        return f"{hour:%Y-%m-%d %H:%M}  {now}" + ("" if before is None else f", corrected from {before:,}")


class Alerts:
    """The alerts over time, from the records of their topic: a record starts an alert or changes it, and one without a
    value stops it. Pure.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, StoredRow] = {}  # by the record's key
        self.last: deque[str] = deque(maxlen=1)  # what started or stopped last
        self.started = self.stopped = 0

    def observe(self, key: bytes, value: bytes | None, version: int) -> None:
        known = self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = StoredRow(json.loads(key), json.loads(value), version)
        if value is not None and known is None:
            self.started += 1
            self._note(self.rows[key], "meets")
        elif value is None and known is not None:
            self.stopped += 1
            self._note(known, "no longer meets")

    def __str__(self) -> str:
        return f"alerts: {self.started:,} started and {self.stopped:,} stopped while they were watched"

    def _note(self, alert: StoredRow, what: str) -> None:
        self.last.appendleft(f"order {alert.row['order_id']} {what} “{alert.row['search']}”")


def described(document: Mapping[str, Any] | None) -> str:
    """Returns an order's nested document as a line: the order with its customer, and its lines."""
    if document is None:
        return "not there yet"
    lines = [f"{line['quantity']} × {line['product']} at {line['unit_price']}" for line in document["lines"]]
    customer = (document["customer"] or {}).get("name", "nobody")
    return f"{document['status']}, {document['note']}, of {customer}: {'; '.join(lines) or 'no lines'}"


class ViewWatch:
    """For one thread. Opens its connections with the first read; close() ends them."""

    def __init__(self, config: Config, opensearch_url: str) -> None:
        self._config = config
        self.alerts = Alerts()
        self.lines: list[tuple[str, str]] = []  # title and text, as read last
        self._revenue = Revenue()
        self._read_at = 0.0  # monotonic seconds
        self._open = ExitStack()
        topic = view_topics(config.views, config.topics.prefix)[ALERTS]
        self._topic = self._open.enter_context(closing(TopicTail(config.kafka, topic)))
        self._search = search_client(opensearch_url)
        self._alias = SearchNames(target_prefix(config.topics.prefix, DOCUMENTS)).alias(_table(DOCUMENTS))
        base = base_section(config, REVENUE)  # in the same database as the rows of this view
        url = base.url.get_secret_value()
        self._reader = self._open.enter_context(psycopg.connect(url, autocommit=True, options="-c timezone=UTC"))
        self._figures = self._open.enter_context(closing(ViewFigures(base, config.topics.prefix)))
        self.close = self._open.close

    def read(self) -> None:
        """Reads the views, at most once in INTERVAL_S."""
        if time.monotonic() >= self._read_at + INTERVAL_S:
            self._read_at = time.monotonic()
            self._read_alerts()
            self._revenue.observe(self._hours())
            changed = "".join(f"; {text}" for text in self.alerts.last)
            self.lines = [
                ("document", described(searched_order(self._search, self._alias, ORDER))),
                *(("revenue", line) for line in self._revenue.lines()),
                ("alerts", f"{len(self.alerts.rows):,} orders meet a saved search{changed}"),
            ]

    def are_current(self) -> bool:
        """Returns whether all views are filled, and every change that the base has was written to them. Raises
        WatershedError for a view that has stopped.
        """
        facts = [self._figures.of(view) for view in self._config.views]
        for failed in (one for one in facts if one.state == "failed"):
            raise WatershedError(f"view {failed.name} has stopped: {failed.error}", failed.next or "")
        return all(one.state == "serving" and one.changes + one.keys == 0 for one in facts)

    def compared(self) -> list[TableResult]:
        """Compares every row of each view with its query. Neither the source nor the views change meanwhile."""
        self._read_alerts()
        return [compare_view(self._config, view, self.alerts.rows.values()) for view in self._config.views]

    def _read_alerts(self) -> None:
        for message in self._topic.read():
            headers: dict[str, Any] = dict(message.headers() or ())
            self.alerts.observe(message.key() or b"", message.value(), int(headers.get("version", 0)))

    def _hours(self) -> dict[datetime, Decimal]:
        """Returns the rows of the view of revenue; {} before there are any."""
        try:
            return dict(self._reader.execute(f"SELECT hour, revenue FROM {_table(REVENUE)}".encode()).fetchall())
        except psycopg.errors.UndefinedTable:
            return {}


def _table(view: str) -> TableId:
    """Returns the name under which the target holds the rows."""
    return TableId(SCHEMA_OF_VIEWS, view)
