"""JSON in fields of its own, for which OpenSearch makes a field of each name that it meets: any JSON is stored."""

import pytest

from cdc.config.store_shapes import SearchShape
from sinks.contract import Outcome
from tests.conformance.stores import SearchStore
from tests.conformance.tables import CUSTOMERS
from tests.conformance.test_values import ODD_JSON, ONLY_JSON, V
from tests.conformance.trial import Trial

MAPPINGS = {
    "object": SearchShape(json="object"),
    "nested": SearchShape.model_validate({"mapping": {name: {"type": "nested"} for name in ("attributes", "raw")}}),
    "as it is": SearchShape(),
}


@pytest.mark.parametrize("form", MAPPINGS)
def test_odd_json_is_stored_in_its_field_or_as_text(opensearch: str, unique: str, form: str) -> None:
    store = SearchStore(opensearch, unique, {"*": MAPPINGS[form]})
    trial = Trial(store)
    # More names than an index has fields, in many rows; a name that is an object here and a number there.
    many = ["{{{}}}".format(", ".join(f'"f{number}_{name}": {name}' for name in range(300))) for number in range(10)]
    texts = [*ODD_JSON, *many, '{"n": {"m": 1}}', '{"n": 1}', '{"n": [{"m": 1}, 2]}', *ONLY_JSON]
    columns = [("attributes", text) for text in texts[: -len(ONLY_JSON)]] + [("raw", text) for text in texts]
    try:
        changes = [
            CUSTOMERS.upsert(V + number, id=number, **{name: text}) for number, (name, text) in enumerate(columns)
        ]
        assert set(trial.apply(*changes)) == {Outcome.WRITTEN}
        trial.sink.make_readable({CUSTOMERS.id})
        held = {row.key["id"]: row.row for row in trial.sink.rows(CUSTOMERS.id)}
        for number, (name, text) in enumerate(columns):
            assert held[number][name] == text
    finally:
        trial.close()
        store.close()
