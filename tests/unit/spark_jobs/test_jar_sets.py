"""Which jars the sinks' job needs."""

from pathlib import Path
from typing import Any

import pytest

from cdc.config.config_file import Config, load_config
from spark_jobs.class_archive import JAR_SETS
from spark_jobs.jar_sets import jar_sets
from tests.support.sink_job import write_config


@pytest.mark.parametrize(
    ("section", "spark", "has_aws"),
    [
        ({"catalog_uri": "jdbc:sqlite:c.db", "location": "/x"}, {}, False),
        ({"catalog_uri": "jdbc:sqlite:c.db", "location": "s3://b/x"}, {}, True),
        ({"catalog": {"type": "glue"}, "location": "hdfs://b/x"}, {}, True),
        ({"catalog_uri": "jdbc:sqlite:c.db", "location": "/x"}, {"checkpoint_location": "s3a://b/c"}, True),
    ],
)
def test_the_large_jars_are_loaded_where_a_configuration_needs_them(
    tmp_path: Path, section: dict[str, Any], spark: dict[str, Any], has_aws: bool
) -> None:
    sets = jar_sets(load_config(write_config(tmp_path, "127.0.0.1:1", "shop", {"warehouse": section}, **spark)))
    assert sets == (*JAR_SETS, "aws") if has_aws else sets == JAR_SETS


def test_the_target_of_a_view_is_a_warehouse_like_a_sink(tmp_path: Path) -> None:
    sinks = {"copy": {"type": "sql", "url": "postgresql://localhost/copy"}}
    config = load_config(write_config(tmp_path, "127.0.0.1:1", "shop", sinks))
    target = {"type": "warehouse", "catalog_uri": "jdbc:sqlite:c.db", "location": "s3://b/x"}
    view = {"base": "copy", "sql": "SELECT id FROM a", "key": ["id"], "target": target}
    settings = Config.model_validate(config.model_dump(exclude_unset=True) | {"views": {"totals": view}})
    assert jar_sets(config) == JAR_SETS
    assert jar_sets(settings) == (*JAR_SETS, "aws")
