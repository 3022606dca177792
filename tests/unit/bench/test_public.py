"""The public benchmark without servers: raw data and resuming, statistics and the rule of the control, parsing."""

import json
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException

from cdc.model.errors import StackError
from tests.bench.public import __main__ as command
from tests.bench.public import machine
from tests.bench.public.bench import FULL, QUICK, milliseconds, rate
from tests.bench.public.catchup import ARMS, backlogs
from tests.bench.public.evaluation import (
    CONTROL,
    DEBEZIUM,
    READER,
    WATERSHED,
    control_difference,
    figures,
    results,
)
from tests.bench.public.live import Arrival, parse
from tests.bench.public.machine import processor, pss_kib
from tests.bench.public.others import arguments, cases_of
from tests.bench.public.raw_data import RawData, identity, in_turn, missing, read
from tests.bench.public.restart import outcome

ENVIRONMENT = {"commit": "abc", "date": "2026-11-27", "command": "make bench", "rounds": 3}


def measured(path: Path, rates: dict[str, list[float]], foreign_share: float = 0.0) -> RawData:
    """Runs of the case `narrow`, a list of rows/s for each arm."""
    raw = RawData(path, {**ENVIRONMENT, "rounds": len(rates[WATERSHED])})
    for arm, values in rates.items():
        for number, value in enumerate(values, 1):
            raw.add("narrow", arm, number, {"rows_per_s": value, "foreign_share": foreign_share})
    return raw


# ---- raw data


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "catchup.jsonl"
    raw = RawData.opened(path, ENVIRONMENT)
    raw.add("narrow", WATERSHED, 1, {"rows_per_s": 90_000, "rows_per_s_second_half": None})
    again = RawData.opened(path, {**ENVIRONMENT, "date": "2026-11-28"})
    assert again.runs == raw.runs
    assert again.environment == ENVIRONMENT
    assert [entry.name for entry in path.parent.iterdir()] == ["catchup.jsonl"], "nothing half-written is left"


def test_an_interrupted_measurement_continues_after_the_last_complete_run(tmp_path: Path) -> None:
    raw = RawData.opened(tmp_path / "catchup.jsonl", ENVIRONMENT)
    everything = missing(raw, ["narrow", "wide"], ARMS, 2)
    assert len(everything) == len(set(everything)) == 16
    for case, arm, number in everything[:5]:
        raw.add(case, arm, number, {})
    assert missing(RawData.opened(raw.path, ENVIRONMENT), ["narrow", "wide"], ARMS, 2) == everything[5:]


def test_each_arm_is_first_in_its_turn() -> None:
    orders = [in_turn(["a", "b", "c"], number) for number in range(1, 4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


def test_runs_of_another_environment_are_not_continued(tmp_path: Path) -> None:
    raw = RawData.opened(tmp_path / "catchup.jsonl", ENVIRONMENT)
    raw.add("narrow", WATERSHED, 1, {})
    with pytest.raises(StackError, match="another environment"):
        RawData.opened(raw.path, {**ENVIRONMENT, "commit": "def"})
    assert identity(ENVIRONMENT) == identity({**ENVIRONMENT, "command": "python -m …"})


@pytest.mark.parametrize("damage", ["", "{", '{"case": "narrow"}', "[]"])
def test_damaged_raw_data_is_named_with_its_line(tmp_path: Path, damage: str) -> None:
    raw = RawData(tmp_path / "catchup.jsonl", ENVIRONMENT)
    raw.add("narrow", WATERSHED, 1, {})
    lines = raw.path.read_text(encoding="utf-8").splitlines()
    raw.path.write_text("\n".join([*lines, damage, ""]), encoding="utf-8")
    with pytest.raises(StackError, match=r"catchup.jsonl, line 3, .*\n  next: "):
        read(raw.path)


# ---- statistics


def test_a_case_may_be_quoted_if_its_control_holds(tmp_path: Path) -> None:
    rates = {
        WATERSHED: [88.0, 90.0, 95.0],
        CONTROL: [99.0, 85.0, 91.0],
        DEBEZIUM: [30.0, 29.0, 31.0],
        READER: [120.0] * 3,
    }
    (result,) = results({"catchup": measured(tmp_path / "catchup.jsonl", rates)})
    assert result.objection == ""
    assert result.spreads[WATERSHED] == (88.0, 95.0)
    assert result.difference == pytest.approx(1 / 90.5)
    quotable = figures([result])
    assert quotable["catchup.narrow.watershed.rows_per_s"] == 90
    assert quotable["catchup.narrow.ratio"] == 3
    assert quotable["catchup.narrow.share"] == 75


@pytest.mark.parametrize(
    ("ours", "again", "objection"),
    [
        ([100.0] * 3, [110.0] * 3, ""),
        ([100.0] * 3, [111.0] * 3, "the control differs by 10%, 10% at most"),
        ([100.0] * 3, [80.0] * 3, "the control differs by 22%, 10% at most"),
        ([100.0] * 3, [100.0] * 2, "3 runs were to be made, control has 2"),
        ([100.0] * 3, [], "there is no control"),
    ],
)
def test_a_control_that_differs_forbids_quoting(
    tmp_path: Path, ours: list[float], again: list[float], objection: str
) -> None:
    (result,) = results({"catchup": measured(tmp_path / "catchup.jsonl", {WATERSHED: ours, CONTROL: again})})
    assert result.objection == objection
    assert bool(figures([result])) is (objection == "")


def test_runs_beside_other_programs_do_not_count(tmp_path: Path) -> None:
    raw = measured(tmp_path / "catchup.jsonl", {WATERSHED: [100.0] * 5, CONTROL: [100.0] * 5})
    raw.add("narrow", WATERSHED, 6, {"rows_per_s": 1.0, "foreign_share": 0.06})
    raw.add("narrow", CONTROL, 6, {"rows_per_s": 100.0, "foreign_share": 0.05})
    (result,) = results({"catchup": raw})
    assert result.counts == {WATERSHED: (5, 6), CONTROL: (6, 6)}
    assert result.value(WATERSHED, "rows_per_s") == 100
    loaded = measured(tmp_path / "loaded.jsonl", {WATERSHED: [100.0] * 5, CONTROL: [100.0] * 5}, foreign_share=0.3)
    (result,) = results({"catchup": loaded})
    assert result.objection == "other programs used more than 5% of the machine in 5 of 5 runs of watershed"


def test_fewer_milliseconds_are_better(tmp_path: Path) -> None:
    raw = RawData(tmp_path / "latency.jsonl", {**ENVIRONMENT, "rounds": 1})
    for arm, value in ((WATERSHED, 10.0), (CONTROL, 10.0), (DEBEZIUM, 15.0)):
        raw.add("100_per_s", arm, 1, {"p50_ms": value})
    assert figures(results({"latency": raw}))["latency.100_per_s.ratio"] == 1.5


def test_differences_are_relative_to_the_mean() -> None:
    assert control_difference(90, 110) == control_difference(110, 90) == 0.2
    assert control_difference(0, 0) == 0


def test_percentiles_are_nearest_ranks() -> None:
    assert milliseconds([number / 1000 for number in range(100, 0, -1)]) == {
        "p50_ms": 50,
        "p95_ms": 95,
        "p99_ms": 99,
        "max_ms": 100,
    }


def test_a_rate_needs_two_places() -> None:
    assert rate((10.0, 100), (12.0, 300)) == 100
    assert rate((10.0, 300), (10.0, 300)) is None


# ---- parsing


def test_a_row_is_found_in_the_records_of_both_systems() -> None:
    ours = b'{"before":null,"after":{"id":7,"a":1,"j":"{\\"k\\": 7}","t_us":1790000000000001},"source":{"ts_us":5}}'
    theirs = b'{"before": null, "after": {"id": 7, "a": 1, "t_us": 1790000000000001}, "op": "c"}'
    assert parse(ours) == parse(theirs) == (7, 1790000000000001)
    assert parse(b'{"before":{"id":7},"after":null,"op":"d"}') is None


def test_duplicates_losses_and_recovery_are_counted() -> None:
    before = [Arrival(number, 8.0, 9.0) for number in (1, 2, 3)]
    in_flight = [Arrival(4, 9.9, 10.01)]
    after = [Arrival(2, 8.0, 11.0), Arrival(3, 8.0, 11.5), Arrival(5, 10.1, 12.25), Arrival(7, 10.5, 13.0)]
    assert outcome([*before, *in_flight, *after], 7, killed_at=10.0) == {
        "recovery_s": 2.25,
        "duplicates": 2,
        "lost": 1,
        "readable_before_kill": 3,
    }


def test_the_numbers_of_another_benchmark_become_cases() -> None:
    found: dict[str, Any] = {
        "cache": {"rows_per_s": 9, "alone_300": {"rate": 300, "ok": True}, "name": "x"},
        "together 300": {},
        "note": 1,
    }
    assert cases_of(found) == {"cache": {"rows_per_s": 9.0, "alone_300_rate": 300.0}}


def test_a_backlog_of_stores_is_several_steps_of_each_that_is_measured() -> None:
    full, quick = arguments("stores", FULL), arguments("stores", QUICK)
    assert full[: full.index("--rows") + 2] == ["--rows", "500000"]
    assert "--only" not in full
    assert quick[quick.index("--only") + 1] == "cache"


def test_facts_of_the_machine_are_parsed() -> None:
    assert processor("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags: x\n") == "Some CPU @ 2 GHz"
    assert processor("") == os.uname().machine
    assert pss_kib("00400000-7ffd0000 ---p 0 00:00 0 [rollup]\nRss:  100 kB\nPss:   42 kB\nPss_Anon: 7 kB\n") == 42
    assert pss_kib("") == 0


def test_the_processor_time_of_the_start_is_not_that_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"s": 5.0}
    monkeypatch.setattr(machine, "cpu_s", lambda _: used["s"])
    with machine.Meter(os.getpid(), []) as meter:
        used["s"] = 15.0
        meter.end_start()
        used["s"] = 18.0
    assert meter.start_cpu_s == 10
    assert meter.figures(100_000)["cpu_s_per_million"] == 30
    assert meter.figures(0)["cpu_s_per_million"] is None, "all rows came at once"


def test_a_quick_run_is_smaller_and_one_transaction_stays_one() -> None:
    for size in (FULL, QUICK):
        found = {one.name: one for one in backlogs(size)}
        assert found["one_transaction"].rows == found["one_transaction"].rows_per_transaction == size.large_rows
        assert found["single"].rows_per_transaction == 1
    assert sum(one.rows for one in backlogs(QUICK)) < sum(one.rows for one in backlogs(FULL)) / 10


# ---- what the machine lacks


def test_one_core_is_refused_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert command.main(["catchup"]) == 1
    assert "one core only" in (said := capsys.readouterr().err)
    assert "\n  next: " in said


def test_what_can_not_be_fetched_or_found_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_java() -> Path:
        raise StackError("Spark needs a full Java 17 or 21; there is no Java on this machine", "install one")

    def no_jars(_: str, **__: object) -> list[Path]:
        raise StackError("io.debezium:debezium-api:3 can't be had from Maven Central: timeout", "check the network")

    monkeypatch.setattr(command, "resolve", no_jars)
    assert command.main(["catchup"]) == 1
    monkeypatch.setattr(command, "spark_java", no_java)
    assert command.main(["catchup"]) == 1
    assert command.main(["catch-up"]) == 1
    said = capsys.readouterr().err
    assert "can't be had from Maven Central: timeout\n  next: check the network" in said
    assert "there is no Java on this machine\n  next: install one" in said
    assert "there is no part 'catch-up'\n  next: choose from catchup, " in said


@pytest.mark.parametrize("failure", [psycopg.OperationalError("the server is gone"), KafkaException("no leader")])
def test_what_servers_refuse_is_one_line_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception
) -> None:
    def refused(*_: object) -> Path:
        raise failure

    monkeypatch.setattr(command, "measured", refused)
    assert command.main(["catchup"]) == 1
    assert capsys.readouterr().err == f"error: {failure}\n  next: start it again: it continues\n"


def test_the_environment_of_each_part_is_json_with_its_settings() -> None:
    for part in command.PARTS:
        found = json.loads(json.dumps(command.of_part(part, FULL)))
        assert found["rounds"] == (1 if part in ("stores", "views") else FULL.rounds)
    assert command.of_part("latency", FULL)["settings"]["debezium"]["connector"]["poll.interval.ms"] == "10"
    assert FULL.rounds >= 5
