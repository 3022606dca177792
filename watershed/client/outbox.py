"""Events from an application that uses SQLAlchemy, in its own session and transaction.

with Session(engine) as session, session.begin():
    session.add(order)
    Outbox(session).publish("order", str(order.id), "OrderPlaced", {"total": str(order.total)})
"""

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import text
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import quoted_name

__all__ = ["Outbox"]

_MESSAGE: Final = (
    "SELECT {name}(:aggregate_type, :aggregate_id, :event_type, CAST(:payload AS jsonb), CAST(:headers AS jsonb),"
    " CAST(:id AS uuid))"
)
_ROW: Final = (
    "INSERT INTO {name} (id, aggregatetype, aggregateid, type, payload)"
    " VALUES (CAST(:id AS uuid), :aggregate_type, :aggregate_id, :event_type, CAST(:payload AS jsonb))"
)
_GONE: Final = "DELETE FROM {name} WHERE id = CAST(:id AS uuid)"


class Outbox:
    """Publishes an event if the session commits. Events of a savepoint that is rolled back are not published."""

    def __init__(
        self, session: Session, *, schema: str = "cdc", table: str | None = None, keeps_rows: bool = True
    ) -> None:
        """Publishes by the schema's function `publish` or, with `table`, by that outbox table; unless `keeps_rows`, the
        row is deleted at once."""
        self._session = session
        self._schema = schema
        self._table = table
        self._keeps_rows = keeps_rows

    def publish(
        self,
        aggregate_type: str,
        aggregate_id: str,
        event_type: str,
        payload: object,
        headers: Mapping[str, str] | None = None,
        id: UUID | None = None,
    ) -> UUID:
        """Publishes an event behind everything that the session wrote so far. `payload`: a value for json.dumps, or
        None. Returns the event's id. Raises ValueError for headers with a table, which has no column for them."""
        self._session.flush()
        event: dict[str, Any] = {
            "aggregate_type": aggregate_type,
            "aggregate_id": aggregate_id,
            "event_type": event_type,
            "payload": None if payload is None else json.dumps(payload),
            "id": str(id or uuid4()),
        }
        if self._table is None:
            event["headers"] = None if headers is None else json.dumps(dict(headers))
            self._execute(_MESSAGE, "publish", event)
        else:
            if headers:
                raise ValueError("an outbox table has no headers; publish with the function")
            self._execute(_ROW, self._table, event)
            if not self._keeps_rows:
                self._execute(_GONE, self._table, {"id": event["id"]})
        return UUID(event["id"])

    def _execute(self, statement: str, name: str, values: Mapping[str, Any]) -> None:
        quote = self._session.get_bind().dialect.identifier_preparer.quote
        full = f"{quote(quoted_name(self._schema, None))}.{quote(quoted_name(name, None))}"
        self._session.execute(text(statement.format(name=full)), dict(values))
