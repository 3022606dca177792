"""Operators, brokers and stores do everything at once, in random order, under load, on real servers.

    python -m tests.faults.operator_campaign --minutes 60 --folder .watershed/operator-campaign

It is made of episodes, each a seed with a database, topics and stores of its own. Its rules (tests/faults/operators)
are the operator's commands, events of topics and stores, schema changes, kills and freezes. Two oracles work all the
time. A waiter reads each store right after each answer: it must show what was committed before, and rows that a store
rejected must have dead letters. At rest, when every
store claims to be in step, plain clients compare all of them with the source; and where they differ while nothing
moves, status and `/readyz` must be red.

Each episode is a line in `episodes.jsonl` with its script. `--seed 17` repeats one, `--script FILE` runs some of its
steps, `--shrink` looks for a short script that still fails. `--forgive-owed` compares no table of which capture owes
rows, whatever a waiter was told. `--mutant NAME` puts back a defect that was seen, and ends with the first finding;
`--mutants` lists the names.

The simulated form is tests/simulation/operators.
"""

import argparse
import logging
import os
import random
import secrets
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from confluent_kafka import KafkaException
from opensearchpy.exceptions import OpenSearchException
from psycopg import OperationalError
from psycopg.conninfo import conninfo_to_dict
from redis import RedisError

from cdc.config.config_file import load_config
from cdc.model.errors import WatershedError
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.faults.operators.mutants import MUTANT, MUTANTS
from tests.faults.operators.pipeline import ALWAYS, SHARE, WEIGHTS, BrokenCommandError, Pipeline, rest
from tests.faults.operators.process import BATCH
from tests.faults.operators.source import SCHEMA, TABLES, Load, Source, Values, Written, is_rejected
from tests.faults.operators.stores import Cache, Mirror, Search, Store, differences
from tests.support.captured import under_capture
from tests.support.drift import Background
from tests.support.forked import run
from tests.support.http_server import free_port
from tests.support.scripts import Step, chosen, read, shrunk, written
from tests.support.sink_job import sink_record
from watershed import Waiter
from watershed.client.dead_letters import read_dead_letters
from watershed.devstack.stack import Stack

SEARCH_SHARE: Final = 0.4  # of the episodes have a search index, too
BATCHES_S: Final = (0.2, 0.2, 30.0)  # of the job, one in each episode: where short ones end, two threads meet
REMEDIED: Final = 0.5  # of the steps, before which operators do what status says
STEPS: Final = 14  # of an episode
CALM_EVERY: Final = 7  # steps, after which the stores must come in step
WORK_S: Final = (3.0, 8.0)  # undisturbed, behind each calm
PAUSE_S: Final = (0.0, 1.0, 6.0)  # of these two are chosen, and the pause is between them
ANSWER_S_MAX: Final = 4.0
IN_STEP_S_MAX: Final = 240.0  # without any progress
IN_STEP_S_LIMIT: Final = 960.0
NOTICED_S_MAX: Final = 20.0  # until a running job has noticed that its store was changed by others
QUIET_S: Final = 12.0
CLOSED_S_MAX: Final = 10.0  # until the dead letter of a row that was corrected is closed
REMEDY_S: Final = 3.0
LATER: Final = (
    OperationalError,
    RedisError,
    OpenSearchException,
    KafkaException,
    OSError,
)  # a store is being restored, for example


class Finding(AssertionError):  # noqa: N818
    """A broken promise: early, different, stuck, green."""

    def __init__(self, kind: str, finding: str) -> None:
        super().__init__(f"{kind}: {finding}")
        self.kind = kind


class Watcher(Background):
    """Writes rows, waits for each in one store, and reads the store right after the answer."""

    def __init__(self, episode: "Episode", store: str) -> None:
        super().__init__()
        self._store = store
        self.findings: list[Finding] = []
        self.answers = 0
        self._episode = episode

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with Waiter(self._episode.pipeline.captured.config()) as waiter:
                    while not self._ended.wait(0.2):
                        self._look(waiter)
            except (WatershedError, *LATER):
                self._ended.wait(0.5)  # the topics may be gone for a moment
            except Exception as error:  # noqa: BLE001 - a waiter that is gone would find nothing
                self.findings.append(Finding("waiter", repr(error)))
                return

    def _look(self, waiter: Waiter) -> None:
        episode, store = self._episode, self._store
        held = episode.held(store)
        end = episode.source.write()
        for table in sorted(held):
            is_seen = episode.is_seen(store)
            served = episode.served() if store == "mirror" else None
            if not answered(waiter, store, end.lsn, (table,), ANSWER_S_MAX):
                continue
            shown = episode.pipeline.stores[store].rows(table)
            outcome = episode.source.difference(table, shown, end.number, rejects=store == "mirror")
            lost = set() if served is None else episode.without_letters(table, end.number, served)
            self.answers += 1
            if not (is_seen and episode.is_seen(store) and table in episode.held(store)):
                continue
            if outcome:
                self.findings.append(Finding("early", f"{store} counts as showing LSN {end.lsn}, but {outcome}"))
            if lost:
                rows = f"rows {sorted(lost)[:3]} of {table} were rejected, and have no dead letters"
                self.findings.append(Finding("letters", f"{store} counts as showing LSN {end.lsn}, but {rows}"))


def answered(waiter: Waiter, store: str, lsn: str, tables: Sequence[str], timeout_s: float) -> bool:
    names = [f"public.{table}" for table in tables]
    try:
        waiter.wait_for(store, lsn, timeout_s, tables=names, accepts_rejected=True)
    except WatershedError:
        return False
    return True


class Episode:
    """One script on servers that run."""

    def __init__(self, seed: int, stack: Stack, folder: Path, *, forgives_owed: bool = False) -> None:
        """`forgives_owed`: tables of which capture owes rows are not compared, whatever a waiter is told."""
        self._forgives_owed = forgives_owed
        self._seed = seed
        self._stack = stack
        self._folder = folder
        self._changed_s: dict[str, float] = {}
        self._did: Counter[str] = Counter()
        self.source: Source
        self.pipeline: Pipeline

    def run(self, script: Sequence[Step]) -> dict[str, Any]:
        """Raises Finding."""
        with self._servers():
            self.pipeline.start_capture()
            self.pipeline.start_sinks()
            watchers = [Watcher(self, store) for store in self.pipeline.stores]
            with ExitStack() as working:
                for background in (Load(self.source, random.Random(f"load {self._seed}")), *watchers):
                    working.enter_context(background)
                try:
                    self._calm()
                    self.pipeline.copy_stores()
                    self._work()
                    for number, step in enumerate(script, 1):
                        self._take(step)
                        self._require_none(watchers)
                        if number % CALM_EVERY == 0 or number == len(script):
                            self._calm()
                            self._require_none(watchers)
                            self._work()
                except Finding as finding:
                    finding.add_note(self.pipeline.said())
                    raise
            return {"answers": sum(watcher.answers for watcher in watchers), "did": dict(+self._did)}

    def _work(self) -> None:
        """Nothing goes wrong for a while."""
        rest(random.Random(self._did.total()).uniform(*WORK_S))

    def _take(self, step: Step) -> None:
        self.pipeline.chance = random.Random(step.number)
        is_done = False  # a rule that does not apply now, or fails
        began = time.strftime("%H:%M:%S")
        try:
            with suppress(WatershedError, *LATER):
                if self.pipeline.chance.random() < REMEDIED:
                    self._remedy()
                is_done = getattr(self.pipeline, step.rule)() is not False
        except BrokenCommandError as error:
            raise Finding("traceback", str(error)) from None
        self._did[step.rule] += is_done
        with (self._folder / "steps.log").open("a", encoding="utf-8") as log:
            log.write(f"{began} {step.rule} {step.number}{'' if is_done else ' did nothing'}\n")
        rest(self.pipeline.chance.uniform(*self.pipeline.chance.sample(PAUSE_S, 2)))

    @staticmethod
    def _require_none(watchers: Sequence[Watcher]) -> None:
        for watcher in watchers:
            if watcher.findings:
                raise watcher.findings[0]

    # ---- what may be compared

    def held(self, store: str) -> set[str]:
        """The tables that are captured and that the store holds, as configured now."""
        names = {*self.pipeline.captured.tables} - {*self.pipeline.excluded[store]}
        if self._forgives_owed:
            names -= self._owed()
        return {name.removeprefix("public.") for name in names}

    def _owed(self) -> set[str]:
        """The tables of which rows are still to be read, or changes are not published."""
        captured = self.pipeline.captured
        stopped = [table for table, state in captured.states().items() if state["status"] == "stopped"]
        unread = [table for table, snapshot in captured.snapshots().items() if snapshot["status"] != "done"]
        return {*captured.holed(), *unread, *stopped}

    def is_seen(self, store: str) -> bool:
        """Says whether the store is as its job left it, as far as the job can know."""
        if store in self.pipeline.is_blind:
            self.pipeline.is_blind.discard(store)
            self._changed_s[store] = time.monotonic()
        job = self.pipeline.job
        if job is None or job.process.poll() is not None or not self.pipeline.sinks_began_s:
            return store not in self._changed_s
        if time.monotonic() - max(self._changed_s.get(store, 0), self.pipeline.sinks_began_s) > NOTICED_S_MAX:
            self._changed_s.pop(store, None)
        return store not in self._changed_s

    def without_rejected(self, store: str, table: str, shown: Values) -> Values:
        """At rest. The mirror can't hold some values: there its older row counts as the source's."""
        if store != "mirror":
            return shown
        rejected = {key: value for key, value in self.source.rows(table).items() if is_rejected(value)}
        return {**shown, **rejected}

    def served(self) -> tuple[int, str] | None:
        """Generation and history of topics that readers of the mirror see."""
        record = sink_record(load_config(self.pipeline.captured.config()), "mirror")
        return None if record is None else (record.generation, record.history)

    def without_letters(self, table: str, number: int, served: tuple[int, str]) -> set[int]:
        """Returns the rows that the mirror rejected, of this write or an earlier one, and that lack a dead letter.
        `served`: what readers saw before the waiter was answered; nothing counts if they see another generation now."""
        wanted = self.source.rejected(table, number)
        letters = self._letters() if wanted else set()
        lost = {key for key in wanted & self.source.rejected(table, number) if (table, key) not in letters}
        return lost if lost and self.served() == served else set()

    # ---- at rest

    def _calm(self) -> None:
        """Nobody writes or does harm; operators do what status says. Then all stores are in step, and compared."""
        with self.source.paused() as end:
            self._require_red()
            began, moved, reached = time.monotonic(), time.monotonic(), self._reached()
            while not self._is_in_step(end):
                now = time.monotonic()
                if now > moved + IN_STEP_S_MAX:
                    before, reached, moved = reached, self._reached(), now
                    if before == reached or now > began + IN_STEP_S_LIMIT:
                        raise Finding("stuck", f"not in step after {now - began:.0f} s:\n{self._status()}")
                self._remedy()
                rest(REMEDY_S)
            if outcome := self._different():
                raise Finding("different", f"all stores claim to show LSN {end.lsn}, but {outcome}")
            self._require_letters()

    def _reached(self) -> list[object]:
        """What changes while stores come in step, however slow the machine is: not the LSNs, which idle stores pass."""
        config = load_config(self.pipeline.captured.config())
        with suppress(WatershedError, *LATER):
            records = [sink_record(config, store) for store in self.pipeline.stores]
            stores = [
                record and (record.generation, record.end_offsets, record.sweeps, record.owed) for record in records
            ]
            return [*stores, self.pipeline.captured.snapshots()]
        return []

    def _require_letters(self) -> None:
        """Each row that the mirror can't hold has an open dead letter, and in a short while no other row has one."""
        held = self.held("mirror")
        wanted = {
            (table, key) for table in held for key, value in self.source.rows(table).items() if is_rejected(value)
        }
        deadline = time.monotonic() + CLOSED_S_MAX
        while True:
            found = {letter for letter in self._letters() if letter[0] in held}
            if missing := wanted - found:
                raise Finding("letters", f"rows {sorted(missing)[:3]} were rejected, and have no dead letter")
            if not (strays := found - wanted):
                return
            if time.monotonic() > deadline:
                raise Finding("letters", f"rows {sorted(strays)[:3]} have dead letters, and can be written")
            rest(1.0)

    def _letters(self) -> set[tuple[str, int]]:
        """Tables and keys of the serving generation's open dead letters."""
        served = self.served()
        return {
            (letter.row.table_name, int(letter.row.key["id"]))
            for letter in read_dead_letters(load_config(self.pipeline.captured.config()), ["mirror"])
            if served is not None and letter.generation == served[0]
        }

    def _different(self) -> str:
        for store in self.pipeline.stores:
            held = self.held(store)
            source = {table: self.source.rows(table) for table in held}
            if found := differences(partial(self._rows, store), source):
                return f"{store}: {'; '.join(found)}"
        return ""

    def _rows(self, store: str, table: str) -> Values:
        return self.without_rejected(store, table, self.pipeline.stores[store].rows(table))

    def _require_red(self) -> None:
        """Where stores differ and nothing moves, both servers and the status may not be green."""
        job, is_running = self.pipeline.job, self.pipeline.captures
        if not is_running or job is None or job.process.poll() is not None:
            return
        deadline = time.monotonic() + QUIET_S
        while time.monotonic() < deadline:
            if self._reasons() or not self._different() or not all(map(self.is_seen, self.pipeline.stores)):
                return
            rest(1.0)
        if (outcome := self._different()) and not self._reasons() and self._status_code() == 0:
            raise Finding("green", f"status and /readyz are green for {QUIET_S:.0f} s, but {outcome}\n{self._status()}")

    def _reasons(self) -> list[str]:
        return [*self.pipeline.capture_http.reasons(), *self.pipeline.sink_http.reasons()]

    def _is_in_step(self, end: Written) -> bool:
        with suppress(WatershedError, *LATER), Waiter(self.pipeline.captured.config()) as waiter:
            if self._forgives_owed:
                if self._owed():
                    return False
                end = self.source.write()  # the positions before it do not count
            return all(
                self.is_seen(store) and answered(waiter, store, end.lsn, sorted(self.held(store)), ANSWER_S_MAX)
                for store in self.pipeline.stores
            )
        return False

    def _remedy(self) -> None:
        """What documentation and messages say, where it applies."""
        pipeline = self.pipeline
        pipeline.start_capture()
        pipeline.start_sinks()
        if not pipeline.captures:
            return
        with suppress(WatershedError, *LATER):
            if "state GAP" in pipeline.captured.running().said():
                pipeline.captured.signal("heal")
            for table, state in pipeline.captured.states().items():
                if state["status"] == "stopped":
                    pipeline.captured.signal("start_table", tables=(table,))
            for table, snapshot in pipeline.captured.snapshots().items():
                if snapshot["status"] in ("paused", "failed"):
                    pipeline.captured.signal("resume", tables=(table,))
                elif snapshot["status"] == "cancelled":
                    pipeline.captured.signal("snapshot", tables=(table,))

    def _status(self) -> str:
        return run(["status", "--config", str(self.pipeline.captured.config())], deadline_s=60.0).stdout[-3000:]

    def _status_code(self) -> int:
        return run(["status", "--config", str(self.pipeline.captured.config())], deadline_s=60.0).returncode

    @contextmanager
    def _servers(self) -> Iterator[None]:
        has_search = random.Random(f"stores {self._seed}").random() < SEARCH_SHARE
        os.environ[BATCH] = str(random.Random(f"batches {self._seed}").choice(BATCHES_S))
        endpoints = self._stack.start("postgres", "kafka", "redis", *(["opensearch"] if has_search else []))
        server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, self._stack)
        kafka = KafkaBroker(endpoints.bootstrap_servers, self._stack)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"o{self._seed}_{secrets.token_hex(3)}"
        chance, ports = random.Random(self._seed), (free_port(), free_port())
        with ExitStack() as stack:
            target = stack.enter_context(new_database(server))
            dsn = stack.enter_context(new_database(server))
            tables = [f"public.{table}" for table in TABLES]
            captured = stack.enter_context(under_capture(server, kafka, dsn, name, self._folder, SCHEMA, tables))
            captured.settings = {
                "http": {"port": ports[0], "sink_port": ports[1]},
                "topics": {"partitions": chance.choice((1, 2))},
                "snapshot": {"chunk_rows_max": 10, "rows_per_s_max": chance.choice((20, 1000))},
                "sinks": {"cache": {"type": "cache", "url": endpoints.redis_url}, "mirror": _mirror(target)},
                "spark": {"checkpoint_location": str(self._folder / "checkpoints"), "options": INTERPRETED},
            }
            self.source = stack.enter_context(Source(dsn, random.Random(self._seed)))
            mirror = Mirror(endpoints.superuser_dsn or "", target)
            stack.callback(mirror.close)
            stores: dict[str, Store] = {"cache": Cache(endpoints.redis_url, name), "mirror": mirror}
            if has_search:
                captured.settings["sinks"]["search"] = {"type": "search", "url": endpoints.opensearch_url}
                search = Search(endpoints.opensearch_url, name)
                stack.callback(search.close)
                stores["search"] = search
            self.pipeline = Pipeline(captured, self.source, stores, ports, self._stack, chance)
            stack.callback(self.pipeline.end)
            yield


def _mirror(dsn: str) -> dict[str, Any]:
    parts = conninfo_to_dict(dsn)
    url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    return {"type": "sql", "url": url, "shapes": {"*": {"table": "public.{table}", "types": {"v": "varchar(20)"}}}}


def script_of(seed: int) -> list[Step]:
    chance = random.Random(f"operators {seed}")
    rules = [rule for rule in WEIGHTS if rule in ALWAYS or chance.random() < SHARE]
    return chosen(chance, {rule: WEIGHTS[rule] for rule in rules}, STEPS)


def outcome_of(
    seed: int, stack: Stack, folder: Path, script: Sequence[Step], *, forgives_owed: bool = False
) -> dict[str, Any]:
    """Runs a script, and says how it went. Its folder stays when something is wrong."""
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        outcome, kind = Episode(seed, stack, folder, forgives_owed=forgives_owed).run(script), ""
    except Finding as finding:
        outcome, kind = {"finding": str(finding)}, finding.kind
        (folder / "finding.txt").write_text(f"{finding}\n{written(script)}\n{finding.__notes__}", encoding="utf-8")
    if not kind:
        shutil.rmtree(folder, ignore_errors=True)
    return {"seed": seed, "kind": kind, "seconds": round(time.monotonic() - began), "script": script, **outcome}


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--forgive-owed", action="store_true")
    parser.add_argument("--mutant", choices=MUTANTS)
    parser.add_argument("--mutants", action="store_true")
    asked, others = parser.parse_known_args()
    if asked.mutants:
        print("\n".join(MUTANTS))
        return 0
    if asked.mutant:
        os.environ[MUTANT] = asked.mutant
        MUTANTS[asked.mutant]()  # of the waiter, which is in this process
        others.append("--until-wrong")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # brokers are away at times
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes and servers are ended

    def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
        script = read(asked.script.read_text(encoding="utf-8")) if asked.script else script_of(seed)

        def runs(part: Sequence[Step]) -> dict[str, Any]:
            return outcome_of(seed, stack, folder, part, forgives_owed=asked.forgive_owed)

        outcome = runs(script)
        if outcome["kind"] and asked.shrink:
            shorter = shrunk(
                script,
                lambda part: (
                    outcome_of(seed, stack, folder, part, forgives_owed=asked.forgive_owed)["kind"] == outcome["kind"]
                ),
            )
            print(written(shorter), flush=True)
            outcome["shrunk"] = shorter
        return outcome

    return run_episodes(__doc__, "operator-campaign", episode, lambda outcome: not outcome["kind"], others)


if __name__ == "__main__":
    sys.exit(main())
