"""Two writers on one store, of which the first is stopped again and again, in whatever it does just then: also between
its check and its commit, where there are such moments."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from random import Random
from typing import Final

import pytest

from cdc.model.events import pack_version
from sinks.reduction import reduce_changes
from tests.conformance.stores import STORES, CacheStore, SearchStore, SqlStore
from tests.conformance.tables import ORDER_LINES
from tests.conformance.trial import History, Trial, delivered

PAUSES_MIN: Final = 10
CHANGES: Final = 1_000


def stopped_now_and_then(process: subprocess.Popen[bytes], random: Random) -> int:
    """Until the process has ended: how often it was stopped."""
    pauses, pause = 0, threading.Event()
    while process.poll() is None:
        os.kill(process.pid, signal.SIGSTOP)
        pause.wait(random.uniform(0.001, 0.06))
        os.kill(process.pid, signal.SIGCONT)
        pause.wait(random.uniform(0.001, 0.03))
        pauses += 1
    return pauses


@pytest.mark.promise(2)
@pytest.mark.parametrize(
    "store_name", ["search", "cache-lookups", pytest.param("cache-cluster", marks=pytest.mark.long), "sql"]
)
def test_a_writer_that_is_stopped_at_any_moment_ends_equal(
    store_name: str, request: pytest.FixtureRequest, unique: str
) -> None:
    random, table = Random(23), ORDER_LINES
    changes = History(random, [table] * 40, first_id=0, first_version=pack_version(1, 0)).changes(CHANGES)
    with STORES[store_name](request, unique) as store:
        assert isinstance(store, SearchStore | CacheStore | SqlStore)
        trial = Trial(store)
        try:
            trial.prepare(table)
            first = pickle.dumps((*store.section, table.schema, delivered(Random(1), changes)))
            program = [sys.executable, "-m", "tests.conformance.paused_writer"]
            process = subprocess.Popen(program, stdin=subprocess.PIPE)
            assert process.stdin is not None
            process.stdin.write(first)
            process.stdin.close()
            pauses: list[int] = []
            pausing = threading.Thread(target=lambda: pauses.append(stopped_now_and_then(process, random)))
            pausing.start()
            for batch in delivered(Random(2), changes):
                trial.sink.apply(reduce_changes(batch))
            pausing.join()
            assert process.returncode == 0 and pauses[0] >= PAUSES_MIN
            trial.model.apply_all(changes)
            trial.check()
        finally:
            trial.close()
