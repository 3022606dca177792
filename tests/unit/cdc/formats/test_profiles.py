"""The registry: what a profile makes of a table."""

import json
import warnings
from typing import Any, get_args

import pytest

from cdc.config.format_options import READABLE, FormatOptions, Profile
from cdc.config.masking import Mask
from cdc.formats.profiles import ColumnFormat, UnconvertibleWarning, column_formats
from cdc.model.errors import ConfigError, UnconvertibleError
from cdc.model.events import Column, TableSchema
from tests.support import wire

DEBEZIUM = FormatOptions(profile="debezium")


def schema_of(*columns: Column) -> TableSchema:
    key = Column("id", 23, -1, "integer", False)
    return wire.schema_and_relation([key, *columns], ["id"])[0]


def format_of(column: Column, options: FormatOptions) -> ColumnFormat:
    return column_formats(schema_of(column), options)[1]


def value(column: Column, options: FormatOptions, text: str) -> Any:
    encode = format_of(column, options).form.encode
    assert encode is not None
    return json.loads(encode(text))


def nullable(oid: int, **more: Any) -> Column:
    return Column("c", oid, -1, "", True, **more)


@pytest.mark.parametrize(
    ("oid", "text", "plain", "mode", "chosen", "other"),
    [
        (1700, "1.10", "1.10", "decimal_handling_mode", "double", 1.1),
        (790, "$1.10", "$1.10", "decimal_handling_mode", "string", "1.10"),
        (1082, "1970-01-02", "1970-01-02", "time_precision_mode", "adaptive", 1),
        (1083, "00:00:01", "00:00:01", "time_precision_mode", "connect", 1000),
        (1266, "24:00:00+00", "24:00:00+00", "time_precision_mode", "connect", "24:00:00Z"),
        (1186, "1 day", "1 day", "time_precision_mode", "adaptive", "1 day"),
        (17, "\\x01", "AQ==", "binary_handling_mode", "hex", "01"),
        (1186, "1 day", "1 day", "interval_handling_mode", "numeric", 86_400_000_000),
    ],
)  # fmt: skip
def test_a_mode_takes_the_place_of_the_readable_form(
    oid: int, text: str, plain: object, mode: str, chosen: str, other: object
) -> None:
    assert value(nullable(oid), READABLE, text) == plain
    options = FormatOptions(**{mode: chosen})
    assert value(nullable(oid), options, text) == other
    assert value(nullable(25), options, "x") == "x"


def test_a_mode_is_for_elements_too_with_their_dimensions() -> None:
    options = FormatOptions(decimal_handling_mode="double")
    assert value(nullable(1231, element_oid=1700), options, "{{1.10},{NULL}}") == [[1.1], [None]]


def test_the_readable_profile_leaves_nothing_out_and_invents_nothing() -> None:
    for oid in (3615, 16_500, 23):
        found = format_of(Column("c", oid, -1, "pair", False), READABLE)
        assert found.form.encode is not None
        assert found.form.unknown is None


def test_in_the_readable_profile_columns_may_be_absent_but_the_keys() -> None:
    schema = schema_of(Column("c", 23, -1, "integer", False))
    assert [found.node["optional"] for found in column_formats(schema, READABLE)] == [False, True]
    assert [found.node["optional"] for found in column_formats(schema, DEBEZIUM)] == [False, False]


@pytest.mark.parametrize("text", ["{{1,2}}", "[0:0]={1}"])
def test_an_array_that_its_schema_does_not_know_stops_where_there_are_schemas(text: str) -> None:
    column = nullable(1007, element_oid=23)
    assert value(column, READABLE, text) in ([[1, 2]], text)
    with_schemas = FormatOptions(schemas_enable=True)
    assert value(column, with_schemas, "{1}") == [1]
    with pytest.raises(UnconvertibleError, match="one dimension"):
        value(column, with_schemas, text)


def test_the_readable_profile_stops_at_what_connect_would_read_as_zero() -> None:
    with_schemas = FormatOptions(schemas_enable=True)
    for options in (with_schemas, FormatOptions(schemas_enable=True, decimal_handling_mode="double")):
        for of in (nullable(701), nullable(1700)) if options.decimal_handling_mode else (nullable(701),):
            with pytest.raises(UnconvertibleError, match="not a finite number"):
                value(of, options, "NaN")
    assert value(nullable(1700), with_schemas, "NaN") == "NaN"
    assert value(nullable(600), with_schemas, "(NaN,1)") == "(NaN,1)"
    for number in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(UnconvertibleError, match="not a finite number"):
            value(nullable(1022, element_oid=701), with_schemas, f"{{1.5,{number}}}")
        debezium = FormatOptions(profile="debezium", schemas_enable=True)
        assert value(nullable(701), debezium, number) == number  # as Debezium's


def test_debezium_leaves_out_what_it_does_not_know() -> None:
    schema = schema_of(nullable(3615), Column("d", 23, -1, "integer", True))
    formats = column_formats(schema, DEBEZIUM)
    assert [found.form.encode is None for found in formats] == [False, True, False]


def test_a_key_is_never_left_out() -> None:
    schema, _ = wire.schema_and_relation([Column("at", 3220, -1, "pg_lsn", False)], ["at"])
    with pytest.raises(ConfigError, match="key column at has type pg_lsn, which profile debezium leaves out"):
        column_formats(schema, DEBEZIUM)
    column_formats(schema, FormatOptions(profile="debezium", include_unknown_datatypes=True))


@pytest.mark.parametrize(
    ("oid", "zero"),
    [
        *((23, 0), (701, 0.0), (16, False), (25, ""), (17, ""), (1082, 0), (1114, 0), (1186, 0), (114, "{}")),
        *((1184, "1970-01-01T00:00:00Z"), (1266, "00:00:00Z"), (1700, {"scale": 0, "value": "AA=="}), (790, "AA==")),
    ],
)
def test_what_debezium_writes_where_a_value_is_not_known(oid: int, zero: object) -> None:
    required = format_of(Column("c", oid, -1, "", False), DEBEZIUM)
    assert required.form.unknown is not None
    assert json.loads(required.form.unknown) == zero
    assert format_of(nullable(oid), DEBEZIUM).form.unknown == "null"


def test_what_has_no_place_is_null_and_told_once_for_each_column() -> None:
    found = format_of(nullable(1700), DEBEZIUM).form.encode
    assert found is not None
    with pytest.warns(
        UnconvertibleWarning, match=r"public\.customers, column c: a value is not a finite number"
    ) as reported:
        assert found("NaN") == "null"
    assert len(reported) == 1
    silent = format_of(
        nullable(1700), FormatOptions(profile="debezium", event_converting_failure_handling_mode="skip")
    ).form.encode
    assert silent is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert silent("NaN") == "null"


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (nullable(1700), FormatOptions(profile="debezium", event_converting_failure_handling_mode="fail")),
        (Column("c", 1700, -1, "numeric", False), DEBEZIUM),  # null is not allowed there
        (nullable(1700), FormatOptions(decimal_handling_mode="precise")),
    ],
)
def test_what_has_no_place_stops_the_table_where_null_is_not_asked_for(column: Column, options: FormatOptions) -> None:
    encode = format_of(column, options).form.encode
    assert encode is not None
    with pytest.raises(Exception, match="not a finite number, and the chosen format can represent nothing else"):
        encode("NaN")


OTHER_FORM = "choose another mode in section format, or profile readable without one, which can represent every value"


@pytest.mark.parametrize(
    ("column", "options", "text", "hint"),
    [
        (nullable(1700), FormatOptions(decimal_handling_mode="precise"), "NaN", OTHER_FORM),
        (Column("c", 1700, -1, "numeric", False), DEBEZIUM, "NaN", OTHER_FORM),
        (
            nullable(1700),
            FormatOptions(profile="debezium", event_converting_failure_handling_mode="fail"),
            "NaN",
            OTHER_FORM + ", or event.converting.failure.handling.mode: skip, which writes null",
        ),
        (
            nullable(1007, element_oid=23),
            FormatOptions(schemas_enable=True),
            "{{1,2}}",
            "use format.encoding json without schemas.enable: schemas can't describe other arrays",
        ),
    ],
)
def test_what_is_said_to_do_about_it_helps_in_that_profile(
    column: Column, options: FormatOptions, text: str, hint: str
) -> None:
    encode = format_of(column, options).form.encode
    assert encode is not None
    with pytest.raises(UnconvertibleError) as refusal:
        encode(text)
    assert refusal.value.hint == hint


def test_a_masked_column_says_so_and_is_masked_in_every_profile() -> None:
    schema = schema_of(nullable(25))
    for profile in get_args(Profile):
        options = FormatOptions(profile=profile, masks=(Mask(schema.table, "c", "asterisks", 3),))
        found = column_formats(schema, options)[1]
        assert found.form.encode is not None
        assert found.form.encode("secret") == '"***"'
        assert found.node["parameters"] == {"masked": "true"}
