"""Options are checked before anything is read, and an error says what to write instead."""

from pathlib import Path

import pytest

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from spark_jobs.source import register
from spark_jobs.source.options import read_options

PLACE = {"bootstrap.servers": "kafka:9092", "prefix": "shop", "table": "public.orders"}


def test_options_are_read() -> None:
    found = read_options(
        {
            **PLACE,
            "columns": "id, name",
            "textcolumns": "at",
            "startingposition": "1/A",
            "endingposition": "latest",
            "maxrecordsperbatch": "10",
            "compacted": "allow",
            "kafka.security.protocol": "SSL",
        }
    )
    assert (found.table, found.columns, found.text_columns) == (
        TableId("public", "orders"),
        ("id", "name"),
        frozenset({"at"}),
    )
    assert (found.starting, found.ending, found.records_max) == ((1 << 32) + 10, "latest", 10)
    assert (found.may_be_compacted, found.may_be_incomplete, found.wants_changes) == (True, False, True)
    assert found.kafka.options["security.protocol"].get_secret_value() == "SSL"
    plain = read_options(PLACE)
    assert (plain.wants_changes, plain.columns, plain.records_max) == (False, None, None)


def test_the_configuration_file_names_brokers_and_prefix(tmp_path: Path) -> None:
    file = tmp_path / "watershed.yml"
    file.write_text(
        "source: {dsn: host=a, tables: [public.orders]}\n"
        "kafka: {bootstrap_servers: 'k:1', options: {sasl.password: secret}}\n"
        "topics: {prefix: shop}\n"
    )
    found = read_options({"config": str(file), "table": "public.orders", "kafka.client.id": "me"})
    assert (found.kafka.bootstrap_servers, found.prefix) == ("k:1", "shop")
    assert found.kafka.options["sasl.password"].get_secret_value() == "secret"
    assert found.kafka.options["client.id"].get_secret_value() == "me"
    other = read_options({"config": str(file), "table": "public.orders", "kafka.bootstrap.servers": "k:2"})
    assert other.kafka.bootstrap_servers == "k:2"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tabel": "x"}, "unknown option tabel"),
        ({"table": ""}, "option table is missing"),
        ({"table": "orders"}, "option table is not schema.table"),
        ({"prefix": ""}, "option prefix is missing"),
        ({"bootstrap.servers": ""}, "option bootstrap.servers is missing"),
        ({"columns": "a,,b"}, "option columns is not a list"),
        ({"columns": "a,a"}, "option columns is not a list"),
        ({"startingposition": "yesterday"}, "option startingPosition is not an LSN"),
        ({"maxrecordsperbatch": "0"}, "option maxRecordsPerBatch is not a number from 1"),
        ({"compacted": "yes"}, "option compacted is not fail or allow"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.* or schema.registry.*: options"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_options(PLACE | given)
    assert message in error.value.message
    assert error.value.hint


def test_a_secret_in_the_wrong_place_is_not_shown() -> None:
    with pytest.raises(ConfigError) as error:
        read_options(PLACE | {"startingposition": "hunter2"})
    assert "hunter2" not in str(error.value)


def test_a_spark_without_the_api_is_refused() -> None:
    class Old:
        version = "3.5.8"

    with pytest.raises(ConfigError) as error:
        register(Old())
    assert "Spark 3.5.8" in error.value.message
    assert "4.1" in error.value.hint


def test_a_schema_registry_is_an_option_or_in_the_file(tmp_path: Path) -> None:
    given = PLACE | {"schema.registry.url": "http://r:8081", "schema.registry.basic.auth.user.info": "me:secret"}
    found = read_options(given).kafka.schema_registry
    assert found is not None
    options = {"url": "http://r:8081", "basic.auth.user.info": "me:secret"}
    assert options.items() <= found.client_options.items()
    file = tmp_path / "watershed.yml"
    file.write_text(
        "source: {dsn: 'dbname=shop', tables: [public.orders]}\ntopics: {prefix: shop}\n"
        "kafka: {bootstrap_servers: 'k:1', schema_registry: {url: 'http://f:1', options: {timeout: '7'}}}\n"
    )
    both = read_options({"config": str(file), "table": "public.orders", "schema.registry.max.retries": "0"})
    assert both.kafka.schema_registry is not None
    assert {
        "url": "http://f:1",
        "timeout": 7,
        "max.retries": 0,
    }.items() <= both.kafka.schema_registry.client_options.items()
    with pytest.raises(ConfigError, match=r"schema_registry\.url: missing"):
        read_options(PLACE | {"schema.registry.timeout": "7"})
