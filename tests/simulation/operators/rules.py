"""What operators, brokers and stores do, and what happens in the source: the rules of a run, by name.

Nobody deletes records of a topic: brokers refuse that for topics that are only compacted, as all of ours are
(POLICY_VIOLATION), and who changes that first must do it beside everything that capture checks
(tests/integration/test_topic_troubles.py).
"""

import random
from abc import ABC, abstractmethod
from typing import Any, Final

from cdc.model.topics import DELETES_KEPT_S
from tests.simulation.operators.brokers import TOPICS, Brokers
from tests.simulation.operators.capture import Capture
from tests.simulation.operators.job import SinkJob, open_dead_letters, request_rebuild
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
from tests.simulation.operators.world import Fuse, World

FAILING: Final = (
    "store",
    "brokers",
    "kill",
    "store.readable",
    "store.note",
    "store.sweep",
    "brokers.letters",
    "brokers.publish",
)
CHECK_S: Final = 4.0  # after which a running job has looked at its store again


class Rules(ABC):
    """A rule takes its choices from `_choose`, and returns False if it does not apply."""

    world: World
    brokers: Brokers
    source: Source
    capture: Capture
    store: Store
    has_slots: bool
    job: SinkJob | None
    excluded: set[str]
    _frozen: SinkJob | None
    _mapped: set[str]  # tables whose mapping makes other rows, as far as the job knows
    _choose: random.Random
    _bad_share: float
    _copies: list[Any]  # of the store
    _broker_copies: list[Any]
    _lost_letters: dict[str, int]  # that an older copy of the brokers may lack: only Kafka has them
    _reopened_letters: set[str]  # that an older copy of the brokers has, and that were closed since
    _written: int
    _requests: int
    _is_blind: bool  # the store was changed by others, and the job has not looked since
    _is_new: bool  # the job began after that
    _changed_s: float

    @abstractmethod
    def start_sink(self) -> bool: ...

    @abstractmethod
    def kill_sink(self) -> None: ...

    @abstractmethod
    def reconfigure_sink(self) -> None:
        """The job that runs reads its file again."""

    @abstractmethod
    def sink_turn(self) -> None:
        """A batch, and a look at the topics."""

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

    def truncate_twice(self) -> None:
        """Two sweeps of one table, of which compaction leaves the later one, before its LSN is published."""
        table = self._choose.choice(TABLES)
        self.kill_sink()
        for key in (0, 1):
            self.source.commit(Truncate(table), self.source.row(table, key, f"value after {key}"))
            self.capture.step()
            if key == 0:
                self.capture.publish_progress()
        self.compact()
        self.start_sink()
        self.sink_turn()

    def alter(self) -> bool:
        table = self._choose.choice(TABLES)
        version = self.source.versions[table] + 1
        if version > VERSIONS_MAX:
            return False
        self.source.commit(Alter(table, version))
        return True

    def lose_slot(self) -> bool:
        """It is dropped. While the state is an older copy, that removes the only witness: nobody can know."""
        state, slot = self.capture.state, self.source.slot
        if state is None or slot is None or slot > state.lsn:
            return False
        self.source.slot = None
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

    def reload_tables(self) -> bool:
        """Removes a table from the configuration, or adds it again, and capture reads its file again."""
        configured = self.capture.configured ^ {self._choose.choice(TABLES)}
        return bool(configured) and self.capture.reload(configured)

    def create_matching_table(self) -> bool:
        """A table is dropped, and another one of its name created, with rows."""
        self._written += 1
        keys = self._choose.sample(range(KEYS), self._choose.randint(0, 3))
        table = self._choose.choice(TABLES)
        return self.capture.replace_table(table, dict.fromkeys(keys, f"value {self._written} of a new table"))

    def remove_table_with_topic(self) -> None:
        """As documented: removes a table, and deletes its topic, which nobody needs."""
        table = self._choose.choice(TABLES)
        self.capture.configured = set(TABLES) - {table}
        self.capture.kill()
        self.capture.start()
        if table not in self.capture.tables:
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
        """An unclean election loses records from below the ends that capture knows. Capture can't know of others, which
        it has committed since a moment ago; a consumer's client notices (KIP-320), which is not simulated."""
        name = topic_of(self._choose.choice(TABLES))
        if name not in self.brokers.topics:
            return False
        partition = self._choose.randrange(len(self.brokers.topics[name].logs))
        count = self._choose.randint(1, 12)
        if (known := self.capture.end_of(name, partition)) is not None:
            if not known:
                return False
            count += max(0, self.brokers.ends(name)[partition] - known)
        self.brokers.lose_last(name, partition, count)
        return True

    def compact(self) -> None:
        for name in self.brokers.topics:
            self.brokers.compact(name, deletes=False)

    def copy_brokers(self) -> None:
        self._broker_copies.append((self.brokers.copied(), self.capture.state, self.capture.taken_up))

    def restore_brokers(self) -> bool:
        """All of them, from an older copy. Whatever was connected starts again. The slot tells capture; without one
        nobody can know."""
        if not self._broker_copies or self.source.slot is None:
            return False
        topics, state, taken_up = self._choose.choice(self._broker_copies)
        dead_letters = open_dead_letters(self.brokers)
        self._lost_letters |= dead_letters
        self.kill_sink()
        self.capture.kill()
        self.brokers.restore(topics)
        self._reopened_letters |= open_dead_letters(self.brokers).keys() - dead_letters.keys()
        self.capture.state = state
        self.capture.taken_up &= taken_up  # what joined since is published nowhere, until capture starts again
        self._blind()
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
        self._copies.append((self.store.copied(), open_dead_letters(self.brokers)))

    def restore_store(self) -> bool:
        if not self._copies:
            return False
        copy, dead_letters = self._choose.choice(self._copies)
        generation = self.store.serving_generation
        self.store.restore(copy)
        if self.store.serving_generation != generation:
            self._lost_letters |= dead_letters  # those of a generation that was replaced are closed
        self._blind()
        return True

    def empty_store(self) -> None:
        self.store.empty()
        self._blind()

    def _blind(self) -> None:
        """Published positions are of what another store held, or the same one at another time: nobody can know, until a
        job has looked."""
        self._is_blind, self._is_new, self._changed_s = True, False, self.world.now_s
        self.world.now_s += CHECK_S

    # ---- the sink

    def fail_soon(self) -> None:
        """One of the next calls of the job fails, or the job dies at it."""
        kind = self._choose.choice(FAILING)
        calls = 0 if "." in kind else self._choose.randrange(10)
        self.world.fuse = Fuse(calls, kind, self._choose.random() < 0.3)
        if self._choose.random() < 0.7:
            self.sink_turn()

    def exclude_table(self) -> None:
        """The sink holds a table no longer, or again."""
        self.kill_sink()
        self.excluded ^= {str(self._choose.choice(TABLES))}
        if len(self.excluded) == len(TABLES):
            self.excluded.clear()
        self.start_sink()

    def reload_sink(self) -> bool:
        """The job reads its file again: it holds other tables, or gives rows another shape."""
        if self.job is None:
            return False
        if self._choose.random() < 0.5:
            self._mapped ^= {str(self._choose.choice(TABLES))}
        else:
            self.excluded ^= {str(self._choose.choice(TABLES))}
            if len(self.excluded) == len(TABLES):
                self.excluded.clear()
        self.reconfigure_sink()
        return True

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
        return request_rebuild(self.brokers, action, self._requests)


WEIGHTS: Final = {
    "write": 8,
    "truncate": 1,
    "truncate_twice": 1,
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
    "lose_slot": 1,
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
# Rules that came later: every fourth seed has them, so that the others keep their scripts, and with them the seeds that
# find mutants (FOUND_AT in mutants.py).
LATER: Final = {"reload_tables": 2, "create_matching_table": 2, "reload_sink": 2}
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
