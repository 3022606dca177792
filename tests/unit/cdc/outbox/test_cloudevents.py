"""CloudEvents 1.0: attributes and data in both modes."""

import json

import pytest

from cdc.outbox.cloudevents import FORMATS, attributes_of

GIVEN = attributes_of("shop", "public.outbox", "i", "OrderPlaced", "7", 1_706_702_400_123_456)
PAYLOAD = '{"total": 12.50}'
ATTRIBUTES = {
    "specversion": "1.0",
    "id": "i",
    "source": "/watershed/shop/public.outbox",
    "type": "OrderPlaced",
    "time": "2024-01-31T12:00:00.123456Z",
    "subject": "7",
}


def test_binary_has_the_payload_as_value_and_attributes_as_headers() -> None:
    value, headers = FORMATS["cloudevents_binary"](GIVEN, PAYLOAD)
    assert value == b'{"total": 12.50}'
    reported = {name: (text or b"").decode() for name, text in headers}
    assert reported.pop("content-type") == "application/json"
    assert reported == {f"ce_{name}": text for name, text in ATTRIBUTES.items()}


def test_structured_has_all_of_it_in_one_object_and_keeps_every_digit() -> None:
    value, headers = FORMATS["cloudevents_structured"](GIVEN, PAYLOAD)
    assert headers == (("content-type", b"application/cloudevents+json; charset=UTF-8"),)
    assert json.loads(value or b"") == {**ATTRIBUTES, "datacontenttype": "application/json", "data": {"total": 12.5}}
    assert b'"data":{"total": 12.50}' in (value or b"")


@pytest.mark.parametrize(("payload", "data"), [("not JSON", "not JSON"), ('"x"', "x"), ("null", None), ("NaN", "NaN")])
def test_a_payload_that_is_no_json_is_text(payload: str, data: str | None) -> None:
    assert json.loads(FORMATS["cloudevents_structured"](GIVEN, payload)[0] or b"")["data"] == data
    kind = dict(FORMATS["cloudevents_binary"](GIVEN, payload)[1])["content-type"]
    assert kind == (b"text/plain; charset=utf-8" if data in ("not JSON", "NaN") else b"application/json")


def test_without_payload_or_subject_there_is_neither() -> None:
    given = attributes_of("shop", "s", "i", "T", None, 0)
    assert FORMATS["cloudevents_binary"](given, None)[0] is None
    structured = json.loads(FORMATS["cloudevents_structured"](given, None)[0] or b"")
    assert structured.keys() == {"specversion", "id", "source", "type", "time"}
