"""The development stack on real servers."""

import psycopg
import redis as redis_client
from confluent_kafka.admin import AdminClient
from opensearchpy import OpenSearch

from tests.conftest import KafkaBroker, PostgresServer


def test_postgres_18_answers_and_decodes(postgres: PostgresServer, fresh_database: str) -> None:
    with psycopg.connect(fresh_database) as connection:
        settings = {
            name: connection.execute("SELECT current_setting(%s)", [name]).fetchall()[0][0]
            for name in ("server_version_num", "wal_level", "synchronous_commit", "fsync", "server_encoding")
        }
    assert 180000 <= int(settings.pop("server_version_num")) < 190000
    assert settings == {"wal_level": "logical", "synchronous_commit": "on", "fsync": "off", "server_encoding": "UTF8"}


def test_kafka_answers(kafka: KafkaBroker) -> None:
    metadata = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10)
    assert len(metadata.brokers) == 1


def test_opensearch_answers(opensearch: str) -> None:
    with OpenSearch(opensearch) as client:
        assert client.info()["version"]["number"] == "3.8.0"


def test_redis_answers(redis: str) -> None:
    with redis_client.Redis.from_url(redis) as client:
        assert client.info("server")["redis_version"].startswith("6.2")
