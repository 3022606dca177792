"""Warehouses on S3, in SQLite's catalog and in Glue, and a checkpoint there, on a real server of these protocols."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.catalog import load_catalog

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from sinks.errors import SinkError
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.check import check_place
from sinks.warehouse.object_store import file_system
from tests.conftest import INTERPRETED, KafkaBroker
from tests.support.feed import Feed
from tests.support.lake_servers import KEYS, amazon, make_bucket
from tests.support.sink_job import SinkJob, write_config

pytestmark = [pytest.mark.whole, pytest.mark.long]

COLUMNS: Final = {"id": (20, "bigint"), "name": (25, "text")}
SINKS: Final = ("lake", "glued")


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The credentials for Glue are in the environment, as Amazon's clients expect them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_access_key"])
    with amazon(tmp_path) as found:
        yield found


def sections(folder: Path, endpoint: str) -> dict[str, Any]:
    s3 = make_bucket(endpoint, "data")
    glue = {"type": "glue", "properties": {"glue.endpoint": endpoint}}
    sqlite = {"type": "jdbc", "uri": f"jdbc:sqlite:{folder}/catalog.db"}
    return {
        "lake": {"type": "warehouse", "catalog": sqlite, "location": "s3://data/lake", "s3": s3},
        "glued": {"type": "warehouse", "catalog": glue, "location": "s3://data/glued", "s3": s3},
    }


def checkpoint_options(endpoint: str) -> dict[str, str]:
    given = {"access.key": KEYS["access_key_id"], "secret.key": KEYS["secret_access_key"], "endpoint": endpoint}
    options = given | {"path.style.access": "true", "endpoint.region": "us-east-1"}
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()}


def read(sink: str, feed: Feed, folder: Path, endpoint: str) -> dict[int, str]:
    """Returns what any reader with PyIceberg sees, without code of ours."""
    files = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
    files |= {"s3.access-key-id": KEYS["access_key_id"], "s3.secret-access-key": KEYS["secret_access_key"]}
    if sink == "lake":
        catalog = load_catalog("watershed", type="sql", uri=f"sqlite:///{folder}/catalog.db", **files)
        name: tuple[str, ...] = (feed.prefix, "public", "people")
    else:
        where = {"glue.endpoint": endpoint, "glue.region": "us-east-1"}
        catalog, name = load_catalog("watershed", type="glue", **where, **files), (f"{feed.prefix}_public", "people")
    table = catalog.load_table(name)
    assert table.metadata_location.startswith(f"s3://data/{sink}/")
    return {row["id"]: row["name"] for row in table.scan().to_arrow().to_pylist()}


def objects(config: Config, folder: str) -> set[str]:
    """The files below a folder of the bucket."""
    from pyarrow.fs import FileSelector

    section = config.sinks["lake"]
    assert isinstance(section, WarehouseConfig)
    system, path = file_system(f"s3://data/{folder}", section.s3)
    found = system.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return {info.path for info in found if info.is_file}


def test_rows_are_read_back_from_s3_and_glue(kafka: KafkaBroker, tmp_path: Path, endpoint: str) -> None:
    feed = Feed(kafka.bootstrap_servers, f"t{secrets.token_hex(5)}")
    feed.add_table("people", COLUMNS, ["id"])
    feed.begin()
    for number in range(300):
        feed.upsert("people", id=number, name=f"name {number}")
    feed.commit()
    path = write_config(
        tmp_path,
        kafka.bootstrap_servers,
        feed.prefix,
        sections(tmp_path, endpoint),
        tables=["public.people"],
        checkpoint_location="s3a://data/checkpoints",
        options=INTERPRETED | checkpoint_options(endpoint),
    )
    expected = {number: f"name {number}" for number in range(300)}
    with SinkJob(path, *SINKS) as job:
        job.wait_applied(feed.progress(), *SINKS)
        assert {sink: read(sink, feed, tmp_path, endpoint) for sink in SINKS} == dict.fromkeys(SINKS, expected)
        feed.begin()
        feed.upsert("people", id=3, name="another")
        feed.delete("people", id=4)
        feed.commit()
        job.wait_applied(feed.progress(), *SINKS)
        assert job.terminate()[0] == 0
    expected = {number: name for number, name in expected.items() if number != 4} | {3: "another"}
    assert {sink: read(sink, feed, tmp_path, endpoint) for sink in SINKS} == dict.fromkeys(SINKS, expected)
    assert objects(job.config, f"checkpoints/{feed.prefix}/lake"), "the checkpoint is there"
    assert not objects(job.config, "lake/.staging") | objects(job.config, "glued/.staging"), "merged files are deleted"
    assert {name: outcome(job.config, name) for name in SINKS} == {
        "lake": "s3://data/lake",
        "glued": "s3://data/glued, in the glue catalog",
    }


def outcome(config: Config, sink: str) -> str:
    """Returns what `cdc check` says about the sink's place."""
    section = config.sinks[sink]
    assert isinstance(section, WarehouseConfig)
    return check_place(catalog_place(section, config.topics.prefix))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"location": "s3://nowhere/lake"}, "there is no bucket nowhere"),
        ({"s3": {"endpoint": "http://127.0.0.1:1"}}, "the object store of bucket data does not answer as expected"),
    ],
)
def test_check_names_a_location_that_cannot_be_used(
    tmp_path: Path, endpoint: str, change: dict[str, Any], says: str
) -> None:
    section = sections(tmp_path, endpoint)["lake"]
    section |= change | ({"s3": section["s3"] | change["s3"]} if "s3" in change else {})
    with pytest.raises(SinkError, match=says):
        check_place(catalog_place(WarehouseConfig.model_validate(section), "shop"))
