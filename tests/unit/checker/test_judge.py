"""The judge as a whole: it complains where a rule does, and it stands on its own feet."""

import ast
from pathlib import Path

import pytest

import tests.checker
from tests.checker.judge import Evidence, judge, require_true, table_topic
from tests.unit.checker.made import PARTITIONS, TOPIC, Log, entry, position


def evidence(log: Log, seq: int) -> Evidence:
    return Evidence(
        tables=["public.t"],
        partition_counts={TOPIC: PARTITIONS},
        table_records=log.records,
        state=[position(0, resume_lsn=300, seq=seq)],
        control=[],
        progress=[],
        journal=[entry(1, "INSERT", None, 1)],
        rows={"public.t": [({"id": 1}, {"id": 1, "name": "x"})]},
    )


def test_what_is_true_passes() -> None:
    log = Log()
    log.change("c", 1, commit_lsn=200)
    report = require_true(evidence(log, 1))
    assert (report.ops, report.epoch) == ({"c": 1}, 1)


def test_complaints_name_their_rule() -> None:
    log = Log()
    log.change("c", 1, commit_lsn=200)
    log.change("c", 2, commit_lsn=200, tx_index=1)
    report = judge(evidence(log, 1))
    assert {line.split(":")[0] for line in report.complaints} == {"state truth", "stream", "rows"}
    with pytest.raises(AssertionError, match="the judge complains"):
        require_true(evidence(log, 1))


def test_a_value_that_can_not_be_read_is_a_complaint_and_no_crash() -> None:
    log = Log()
    log.append(b"k", b"not JSON")
    assert judge(evidence(log, 0)).complaints != ()


@pytest.mark.parametrize(
    ("table", "topic"),
    [("public.t", "p.public.t"), ('public.we.ird "T" 漢', "p.public.we.ird__T___"), ("a.B-c_9", "p.a.B-c_9")],
)
def test_a_tables_topic_has_its_name(table: str, topic: str) -> None:
    assert table_topic("p", table) == topic


def test_the_judge_shares_no_code_with_what_it_judges() -> None:
    imported = set()
    for file in Path(tests.checker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(".".join((node.module or "").split(".")[:2]))
    assert {name for name in imported if not name.startswith("tests.checker")} <= {
        "bisect", "collections", "collections.abc", "confluent_kafka", "contextlib", "dataclasses", "decimal",
        "functools", "itertools", "json", "psycopg", "time", "typing", "zlib",
    }  # fmt: skip
