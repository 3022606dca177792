"""The long run of chunks: thousands of them beside a hot workload, with kills at random, into all three stores.

    python -m tests.faults.snapshot_campaign --chunks 10000 --folder .watershed/snapshot-campaign

First with our rule: no row may differ. Then with the published one: rows must, or this run proves nothing. It is made
of episodes, each a seed with a database and topics of its own; each is a line in `episodes.jsonl`, and a run that is
started again goes on behind the last one.
"""

import argparse
import json
import random
import secrets
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import RESULTS, servers
from tests.support.captured import NAIVE, under_capture
from tests.support.forked import CDC
from tests.support.hot_snapshots import SETTINGS, HotRun, compare_stores, evidence, published, wrong_rows
from tests.support.hot_workload import SCHEMA, TABLES, thaw
from tests.support.sink_job import SinkJob
from tests.support.stores import ALL, sinks_section
from watershed.devstack.stack import Stack

RULES: Final = {"ours": CDC, "published": NAIVE}
EPISODE_CHUNKS: Final = 2_500  # more would be much for the judge, who has all records in memory
CHUNKS_PER_KILL: Final = 100
SINK_KILL_CHANCE: Final = 0.1  # beside a kill of capture; Spark takes a while to start
APPLIED_S_MAX: Final = 900.0


def episode(seed: int, rule: str, chunks: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start()
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        thaw(connection)
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    name = f"s{seed}_{secrets.token_hex(3)}"
    with new_database(server) as dsn, under_capture(server, kafka, dsn, name, folder, SCHEMA, TABLES) as captured:
        captured.settings = {
            **SETTINGS,
            "sinks": sinks_section(folder, endpoints.opensearch_url, endpoints.redis_url),
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "warehouse_trigger_ms": 5_000},
        }
        run = HotRun(captured, seed, module=RULES[rule])
        run.begin()
        with ExitStack() as jobs:
            job = [jobs.enter_context(SinkJob(captured.config(), *ALL, log_level="info"))]

            def kill_sinks_too() -> None:
                if chance.random() < SINK_KILL_CHANCE:
                    job[0].kill()
                    job[0] = jobs.enter_context(SinkJob(captured.config(), *ALL, log_level="info"))
                    run.figures["sink_kills"] += 1

            run.churn(chunks, chunks // CHUNKS_PER_KILL, kill_sinks_too)
            job[0].wait_applied(captured.progress(), *ALL, deadline_s=APPLIED_S_MAX)
            found = compare_stores(captured, ALL)
            given = evidence(captured)
    wrong = wrong_rows(found)
    reported = {
        "rule": rule,
        "seed": seed,
        **run.figures,
        **published(given),
        "rows": sum(one.source_rows for one in found["cache"]),
        "differences": {store: sum(one.differences for one in tables) for store, tables in found.items()},
    }
    if not wrong and not reported["complaints"]:
        shutil.rmtree(folder)
    else:
        (folder / "wrong.json").write_text(json.dumps(wrong, indent=1, ensure_ascii=False), encoding="utf-8")
    return reported


def is_as_it_should(reported: dict[str, Any]) -> bool:
    """With our rule nothing is wrong; with the published one rows are stale in the topics and in the stores."""
    wrong = sum(reported["differences"].values())
    if reported["rule"] == "ours":
        return not wrong and not reported["complaints"]
    return bool(wrong) and bool(reported["stale"])


def summary(rule: str, episodes: Sequence[dict[str, Any]]) -> str:
    """One line."""
    figures = ("chunks", "kills", "sink_kills", "freezes", "truncates", "transactions", "events", "chunk_rows", "rows")
    summed = ", ".join(f"{name} {sum(each.get(name, 0) for each in episodes):,}" for name in figures)
    wrong = {store: sum(each["differences"][store] for each in episodes) for store in ALL}
    published = ", ".join(f"{name} {sum(each[name] for each in episodes):,}" for name in ("stale", "resurrected"))
    return f"{rule}: {len(episodes)} episodes, {summed}; published wrong: {published}; differences in stores: {wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=10_000, help="of each rule")
    parser.add_argument("--episode-chunks", type=int, default=EPISODE_CHUNKS)
    parser.add_argument("--rule", choices=list(RULES), action="append", help="this one alone")
    parser.add_argument("--folder", type=Path, default=Path(".watershed/snapshot-campaign"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends with us
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / RESULTS
    done = [json.loads(line) for line in results.read_text("utf-8").splitlines()] if results.exists() else []
    failed = False
    with servers(folder / "stack") as stack:
        for rule in arguments.rule or RULES:
            while (merged := sum(each["chunks"] for each in done if each["rule"] == rule)) < arguments.chunks:
                seed = 1 + sum(each["rule"] == rule for each in done)
                place = folder / f"{rule}-{seed}"
                shutil.rmtree(place, ignore_errors=True)  # of one that was interrupted
                done.append(episode(seed, rule, min(arguments.episode_chunks, arguments.chunks - merged), stack, place))
                with results.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(done[-1], ensure_ascii=False) + "\n")
                print(json.dumps(done[-1], ensure_ascii=False), flush=True)
            of_rule = [each for each in done if each["rule"] == rule]
            failed |= (
                not all(map(is_as_it_should, of_rule)) if rule == "ours" else not any(map(is_as_it_should, of_rule))
            )
            print(summary(rule, of_rule), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
