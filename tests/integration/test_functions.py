"""A Python function of a running sink: its columns, rows without a result, rows that it leaves out, another version."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis as redis_client

from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.integration.test_shaped_sinks import becomes
from tests.support.captured import Captured, under_capture
from tests.support.functions import install
from tests.support.sink_job import SinkJob

pytestmark = pytest.mark.long

PEOPLE: Final = "CREATE TABLE people (id bigint PRIMARY KEY, name text, visits integer)"
FILL: Final = "INSERT INTO people SELECT n, 'name ' || n, n FROM generate_series(1, 40) AS n"
RESULTS: Final = "SELECT id, upper(name), trim_scale(visits / 2.0)::text FROM people WHERE visits NOT BETWEEN 13 AND 20"
LIMIT_S: Final = 1.5


@pytest.fixture
def people(
    postgres: PostgresServer,
    kafka: KafkaBroker,
    redis: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("functions")
    install(folder / "packages", monkeypatch, {"label": "functions_of_tests:LABEL"})
    paths = [str(folder / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    with (
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, PEOPLE, ["public.people"]) as made,
    ):
        mapping = {"function": "label", "function_time_limit_s": LIMIT_S, "exclude": ["name"]}
        made.settings = {
            "sinks": {"cache": {"url": redis, "mapping": {"public.people": mapping}}},
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
        }
        made.query(FILL)
        made.start()
        yield made


def test_a_function_of_a_running_sink(people: Captured, redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def documents() -> dict[int, tuple[Any, ...]]:
        with redis_client.Redis.from_url(redis, decode_responses=True) as client:
            beginning = f"{people.name}:public.people:"
            keys = [key for key in client.scan_iter(f"{beginning}*", count=1000) if key != beginning]
            rows = [json.loads(str(held)) for key in keys if (held := client.hget(key, "doc")) is not None]
        assert all(row.keys() == {"id", "visits", "label", "score"} for row in rows)
        return {row["id"]: (row["label"], row["score"]) for row in rows}

    def wanted() -> dict[int, tuple[Any, ...]]:
        return {key: tuple(values) for key, *values in people.query(RESULTS)}

    def cdc(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "watershed", *words, "--config", str(people.config())]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def letters() -> dict[int, str]:
        found = json.loads(people.cdc("dlq", "list", "--json"))["dead_letters"]
        return {one["key"]["id"]: one["reason"].removeprefix("function label: ") for one in found}

    (planned,) = json.loads(cdc("check", "--json").stdout)["sinks"]
    assert planned["columns"] == ["id", "visits", "label", "score"]
    rejected = {
        13: "ValueError: unlucky name 13",
        14: "it returned no column score",
        15: "column score is of type float, not Decimal or int, finite",
        16: f"no result within {LIMIT_S:g} s",
        17: f"no result within {LIMIT_S:g} s",
        18: "its process ended while it computed the row",
        20: "SystemExit: stop",
    }
    with SinkJob(people.config(), "cache") as job:
        becomes(letters, rejected, "dead letters")
        becomes(documents, wanted(), "all other rows but the one that is left out")
        people.query("UPDATE people SET visits = 100 + visits WHERE id < 18 AND id <> 12")
        people.query("UPDATE people SET visits = 19 WHERE id = 12")
        becomes(documents, wanted(), "changed rows, and without one that is left out now")
        becomes(letters, {18: rejected[18], 20: rejected[20]}, "values close dead letters")
        differing = cdc("verify")
        assert "  2 missing" in differing.stdout, differing.stdout + differing.stderr
        assert "the store rejects the row: function label: SystemExit: stop" in differing.stdout
        people.query("UPDATE people SET visits = 0 WHERE id IN (18, 20)")
        becomes(documents, wanted(), "all rows")
        equal = cdc("verify")
        assert equal.returncode == 0, equal.stdout + equal.stderr
        job.terminate()

    # Another version: the table is built again.
    packages = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    install(packages, monkeypatch, {"label": "functions_of_tests:CHANGED"})
    findings = [one["message"] for one in json.loads(cdc("check", "--json").stdout)["findings"]]
    assert any("builds public.people again (its mapping has changed)" in message for message in findings)
    with SinkJob(people.config(), "cache") as job:
        job.wait_said("mapping changed")
        becomes(documents, wanted(), "rows of the version of now")
        job.terminate()
    # Without its package the sink stops, with an error that names the function; the rows stay.
    before = documents()
    install(packages, monkeypatch, {})
    with SinkJob(people.config(), "cache") as job:
        job.wait_said("there is no function label")
        job.terminate()
    assert documents() == before
    refused = cdc("check")
    assert refused.returncode == 1 and "there is no function label" in " ".join(
        (refused.stdout + refused.stderr).split()
    )
