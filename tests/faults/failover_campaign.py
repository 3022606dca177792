"""Promotions of standbys under load: how long publishing takes to go on, and that nothing is lost, doubled, read again,
or left over that never happened.

    python -m tests.faults.failover_campaign --minutes 30
    python -m tests.faults.failover_campaign --version 17 --cache
    python -m tests.faults.failover_campaign --only twice --keep

A primary with a synchronous and an asynchronous standby, under a load of 300 changes/s. An episode promotes in random
order: after a planned shutdown, after a kill, twice in a row, back to the former primary, while all rows are read
again, and behind a backlog. The judge then compares topics with the journal of the source. At last the asynchronous
standby is promoted that lacks what was published in the last seconds, and the synchronous one once more.

After each promotion the load pauses, and a plain consumer's account of the topic must be equal to the new primary: each
change of the source published once, no row read again. Where the standby was behind, capture must be in state GAP with
the range, and after healing no row is left that the new primary does not have. With `--cache` a cache must be equal,
too.

`--only` repeats one kind of promotion, to look for what is rare; each round says when the promotion, the first write
after it, and the first published change came, and with `--keep` the logs stay.

Each round is a line in `rounds.jsonl`, each episode one in `episodes.jsonl`; a run that is started again goes on behind
the last episode, and prints a table of all rounds. The exit code is 1 where the 95th percentile is above its target.
"""

import argparse
import json
import random
import secrets
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from cdc.kafka.state_reader import read_captured
from cdc.model.events import TableId
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer
from tests.faults.episodes import run_episodes
from tests.faults.failover_cluster import Cluster, Promotions
from tests.faults.published import Counts, Published
from tests.faults.takeover_campaign import figures
from tests.integration.conftest import ITEMS, SMALL
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob
from tests.support.standby_servers import StandbyServers, Writer, servers_of
from tests.support.stores import stored_rows
from tests.support.waiting import eventually
from watershed.devstack.stack import Stack

ROUNDS: Final = "rounds.jsonl"
TARGET_S: Final = 10.0
ROWS: Final = 3_000
LOAD: Final = 300  # changes that are written after each promotion, and per second at most
EXACT: Final = ("switch", "kill", "snapshot", "twice", "failback", "backlog", "kill", "switch")
BEHIND: Final = ("behind", "kill", "behind")
PROMPT: Final = frozenset(EXACT) - {"backlog"}  # capture runs, and nothing has to be healed
PROMOTIONS: Final = {"twice": 2, "failback": 2}  # others are one
CACHE: Final = "cache"


@dataclass
class Rounds:
    """Promotions, and what must be true after each."""

    captured: Captured
    promotions: Promotions
    published: Published
    writer: Writer
    job: SinkJob | None
    results: Path  # a line of JSON for each round
    version: int
    _journaled: int = ROWS  # the last entry of the source's journal that was looked at

    def run(self, kind: str) -> None:
        self.promotions.cluster.ready()
        counts = Counts()
        self.published.await_commit(time.time())
        self.published.counts = counts
        gaps = self._gaps()
        began = getattr(self.promotions, kind)()
        took_s = self.published.await_commit(began)
        count, since = self.writer.count, time.monotonic()
        eventually(lambda: self.writer.count > count + LOAD, 60.0, "changes are written")
        per_s = (self.writer.count - count) / (time.monotonic() - since)
        with self.writer.paused():
            lost, phantoms = self._at_rest(is_exact=kind != "behind")
        if kind == "behind":
            assert phantoms, "the standby was behind"
        else:
            assert self._gaps() == gaps, self.captured.running().said()
            assert (lost, phantoms, counts.again) == (0, 0, 0), f"{lost} lost, {phantoms} phantoms, {counts}"
            assert kind == "snapshot" or counts.read == 0, f"{counts.read} rows were read again"
        found = {"kind": kind, "version": self.version, "seconds": round(took_s, 2), "load_per_s": round(per_s)}
        # How much of that time the server took to become a primary, and until something could be published.
        found |= {"promoted": round(self.promotions.cluster.promoted_at - began, 2)}
        found |= {"written": round(self.writer.connected_at - began, 2)}
        line = json.dumps(found | {"phantoms": phantoms, "again": counts.again, "read": counts.read})
        print(line, flush=True)
        with self.results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.promotions.cluster.restore()

    def _gaps(self) -> int:
        return sum(log.read_text().count("state GAP") for log in self.captured.folder.glob("capture-*.log"))

    def _at_rest(self, *, is_exact: bool) -> tuple[int, int]:
        """Waits until topic and cache are equal to the source. Returns how many writes of this round are not published,
        and how many published ones never happened."""
        rows = {int(number): str(name) for number, name in self.captured.query("SELECT id, name FROM items")}
        self.published.await_rows(rows)
        eventually(lambda: not self.captured.unfinished(), 120.0, "existing rows are read")
        self.published.await_rows(rows)
        if self.job is not None:
            self._await_cache(self.job, rows)
        journal = self.captured.query(
            "SELECT number, (new_key->>'id')::int, new_row->>'name' FROM judge.journal WHERE new_row IS NOT NULL"
        )
        happened = {(key, name) for _, key, name in journal}
        fresh = {(key, name) for number, key, name in journal if number > self._journaled}
        self._journaled = max(number for number, _, _ in journal)
        phantoms = self.published.written - happened
        self.published.written -= phantoms  # they are counted once
        return len(fresh - self.published.written) if is_exact else 0, len(phantoms)

    def _await_cache(self, job: SinkJob, rows: dict[int, str]) -> None:
        self.captured.await_caught_up()
        job.wait_applied(self.captured.progress(), CACHE)
        schema = read_captured(job.config).schemas[TableId.parse(ITEMS)]
        held = {int(row.row["id"]): row.row["name"] for row in stored_rows(job.config, CACHE, schema)}
        assert held == rows, f"{list(held.items() ^ rows.items())[:5]} differ in the cache"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of the episodes."""

    version: int
    has_cache: bool
    only: str | None  # this kind of promotion
    keeps: bool  # the logs of capture and of the servers

    def order(self, chance: random.Random) -> tuple[list[str], Sequence[str]]:
        """Returns the exact promotions, and those behind which a gap is healed."""
        if self.only is None:
            return chance.sample(EXACT, len(EXACT)), BEHIND
        return ([], [self.only] * len(BEHIND)) if self.only == "behind" else ([self.only] * len(EXACT), ())


def episode(seed: int, stack: Stack, folder: Path, asked: Asked) -> dict[str, Any]:
    """Promotes in an order that the seed decides."""
    version, has_cache = asked.version, asked.has_cache
    folder.mkdir(parents=True)
    endpoints = stack.start("kafka", *(["redis"] if has_cache else []))
    chance = random.Random(seed)
    name = f"failover_{secrets.token_hex(3)}"
    with ExitStack() as resources:
        servers = StandbyServers(resources.enter_context(servers_of([version] * 3)))
        cluster = Cluster(servers, name)
        server = PostgresServer(servers.dsn(), servers.dsn("postgres"), stack)
        kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
        capture = under_capture(server, kafka, servers.dsn(), name, folder, SMALL, [ITEMS])
        captured = resources.enter_context(capture)
        captured.settings = {"snapshot": {"chunk_rows_max": 200, "rows_per_s_max": 2_000, "workers": 1}}
        if has_cache:
            captured.settings |= {
                "sinks": {CACHE: {"url": endpoints.redis_url}},
                "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
            }
        captured.query(f"INSERT INTO items SELECT -g, 'row ' || g FROM generate_series(1, {ROWS}) g")
        captured.start(is_forked=False)
        captured.await_caught_up()
        published = Published(captured)
        resources.callback(published.close)
        job = resources.enter_context(SinkJob(captured.config(), CACHE)) if has_cache else None
        writer = resources.enter_context(Writer(servers.dsn()))
        promotions = Promotions(cluster, captured, published, chance)
        rounds = Rounds(captured, promotions, published, writer, job, folder.parent / ROUNDS, version)
        if asked.keeps:
            resources.callback(keep_logs, servers, folder)
        exact, behind = asked.order(chance)
        for kind in exact:
            rounds.run(kind)
        with writer.paused():
            captured.await_caught_up()
            report = captured.judge()
        for kind in behind:
            rounds.run(kind)
    if not asked.keeps:
        shutil.rmtree(folder)
    return {"seed": seed, "version": version, "changes": len(report.changes)}


def keep_logs(servers: StandbyServers, folder: Path) -> None:
    """Copies the servers' logs beside those of capture."""
    for server in servers.servers:
        shutil.copy(server.instance.log, folder / f"{server.physical_slot}.log")


def show(results: Path) -> bool:
    """Prints a table of all rounds. Returns whether the target is met; `prompt` are the kinds that it is for."""
    by_kind: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for one in map(json.loads, results.read_text(encoding="utf-8").splitlines()):
        by_kind[one["version"], one["kind"]].append(one)
        if one["kind"] in PROMPT:
            by_kind[one["version"], "prompt"].append(one)
    are_met = True
    print(
        "version  kind            rounds  promotions  p50 s  p95 s  max s  published again  rows read  phantoms  load/s"
    )
    for (version, kind), rounds in sorted(by_kind.items()):
        took = figures([one["seconds"] for one in rounds])
        promotions = sum(PROMOTIONS.get(one["kind"], 1) for one in rounds)
        load = round(median(one["load_per_s"] for one in rounds))
        again, read, phantoms = (sum(one[name] for one in rounds) for name in ("again", "read", "phantoms"))
        print(
            f"{version:7}  {kind:14}  {len(rounds):6}  {promotions:10}  {took['p50']:5.2f}  {took['p95']:5.2f}"
            f"  {took['max']:5.2f}  {again:15}  {read:9}  {phantoms:8}  {load:6}"
        )
        are_met = are_met and (kind != "prompt" or took["p95"] <= TARGET_S)
    return are_met


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--version", type=int, default=18)
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("--only", choices=sorted({*EXACT, *BEHIND}))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(".watershed/failover"))
    given, others = parser.parse_known_args()
    asked = Asked(given.version, given.cache, given.only, given.keep)
    folder: Path = given.folder
    others = ["--folder", str(folder), *others]
    about = f"{__doc__}\n\nAlso: --version 17, --cache, --only KIND, --keep"
    code = run_episodes(
        about,
        folder.name,
        lambda seed, stack, place: episode(seed, stack, place, asked),
        arguments=others,
    )
    return int(not show(folder / ROUNDS)) or code


if __name__ == "__main__":
    sys.exit(main())
