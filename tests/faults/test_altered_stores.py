"""Tables that are altered while capture and sinks run, as the stores see it. At length, and in the warehouse too, in
schema_campaign; its tables' new versions are in tests/conformance."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.faults.schema_campaign import FOLLOWED, altered, settings
from tests.support.captured import Captured, under_capture
from tests.support.schema_cases import TYPES, make

pytestmark = [pytest.mark.whole, pytest.mark.long]

NAMES: Final = ("add_null", "add_default_quiet", "rename_column", "retype", "anew", "detached")
SOME: Final = tuple(case for case in FOLLOWED if case.name in NAMES)
STORES: Final = ("search", "cache")
WAIT_S: Final = 240.0  # other tests' servers may share the machine


@pytest.fixture
def captured(
    postgres: PostgresServer,
    kafka: KafkaBroker,
    opensearch: str,
    redis: str,
    fresh_database: str,
    unique: str,
    tmp_path: Path,
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TYPES, []) as made:
        made.settings = settings(tmp_path, opensearch, redis)
        made.tables = [case.table for case in SOME]
        with made.connect() as connection:
            make(connection, SOME)
        yield made


@pytest.mark.promise(2)
def test_every_store_is_the_source_after_its_tables_were_altered(captured: Captured) -> None:
    assert len(SOME) == len(NAMES)
    altered(captured, SOME, random.Random(1), kills=1, wait_s=WAIT_S, stores=STORES)
