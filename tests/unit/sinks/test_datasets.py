"""The names of topics and stores' tables in OpenLineage."""

from pathlib import Path

import pytest

from cdc.config.store_types import section_class
from cdc.config.stores import StoreConfig
from cdc.model.events import TableId
from sinks.datasets import store_dataset, topic_dataset

TABLE = TableId("public", "orders")


def section(kind: str, **options: object) -> StoreConfig:
    return section_class(kind).model_validate(options)


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("kafka-1:9093, kafka-2:9093", "kafka://kafka-1:9093"),
        ("SASL_SSL://kafka-1:9093", "kafka://kafka-1:9093"),
        ("kafka", "kafka://kafka:9092"),
        ("[::1]:9094", "kafka://[::1]:9094"),
    ],
)
def test_topics_are_named_by_the_first_broker(servers: str, namespace: str) -> None:
    assert topic_dataset(servers, "shop.public.orders") == (namespace, "shop.public.orders")


@pytest.mark.parametrize(
    ("store", "namespace", "name"),
    [
        (
            section("search", url="https://me:secret@os:9201,https://os2:9201"),
            "opensearch://os:9201",
            "shop.public.orders",
        ),
        (section("search", url="http://os"), "opensearch://os:9200", "shop.public.orders"),
        (section("cache", url="redis://:secret@cache/2"), "redis://cache:6379", "shop:public.orders:<row id>"),
        (section("cache", url="redis+cluster://a:7001,b:7002"), "redis://a:7001", "shop:{public.orders}:<row id>"),
        (section("sql", url="postgresql://me:secret@db/reports"), "postgres://db:5432", "reports.public.orders"),
        (section("sql", url="sqlite:////var/reports.db"), "file", "/var/reports.db/public_orders"),
        (
            section("warehouse", catalog_uri="jdbc:sqlite:c.db", location="s3://lake/tables/"),
            "s3://lake",
            "tables/shop/public/orders",
        ),
        (
            section("warehouse", catalog_uri="jdbc:sqlite:c.db", location="file:///lake"),
            "file",
            "/lake/shop/public/orders",
        ),
        (
            section("warehouse", catalog_uri="jdbc:sqlite:c.db", location="lake"),
            "file",
            str(Path("lake/shop/public/orders").absolute()),
        ),
        (section("cache", url="redis://:se/secret@cache"), "redis://unknown:6379", "shop:public.orders:<row id>"),
        (StoreConfig(type="disk"), "disk", "public.orders"),
    ],
)
def test_each_store_names_the_table_without_secrets(store: StoreConfig, namespace: str, name: str) -> None:
    found = store_dataset(store, "shop", TABLE)
    assert found == (namespace, name)
    assert "secret" not in "".join(found)
