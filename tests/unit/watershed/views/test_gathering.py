"""When keys are written: at once, or together with others after an interval."""

from cdc.config.config_file import Config
from watershed.views.gathering import Gathering
from watershed.views.targets import gathering


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_first_write_does_not_wait_and_the_next_one_waits_for_the_interval() -> None:
    clock = Clock()
    one = Gathering(10, 5.0, clock)
    assert one.is_due()
    one.begin(3)
    clock.now_s += 4.9
    assert not one.is_due()
    clock.now_s += 0.1
    assert one.is_due()


def test_keys_that_are_too_many_for_one_write_do_not_wait() -> None:
    clock = Clock()
    one = Gathering(10, 5.0, clock)
    one.begin(10)
    assert one.is_due()
    one.begin(9)
    assert not one.is_due()


def test_without_an_interval_keys_never_wait() -> None:
    clock = Clock()
    one = Gathering(10, now=clock)
    one.begin(1)
    assert one.is_due()


def test_a_warehouse_is_written_at_its_trigger_with_many_keys() -> None:
    view = {"base": "copy", "sql": "SELECT id FROM orders", "key": ["id"], "keys_per_batch": 7}
    settings = Config.model_validate(
        {
            "source": {"dsn": "postgresql://localhost/shop", "tables": ["public.orders"]},
            "kafka": {"bootstrap_servers": "localhost:9092"},
            "topics": {"prefix": "shop"},
            "sinks": {"copy": {"type": "sql", "url": "postgresql://localhost/copy"}},
            "views": {
                "lake": view | {"target": {"type": "warehouse", "catalog_uri": "jdbc:sqlite:/c.db", "location": "/w"}},
                "stream": view | {"target": {"type": "topic"}},
            },
        }
    )
    lake, stream = gathering(settings, "lake"), gathering(settings, "stream")
    assert (lake.keys_max, stream.keys_max) == (10_000, 7)
    lake.begin(1)
    stream.begin(1)
    assert (lake.is_due(), stream.is_due()) == (False, True)
