"""The statements with which a session publishes an event."""

import json
from typing import Any, cast
from uuid import UUID

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import TextClause

from watershed.client.outbox import Outbox

ID = UUID("6f0d1c1e-0000-4000-8000-000000000001")


class Recorded:
    """Takes the place of a session of PostgreSQL."""

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def flush(self) -> None:
        self.calls.append(("flush", {}))

    def get_bind(self) -> "Recorded":
        return self

    def execute(self, statement: TextClause, values: dict[str, Any]) -> None:
        self.calls.append((statement.text, values))


def outbox(session: Recorded, **options: Any) -> Outbox:
    return Outbox(cast("Session", session), **options)


def test_an_event_is_published_by_the_function_behind_what_the_session_wrote() -> None:
    session = Recorded()
    assert outbox(session).publish("order", "7", "OrderPlaced", {"total": "1"}, {"trace": "t"}, ID) == ID
    (flush, _), (statement, values) = session.calls
    assert flush == "flush"
    assert statement.startswith("SELECT cdc.publish(:aggregate_type, :aggregate_id, :event_type, CAST(:payload")
    assert values == {
        "aggregate_type": "order",
        "aggregate_id": "7",
        "event_type": "OrderPlaced",
        "payload": '{"total": "1"}',
        "headers": '{"trace": "t"}',
        "id": str(ID),
    }


def test_an_event_may_have_no_payload_and_no_headers_and_has_an_id_of_its_own() -> None:
    session = Recorded()
    made = outbox(session, schema="Events").publish("order", "7", "OrderGone", None)
    (_, (statement, values)) = session.calls
    assert statement.startswith('SELECT "Events".publish(')
    assert (values["payload"], values["headers"]) == (None, None)
    assert values["id"] == str(made)
    assert outbox(session).publish("order", "7", "OrderGone", None) != made
    outbox(session).publish("order", "7", "OrderSeen", 0, {})
    assert (session.calls[-1][1]["payload"], session.calls[-1][1]["headers"]) == ("0", "{}")


@pytest.mark.parametrize("keeps_rows", [True, False])
def test_an_event_is_published_by_a_row_of_a_table(keeps_rows: bool) -> None:
    session = Recorded()
    table = outbox(session, schema="shop", table="outbox", keeps_rows=keeps_rows)
    assert table.publish("order", "7", "OrderPlaced", [1], id=ID) == ID
    _, (inserted, values), *gone = session.calls
    assert inserted.startswith("INSERT INTO shop.outbox (id, aggregatetype, aggregateid, type, payload) VALUES (CAST(")
    assert "headers" not in values and json.loads(values["payload"]) == [1]
    deleted = ("DELETE FROM shop.outbox WHERE id = CAST(:id AS uuid)", {"id": str(ID)})
    assert gone == ([] if keeps_rows else [deleted])


def test_the_rows_of_a_table_are_kept_by_default_and_have_no_headers() -> None:
    session = Recorded()
    outbox(session, table="outbox").publish("order", "7", "OrderPlaced", None, {})
    assert [call[0].split(" ")[0] for call in session.calls] == ["flush", "INSERT"]
    with pytest.raises(ValueError, match="has no headers"):
        outbox(session, table="outbox").publish("order", "7", "OrderPlaced", None, {"trace": "t"})
    assert session.calls[-1][0] == "flush", "nothing is published"
