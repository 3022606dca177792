"""A run: a script of steps, in which operators, brokers and stores do everything at once.

The rules are in rules.py.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic import SecretStr

from cdc.config.store_mapping import StoreMasks, TableMapping
from cdc.config.stores import SqlConfig
from cdc.model.errors import WatershedError
from cdc.model.sink_records import newest
from sinks.errors import RefusedError
from spark_jobs.applied import BUILT_AGAIN
from tests.simulation.operators.brokers import Brokers
from tests.simulation.operators.capture import Capture
from tests.simulation.operators.job import NAME, SinkJob, is_rebuilt, open_dead_letters, patched
from tests.simulation.operators.judge import (
    Finding,
    claimed,
    require_letters_of_rejected_rows,
    require_not_early,
    require_one_form,
)
from tests.simulation.operators.rules import ALWAYS, CHECK_S, LATER, SHARE, WEIGHTS, Rules
from tests.simulation.operators.source import (
    BAD,
    TABLES,
    Source,
)
from tests.simulation.operators.store import Store
from tests.simulation.operators.world import Crash, World
from tests.support.scripts import Step, chosen

STEPS: Final = range(15, 70)
REFUSALS_MAX: Final = 3
ATTEMPTS: Final = ("once", "once", "retried", "twice", "late")  # of Spark's tasks: in each run as one of these says
TURNS_MAX: Final = 40  # at the end, until the store is in step
TURN_S: Final = 5.0  # of each of them
LETTERS_TURNS: Final = 8  # in step, until the job has read and closed the letter of a task that Spark had given up
# What `_mapped` stands for. Where masks change, nothing is written to the serving rows until the table is built again.
MAPPED: Final = {
    table: TableMapping(mask=StoreMasks(asterisks={"v": 3})) if number else TableMapping(as_text=("v",))
    for number, table in enumerate(TABLES)
}
GONE: Final = "records that were not read yet are gone"


class Campaign(Rules):
    """One run. `options` are the seed's: how the pipeline is set up."""

    def __init__(self, options: int, *, rejects: bool = True) -> None:
        """`rejects`: the store rejects some rows."""
        chance = random.Random(options)
        self._bad_share = chance.choice((0.0, 0.25)) if rejects else 0.0
        self.world = World()
        self.brokers = Brokers(self.world)
        self.source = Source()
        self.capture = Capture(self.source, self.brokers, partitions=chance.choice((1, 1, 2)))
        self.store = Store(self.world, refreshes=chance.random() < 0.5)
        self.has_slots = chance.random() < 0.5
        self.job: SinkJob | None = None
        self._frozen: SinkJob | None = None
        self.excluded: set[str] = set()
        self._mapped: set[str] = set()  # tables whose mapping makes other rows, as far as the job knows
        self.events: Counter[str] = Counter()
        self._section = self._configured()
        self._is_blind = False  # the store was changed by others, and the job has not looked since
        self._is_new = False  # the job began after that
        self._changed_s = 0.0
        self._copies: list[Any] = []  # of the store
        self._broker_copies: list[Any] = []
        self._lost_letters: dict[str, int] = {}
        self._reopened_letters: set[str] = set()
        self._written = 0
        self._requests = 0
        self._refused = 0
        self._choose = chance
        self._attempts = random.Random(f"attempts {options}").choice(ATTEMPTS)

    # ---- the run

    def run(self, script: Sequence[Step]) -> None:
        """Raises Finding."""
        with patched(self.world, self.brokers, self._attempts):
            for step in (Step("write", 3), Step("start_capture", 0), Step("publish", 4), Step("start_sink", 0)):
                self._take(step)
            for step in script:
                self._take(step)
            self._settle()

    def _take(self, step: Step) -> None:
        rule: Callable[[], bool | None] = getattr(self, step.rule)
        self._choose = random.Random(step.number)
        if rule() is not False:
            self.events[step.rule] += 1
        self._look()

    def _held(self) -> list[Any]:
        """The tables that are compared: those of capture that the configuration of the job that ran last holds."""
        held = [table for table in TABLES if table in self.capture.tables and self._section.holds(table)]
        record = newest(self.capture.sinks(), NAME)
        if record is not None:  # the job of the present configuration may not have published yet
            held = [table for table in held if str(table) not in record.excluded]
        return held

    def _look(self) -> None:
        if not self._is_blind:
            dead_letters = self._lost_letters | open_dead_letters(self.brokers)
            require_not_early(self.capture, self.source, self.store, self._held(), dead_letters, self._lost_letters)
            # A job that went on beside another one, and a task beside its successor, know a former mapping.
            if self.has_slots and not self.events["thaw_sink"] and self._attempts != "late":
                require_one_form(self.capture, self.store, self._held())

    def _settle(self) -> None:
        """Nothing goes wrong any more, and the operator does what documentation and messages say."""
        self.world.fuse = None
        in_step = 0
        for _ in range(TURNS_MAX):
            self.world.now_s += TURN_S
            self._remedy()
            self.publish()
            self.sink_turn()
            self._look()
            if self._is_in_step():
                in_step += 1
                try:
                    self._require_letters()
                except Finding:
                    if in_step > LETTERS_TURNS:
                        raise
                else:
                    return
        state = self.capture.state
        raise Finding("stuck", f"never in step: {self.capture.gap or state}; {self._last_error}")

    def _require_letters(self) -> None:
        opened = open_dead_letters(self.brokers)
        dead_letters = {key: opened[key] for key in opened.keys() - self._reopened_letters}
        require_letters_of_rejected_rows(self.capture, self.source, self._held(), dead_letters, BAD)

    def _remedy(self) -> None:
        if not self.capture.is_running:
            self.capture.start()
        self.capture.heal()
        state = self.capture.state
        assert state is not None
        for table in TABLES:
            if table in state.snapshots and state.snapshots[table].is_paused:
                self.capture.alter_snapshot(table, "resume")
            elif table in state.owed and table not in state.snapshots:
                self.capture.start_snapshot(table, "whole")
            self.capture.start_table(table)
        while self.capture.step():
            pass
        record = newest(self.capture.sinks(), NAME)
        must_be_built_again = record is not None and any(why.startswith(BUILT_AGAIN) for why in record.owed.values())
        is_idle = (must_be_built_again or not self._is_mapped) and not is_rebuilt(self.brokers)
        if self.job is not None and (self.job.does_nothing or is_idle):  # a rebuild that is required was cancelled
            self.kill_sink()
        if self.job is None:
            self.start_sink()

    def _is_in_step(self) -> bool:
        held = self._held()
        wanted = [table for table in TABLES if table in self.capture.configured and self._section.holds(table)]
        return (
            self.capture.is_at_rest
            and not self.capture.owes
            and not (self._is_blind and held)
            and held == wanted
            and self._is_mapped
            and claimed(self.capture, self.source.end, held) == held
        )

    @property
    def _is_mapped(self) -> bool:
        """Says whether the store holds all tables as the configuration maps them."""
        record = newest(self.capture.sinks(), NAME)
        return record is None or all(
            record.mappings.get(str(table)) == self._section.fingerprints([table]).get(str(table))
            for table in self._held()
        )

    _last_error = ""

    # ---- the sink

    def _configured(self) -> SqlConfig:
        mapping = {str(table): MAPPED[table] for table in TABLES if str(table) in self._mapped}
        url = SecretStr("sqlite:////nowhere")
        return SqlConfig(url=url, exclude_tables=tuple(sorted(self.excluded)), mapping=mapping)

    def start_sink(self) -> bool:
        if self.job is not None:
            return False
        self._section = self._configured()
        job = SinkJob(self.world, self.brokers, self.store, self._section, self._on_published, has_slots=self.has_slots)
        self.job, self._is_new = job, True

        def begin() -> None:
            if not job.begin():
                self.job = None

        self._work(begin)
        return True

    def reconfigure_sink(self) -> None:
        job = self.job
        if job is None:
            return
        self._section = self._configured()

        def begin() -> None:
            if not job.reload(self._section):
                self.job = None

        self._work(begin)

    def _on_published(self) -> None:
        """A waiter looks now. A job that began behind a change of its store has looked at it."""
        self._is_blind = self._is_blind and not self._is_new
        self._look()

    def stop_sink(self) -> None:
        self.kill_sink()

    def kill_sink(self) -> None:
        self.job = None

    def sink_turn(self) -> None:
        """A batch, and a look at the topics before, meanwhile, or after it."""
        order = self._choose.choice(("batch", "tend", "meanwhile", "meanwhile", "both"))
        if order in ("tend", "both"):
            self._tend()
        if self.job is not None and order != "tend":
            job = self.job
            self._work(lambda: job.batch(job.tend_meanwhile if order == "meanwhile" else lambda: None))
        if order != "batch":
            self._tend()

    def _tend(self) -> None:
        if self.job is None:
            return
        job, is_over = self.job, []
        self._work(lambda: is_over.append(job.run_housekeeping()))
        if is_over and job.keeps_in_step and self._changed_s < self.world.now_s - CHECK_S:
            self._is_blind = False
        if is_over == [True]:
            self.events["swap"] += 1
            self.job = None
            self.start_sink()

    def _work(self, act: Callable[[], None]) -> None:
        """The job works, and ends with an error; a supervisor or an operator starts it again in a later step."""
        try:
            act()
        except Crash:
            self.world.is_dying = False
            self.events["killed"] += 1
            self.kill_sink()
        except WatershedError as error:
            self._last_error = f"{error.message}; {error.hint}"
            self.kill_sink()
            if isinstance(error, RefusedError) and GONE in error.message:
                self.events["refused"] += 1
                self.store.empty()  # as the message says
                self._blind()


def script_of(seed: int, without: Sequence[str] = ()) -> list[Step]:
    chance = random.Random(f"script {seed}")
    rules = [rule for rule in WEIGHTS if (rule in ALWAYS or chance.random() < SHARE) and rule not in without]
    later = {rule: weight for rule, weight in LATER.items() if seed % 4 == 3 and rule not in without}
    return chosen(chance, {rule: WEIGHTS[rule] for rule in rules} | later, chance.choice(STEPS))


def finding_of(options: int, script: Sequence[Step], *, rejects: bool = True) -> Finding | None:
    """Runs the script; None if every promise was kept."""
    try:
        Campaign(options, rejects=rejects).run(script)
    except Finding as finding:
        return finding
    return None


def fails(options: int, kind: str, script: Sequence[Step], *, rejects: bool = True) -> bool:
    """Says whether the script has a finding of this kind; for `shrunk`."""
    with suppress(Exception):  # a part of a script may have another error
        found = finding_of(options, script, rejects=rejects)
        return found is not None and found.kind == kind
    return False
