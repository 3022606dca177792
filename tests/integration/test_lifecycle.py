"""Topics that are created again or get more partitions, and stores that outlive their topics: no row is missing in the
store, none is left over, and no wait is answered before that."""

from collections.abc import Iterator

import pytest
import redis as redis_client
from confluent_kafka.admin import AdminClient, NewPartitions

from cdc.model.errors import WatershedError
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.pipeline import END, Pipeline, pipeline_of
from tests.support.waiting import eventually
from watershed import Waiter
from watershed.client.waiting import WaitTimeoutError

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def pipeline(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    with pipeline_of(postgres, kafka, redis, tmp_path_factory.mktemp("life"), {"cache": {"url": redis}}) as found:
        yield found


def source(pipeline: Pipeline) -> dict[int, str]:
    return dict(pipeline.items.query("SELECT id, name FROM items"))


def store(pipeline: Pipeline, up_to: int = 400) -> dict[int, str]:
    with redis_client.Redis.from_url(pipeline.redis, decode_responses=True) as client:
        rows = {key: pipeline.read(client, key) for key in range(1, up_to)}
    return {key: name for key, name in rows.items() if name is not None}


def require_shown(pipeline: Pipeline, timeout_s: float = 120.0) -> None:
    """Asks until a wait is answered; then the store must be equal to the source, which nobody changes."""

    def is_answered() -> bool:
        (lsn,) = pipeline.items.query(END)[0]
        try:
            with Waiter(pipeline.config) as waiter:
                waiter.wait_for("cache", lsn, 5.0)
        except WatershedError:
            return False
        return True

    eventually(is_answered, timeout_s, "a wait is answered")
    assert store(pipeline) == source(pipeline)


def await_stopped(pipeline: Pipeline, text: str) -> None:
    """Waits until capture has stopped the table because of its topic, and says so to who waits for the store."""

    def is_stopped() -> bool:
        return text in pipeline.items.states()["public.items"]["message"]

    eventually(is_stopped, 90.0, lambda: f"{pipeline.items.states()}")
    with pytest.raises(WaitTimeoutError, match=r"rows of public\.items are owed"), Waiter(pipeline.config) as waiter:
        waiter.wait_for("cache", pipeline.items.query(END)[0][0], 3.0)


@pytest.fixture(scope="module")
def admin(kafka: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def topic(pipeline: Pipeline) -> str:
    return f"{pipeline.items.name}.public.items"


@pytest.mark.promise(4)
@pytest.mark.invariant(11)
def test_a_topic_that_is_deleted_is_read_from_its_beginning(pipeline: Pipeline, admin: AdminClient) -> None:
    """Seen: the sink went on at the offsets of the former topic, and the sweep deleted 60 of 200 rows."""
    require_shown(pipeline)
    admin.delete_topics([topic(pipeline)])[topic(pipeline)].result(30)
    await_stopped(pipeline, "is gone")
    pipeline.items.query("INSERT INTO items SELECT n, 'meanwhile' FROM generate_series(51, 200) n")
    pipeline.items.query("DELETE FROM items WHERE id <= 5")
    pipeline.items.query("UPDATE items SET name = 'changed' WHERE id BETWEEN 6 AND 9")
    pipeline.items.cdc("table", "start", "public.items")
    require_shown(pipeline)


@pytest.mark.promise(4)
def test_new_partitions_are_read_by_a_running_sink(pipeline: Pipeline, admin: AdminClient) -> None:
    """Seen: rows whose keys fell into new partitions were never read before the next start of the sink."""
    (count,) = {len(admin.list_topics(topic(pipeline), 10).topics[topic(pipeline)].partitions)}
    admin.create_partitions([NewPartitions(topic(pipeline), count + 3)])[topic(pipeline)].result(30)
    await_stopped(pipeline, f"has {count + 3} partitions")
    pipeline.items.query("INSERT INTO items SELECT n, 'more' FROM generate_series(201, 300) n")
    pipeline.items.cdc("table", "start", "public.items")
    require_shown(pipeline)


@pytest.mark.promise(2)
def test_a_store_that_outlives_its_topics_is_filled_again(pipeline: Pipeline, admin: AdminClient) -> None:
    """Seen: epochs began again at 1, so the store took each new row for an older one, and deleted rows stayed."""
    pipeline.items.running().kill()
    pipeline.items.drop_slot()
    names = [name for name in admin.list_topics(timeout=10).topics if name.startswith(pipeline.items.name)]
    for deleted in admin.delete_topics(names).values():
        deleted.result(30)
    eventually(lambda: not set(names) & set(admin.list_topics(timeout=10).topics), 30.0, "the topics are deleted")
    pipeline.items.query("DELETE FROM items WHERE id > 100")
    pipeline.items.query("UPDATE items SET name = 'second life' WHERE id > 50")
    pipeline.items.start()
    require_shown(pipeline, 180.0)
