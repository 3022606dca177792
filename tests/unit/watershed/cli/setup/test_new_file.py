"""A new configuration file, and the SQL beside it."""

from dataclasses import replace
from pathlib import Path

from cdc.config.config_file import load_config
from cdc.model.events import TableId
from watershed.cli.setup.new_file import NewConfiguration, TableCandidate, configuration_text, source_sql

GOOD = TableCandidate(TableId("public", "orders"), ("id",))
ODD = TableCandidate(TableId("my schema", 'we"ird: #'), ("a", "b"))
KEYLESS = TableCandidate(TableId("public", "log"), (), "it has no key", "ALTER TABLE log ADD PRIMARY KEY (…);")


def new(*tables: TableCandidate, is_logical: bool = True, has_wal_limit: bool = True) -> NewConfiguration:
    return NewConfiguration(
        dsn="host=db.example port=5432 dbname=shop user=me options='-c a=b'",
        bootstrap_servers="kafka.example:9092,other:9092",
        prefix="shop",
        slot="watershed",
        role="capture role",
        has_role=False,
        is_logical=is_logical,
        has_wal_limit=has_wal_limit,
        tables=tables,
    )


def test_the_file_is_a_configuration_of_what_can_be_captured(tmp_path: Path) -> None:
    file = tmp_path / "new.yml"
    file.write_text(configuration_text(new(GOOD, ODD, KEYLESS)), encoding="utf-8")
    config = load_config(file)
    assert config.source.dsn.get_secret_value() == new().dsn
    assert config.source.table_ids == (GOOD.table, ODD.table)
    assert (config.source.slot, config.source.publication) == ("watershed", "watershed")
    assert config.kafka.bootstrap_servers == "kafka.example:9092,other:9092"
    assert config.topics.prefix == "shop"


def test_a_table_that_cannot_be_captured_is_a_comment_with_what_mends_it() -> None:
    text = configuration_text(new(GOOD, KEYLESS))
    assert "    # - public.log  # it has no key\n    #     ALTER TABLE log ADD PRIMARY KEY (…);" in text


def test_names_that_yaml_reads_as_something_else_are_quoted(tmp_path: Path) -> None:
    file = tmp_path / "new.yml"
    for prefix in ("null", "no", "1e5", "007"):
        made = new(GOOD)
        file.write_text(configuration_text(replace(made, prefix=prefix)), encoding="utf-8")
        assert load_config(file).topics.prefix == prefix


def test_the_sql_leaves_the_password_of_a_role_that_exists() -> None:
    first = source_sql(replace(new(GOOD), has_role=True))[0]
    assert first == 'ALTER ROLE "capture role" LOGIN REPLICATION;  -- it exists, and keeps its password'


def test_the_sql_makes_role_grants_and_publication() -> None:
    assert source_sql(new(GOOD, ODD, KEYLESS)) == [
        """CREATE ROLE "capture role" LOGIN REPLICATION PASSWORD '…';""",
        'GRANT USAGE ON SCHEMA public TO "capture role";',
        'GRANT USAGE ON SCHEMA "my schema" TO "capture role";',
        'GRANT SELECT ON public.orders TO "capture role";',
        'GRANT SELECT ON "my schema"."we""ird: #" TO "capture role";',
        'CREATE PUBLICATION watershed FOR TABLE ONLY public.orders, ONLY "my schema"."we""ird: #" '
        "WITH (publish_via_partition_root = true);",
    ]


def test_settings_that_are_missing_come_first() -> None:
    first = source_sql(new(GOOD, is_logical=False, has_wal_limit=False))[:3]
    assert first[0].startswith("ALTER SYSTEM SET wal_level = logical;")
    assert first[1].startswith("ALTER SYSTEM SET max_slot_wal_keep_size = ")
    assert first[2] == "SELECT pg_reload_conf();"
