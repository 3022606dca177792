"""What `cdc check` says of the cost of ALTER TABLE."""

from cdc.config.config_file import Config
from watershed.cli.findings.alter import alter_findings


def test_tables_are_named_with_the_reason_for_which_their_rows_are_published_again() -> None:
    tables = [f"public.t{number}" for number in range(8)]
    config = Config.model_validate(
        {
            "source": {"dsn": "host=db", "tables": tables},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
            "outbox": {"tables": [{"table": "public.events"}]},
            "sinks": {
                "sql": {"url": "sqlite:///store.db"},
                "search": {"url": "http://search:9200", "tables": ["public.t7"]},
            },
        }
    )
    some = "public.t0, public.t1, public.t2, public.t3, public.t4 and 2 more"
    again, until = "all rows are published again: sink search", "in each row until the row is written again"
    assert [(one.about, one.level, one.message) for one in alter_findings(config)] == [
        ("snapshot.after_alter", "ok", message)
        for message in (
            f"after DROP COLUMN in {some} no row is published again",
            f"after DROP COLUMN in public.t7 {again} keeps a dropped column {until}",
            f"after ADD COLUMN with a constant default in {some} no row is published again",
            f"after ADD COLUMN with a constant default in public.t7 {again} lacks an added column {until}",
        )
    ]
