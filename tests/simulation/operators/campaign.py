"""A run: a script of steps, in which operators, brokers and stores do everything at once.

The rules are the methods that WEIGHTS names.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic import SecretStr

from cdc.model.errors import WatershedError
from cdc.model.sink_records import newest
from cdc.model.topics import DELETES_KEPT_S
from configuration.sink_settings import SqlConfig
from configuration.store_mapping import TableMapping
from sinks.errors import RefusedError
from tests.simulation.operators.brokers import TOPICS, Brokers
from tests.simulation.operators.capture import Capture
from tests.simulation.operators.job import NAME, SinkJob, open_letters, patched, request_rebuild
from tests.simulation.operators.judge import Finding, claimed, require_letters_of_rejected_rows, require_not_early
from tests.simulation.operators.source import (
    BAD,
    KEYS,
    TABLES,
    VERSIONS_MAX,
    Alter,
    Message,
    Source,
    Truncate,
    topic_of,
)
from tests.simulation.operators.store import Store
from tests.simulation.operators.world import Crash, Fuse, World
from tests.support.scripts import Step, chosen

STEPS: Final = range(15, 70)
REFUSALS_MAX: Final = 3
TURNS_MAX: Final = 40  # at the end, until the store is in step
TURN_S: Final = 5.0  # of each of them
CHECK_S: Final = 4.0  # after which a running job has looked at its store again
GONE: Final = "records that were not read yet are gone"


class Campaign:
    """One run. `options` are the seed's: how the pipeline is set up."""

    def __init__(self, options: int, *, forgives_owed: bool = False, rejects: bool = True) -> None:
        """`rejects`: the store rejects some rows. `forgives_owed`: waiters are asked about tables of which capture owes
        nothing, whatever they are told."""
        self._forgives_owed = forgives_owed
        chance = random.Random(options)
        self._bad_share = chance.choice((0.0, 0.15)) if rejects else 0.0
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
        self._written = 0
        self._requests = 0
        self._refused = 0
        self._choose = chance

    # ---- the run

    def run(self, script: Sequence[Step]) -> None:
        """Raises Finding."""
        with patched(self.world, self.brokers):
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
        """The tables that are compared: captured, and in the configuration of the job that ran last."""
        captured = self.capture.state.topics if self.capture.state is not None else {}
        held = [table for table in TABLES if table in captured and self._section.holds(table)]
        record = newest(self.capture.sinks(), NAME)
        if record is not None:  # the job of the present configuration may not have published yet
            held = [table for table in held if str(table) not in record.excluded]
        if self._forgives_owed:
            owed = self.capture.owed_at(record.applied_lsn) if record is not None else set(TABLES)
            held = [table for table in held if table not in owed]
        return held

    def _look(self) -> None:
        if not self._is_blind:
            require_not_early(self.capture, self.source, self.store, self._held(), open_letters(self.brokers))

    def _settle(self) -> None:
        """Nothing goes wrong any more, and the operator does what documentation and messages say."""
        self.world.fuse = None
        for _ in range(TURNS_MAX):
            self.world.now_s += TURN_S
            self._remedy()
            self.publish()
            self.sink_turn()
            self._look()
            if self._is_in_step():
                require_letters_of_rejected_rows(self.source, self._held(), open_letters(self.brokers), BAD)
                return
        state = self.capture.state
        raise Finding("stuck", f"never in step: {self.capture.gap or state}; {self._last_error}")

    def _remedy(self) -> None:
        if not self.capture.is_running:
            self.capture.start()
        self.capture.heal()
        state = self.capture.state
        assert state is not None
        for table in TABLES:
            if table in state.snapshots and state.snapshots[table].is_paused:
                self.capture.alter_snapshot(table, "resume")
            self.capture.start_table(table)
        while self.capture.step():
            pass
        if self.job is not None and self.job.does_nothing:  # a rebuild that the mapping required was cancelled
            self.kill_sink()
        if self.job is None:
            self.start_sink()

    def _is_in_step(self) -> bool:
        state = self.capture.state
        held = self._held()
        wanted = [table for table in TABLES if table in self.capture.configured and self._section.holds(table)]
        return (
            self.capture.is_at_rest
            and state is not None
            and not state.owed
            and not (self._is_blind and held)
            and held == wanted
            and claimed(self.capture, self.source.end, held) == held
        )

    _last_error = ""

    # ---- the source

    def write(self) -> None:
        """Changes some rows in one transaction."""
        messages: list[Message] = []
        for _ in range(self._choose.randint(1, 3)):
            table, key = self._choose.choice(TABLES), self._choose.randrange(KEYS)
            self._written += 1
            is_bad = self._choose.random() < self._bad_share
            text = f"{BAD if is_bad else 'value'} {self._written}"
            is_deleted = self._choose.random() < 0.25
            messages.append(self.source.row(table, key, None if is_deleted else text))
        self.source.commit(*messages)

    def truncate(self) -> None:
        self.source.commit(Truncate(self._choose.choice(TABLES)))

    def alter(self) -> bool:
        table = self._choose.choice(TABLES)
        version = self.source.versions[table] + 1
        if version > VERSIONS_MAX:
            return False
        self.source.commit(Alter(table, version))
        return True

    # ---- capture

    def start_capture(self) -> bool:
        if self.capture.is_running:
            return False
        self.capture.start()
        return True

    def kill_capture(self) -> None:
        self.capture.kill()

    def publish(self) -> None:
        """Some Kafka transactions, and a position."""
        for _ in range(self._choose.randint(1, 4)):
            self.capture.step()
        self.capture.publish_progress()

    def commit_only(self) -> None:
        """A Kafka transaction whose position is not published yet."""
        self.capture.step()

    def heal(self) -> bool:
        return self.capture.heal()

    def start_snapshot(self) -> bool:
        return self.capture.start_snapshot(
            self._choose.choice(TABLES), self._choose.choice(("whole", "where", "range"))
        )

    def alter_snapshot(self) -> bool:
        action = self._choose.choice(("pause", "resume", "cancel"))
        return self.capture.alter_snapshot(self._choose.choice(TABLES), action)

    def stop_table(self) -> bool:
        return self.capture.stop_table(self._choose.choice(TABLES))

    def start_table(self) -> bool:
        return self.capture.start_table(self._choose.choice(TABLES))

    def configure_table(self) -> None:
        """Removes a table from the configuration, or adds it again, and starts capture again."""
        table = self._choose.choice(TABLES)
        self.capture.configured ^= {table}
        if not self.capture.configured:
            self.capture.configured.add(table)
        self.capture.kill()
        self.capture.start()

    def remove_table_with_topic(self) -> None:
        """As documented: removes a table, and deletes its topic, which nobody needs."""
        table = self._choose.choice(TABLES)
        self.capture.configured = set(TABLES) - {table}
        self.capture.kill()
        self.capture.start()
        if self.capture.state is not None and table not in self.capture.state.topics:
            self.brokers.topics.pop(topic_of(table), None)

    def tear_down(self) -> None:
        """`cdc teardown --topics`, without the store. Nothing runs then."""
        self.kill_sink()
        self._frozen = None
        self.capture.kill()
        self.capture.state, self.source.slot = None, None
        self.brokers.topics.clear()
        self._broker_copies.clear()

    # ---- brokers

    def delete_topic(self) -> bool:
        return self.brokers.topics.pop(topic_of(self._choose.choice(TABLES)), None) is not None

    def add_partition(self) -> bool:
        topic = self.brokers.topics.get(topic_of(self._choose.choice(TABLES)))
        if topic is None or len(topic.logs) > 3:
            return False
        topic.logs.append(type(topic.logs[0])())
        return True

    def lose_last_records(self) -> bool:
        return self._with_log(self.brokers.lose_last)

    def delete_records(self) -> bool:
        return self._with_log(self.brokers.delete_records)

    def _with_log(self, act: Callable[[str, int, int], None]) -> bool:
        name = topic_of(self._choose.choice(TABLES))
        if name not in self.brokers.topics:
            return False
        act(name, self._choose.randrange(len(self.brokers.topics[name].logs)), self._choose.randint(1, 12))
        return True

    def compact(self) -> None:
        for name in self.brokers.topics:
            self.brokers.compact(name, deletes=False)

    def copy_brokers(self) -> None:
        self._broker_copies.append((self.brokers.copied(), self.capture.state))

    def restore_brokers(self) -> bool:
        """All of them, from an older copy. Whatever was connected starts again."""
        if not self._broker_copies:
            return False
        topics, state = self._choose.choice(self._broker_copies)
        self.kill_sink()
        self.capture.kill()
        self.brokers.restore(topics)
        self.capture.state = state
        return True

    def pass_week(self) -> None:
        """Longer than deletes are kept. A job that runs has read them before; afterwards it is started again."""
        for _ in range(2):
            self._choose = random.Random(0)
            self.sink_turn()
        self.kill_sink()
        self.world.now_s += DELETES_KEPT_S + 3600
        for table in TABLES:
            if topic_of(table) in self.brokers.topics:
                self.brokers.compact(topic_of(table), deletes=True)
        self.compact()

    # ---- the store

    def copy_store(self) -> None:
        self._copies.append(self.store.copied())

    def restore_store(self) -> bool:
        if not self._copies:
            return False
        self.store.restore(self._choose.choice(self._copies))
        self._blind()
        return True

    def empty_store(self) -> None:
        self.store.empty()
        self._blind()

    def _blind(self) -> None:
        """Published positions are of what the store held before: nobody can know, until a job has looked."""
        self._is_blind, self._is_new, self._changed_s = True, False, self.world.now_s
        self.world.now_s += CHECK_S

    # ---- the sink

    def _configured(self) -> SqlConfig:
        mapping = {str(table): TableMapping(as_text=("v",)) for table in TABLES if str(table) in self._mapped}
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
        self._work(lambda: is_over.append(job.tend()))
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

    def fail_soon(self) -> None:
        """One of the next calls of the job fails, or the job dies at it."""
        kind = self._choose.choice(("store", "store", "brokers", "kill"))
        self.world.fuse = Fuse(self._choose.choice((0, 1, 1, 2, 3, 5, 8, 13)), kind, self._choose.random() < 0.3)
        if self._choose.random() < 0.7:
            self.sink_turn()

    def exclude_table(self) -> None:
        """The sink holds a table no longer, or again."""
        self.kill_sink()
        self.excluded ^= {str(self._choose.choice(TABLES))}
        if len(self.excluded) == len(TABLES):
            self.excluded.clear()
        self.start_sink()

    def change_mapping(self) -> None:
        """The store's rows get another shape. The fake store holds them as they come."""
        self.kill_sink()
        self._mapped ^= {str(self._choose.choice(TABLES))}
        self.start_sink()

    def freeze_sink(self) -> bool:
        """The job stands still, and another one is started."""
        if self.job is None:
            return False
        self._frozen, self.job = self.job, None
        return self.start_sink()

    def thaw_sink(self) -> bool:
        """The job that stood still goes on, beside the one that was started later."""
        if self._frozen is None or self.job is None:
            return False
        later, self.job = self.job, self._frozen
        self._frozen = None
        self.sink_turn()
        self.job = later
        return True

    def rebuild(self) -> bool:
        if not self.has_slots or TOPICS.progress not in self.brokers.topics:
            return False
        self._requests += 1
        action = self._choose.choice(("rebuild", "rebuild", "rollback", "drop", "cancel"))
        request_rebuild(self.brokers, action, self._requests)
        return True


WEIGHTS: Final = {
    "write": 8,
    "truncate": 1,
    "alter": 1,
    "start_capture": 3,
    "kill_capture": 1,
    "publish": 9,
    "commit_only": 2,
    "heal": 3,
    "start_snapshot": 2,
    "alter_snapshot": 1,
    "stop_table": 1,
    "start_table": 2,
    "configure_table": 1,
    "remove_table_with_topic": 1,
    "tear_down": 1,
    "delete_topic": 1,
    "add_partition": 1,
    "lose_last_records": 1,
    "delete_records": 1,
    "compact": 1,
    "copy_brokers": 1,
    "restore_brokers": 1,
    "pass_week": 1,
    "copy_store": 1,
    "restore_store": 1,
    "empty_store": 1,
    "start_sink": 4,
    "stop_sink": 1,
    "kill_sink": 1,
    "sink_turn": 10,
    "fail_soon": 4,
    "exclude_table": 1,
    "rebuild": 2,
    "change_mapping": 1,
    "freeze_sink": 1,
    "thaw_sink": 1,
}
ALWAYS: Final = (
    "write",
    "start_capture",
    "publish",
    "heal",
    "start_table",
    "start_sink",
    "sink_turn",
    "copy_brokers",
    "copy_store",
)
SHARE: Final = 0.35  # of the other rules that a seed uses: a few of them meet more often


def script_of(seed: int, without: Sequence[str] = ()) -> list[Step]:
    chance = random.Random(f"script {seed}")
    rules = [rule for rule in WEIGHTS if (rule in ALWAYS or chance.random() < SHARE) and rule not in without]
    return chosen(chance, {rule: WEIGHTS[rule] for rule in rules}, chance.choice(STEPS))


def finding_of(options: int, script: Sequence[Step], **arguments: bool) -> Finding | None:
    """Runs the script; None if every promise was kept."""
    try:
        Campaign(options, **arguments).run(script)
    except Finding as finding:
        return finding
    return None


def fails(options: int, kind: str, script: Sequence[Step], **arguments: bool) -> bool:
    """Says whether the script has a finding of this kind; for `shrunk`."""
    with suppress(Exception):  # a part of a script may have another error
        found = finding_of(options, script, **arguments)
        return found is not None and found.kind == kind
    return False
