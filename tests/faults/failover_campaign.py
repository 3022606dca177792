"""How long publishing takes to go on after a promotion, and that nothing is lost, doubled or read again.

    python -m tests.faults.failover_campaign --kills 20 --switches 10 --snapshots 5 --behind 5

A primary and a standby on PostgreSQL 18, under a load of some 300 changes/s. Each round promotes the standby, after the
primary was killed or shut down, and makes a standby of the former primary: so each second round is a failback. A round
of `--snapshots` promotes while all rows are read again. In the end the judge compares topics with the journal of
the source: nothing lost, nothing twice, no row read again. Then rounds in which the standby was behind: capture must be
in state GAP with the range, and topics equal to the source after healing. The result is a JSON object; the exit code
is 1 where the 95th percentile is above its target.
"""

import argparse
import json
import random
import secrets
import sys
import time
from pathlib import Path
from typing import Final

from tests.conftest import KafkaBroker, PostgresServer
from tests.faults.episodes import servers
from tests.faults.takeover_campaign import Watcher, figures
from tests.integration.conftest import ITEMS, SMALL
from tests.support.captured import Captured, under_capture
from tests.support.standby_servers import PgServer, StandbyServers, Writer, standby_servers
from tests.support.waiting import eventually

TARGET_S: Final = 10.0
ROWS: Final = 3_000


class Rounds:
    """Promotions of one pair, one after the other."""

    def __init__(self, captured: Captured, pair: StandbyServers, seed: int) -> None:
        self._captured = captured
        self._pair = pair
        self._primary, self._standby = pair.servers
        self._chance = random.Random(seed)
        self._watcher = Watcher(captured)

    def ready(self) -> None:
        """The standby has slot and log, and the primary waits for it."""
        self._pair.await_synchronised(self._captured.name, [self._standby])
        self._primary.set(synchronized_standby_slots=self._standby.physical_slot)

    def promote(self, kind: str) -> float:
        """Seconds from the promotion's begin until a change of the new primary is published."""
        self.ready()
        self._watcher.seconds_until_published(time.time() + self._chance.random())  # any moment of the load
        if kind == "snapshot":
            self._captured.ask("snapshot", tables=[ITEMS])
        if kind == "switch":
            self._primary.stop()
        else:
            self._primary.kill()
        began = time.time()
        self._standby.promote()
        took_s = self._watcher.seconds_until_published(began)
        print(f"{kind}: {took_s:.2f} s", flush=True)
        self._swap()
        return took_s

    def fall_behind(self) -> bool:
        """Promotes a standby that lacks what is published. Returns whether there was a gap with a range."""
        self._pair.await_synchronised(self._captured.name, [self._standby])
        self._primary.set(synchronized_standby_slots="")
        self._standby.set(primary_conninfo="")
        capture = self._captured.running()
        gaps = capture.said().count("never happened here")
        self._watcher.seconds_until_published(time.time() + 1.0)
        self._primary.kill()
        self._standby.promote()
        eventually(lambda: capture.said().count("never happened here") > gaps, 60.0, capture.said)
        self._captured.ask("heal")
        self._swap()
        return True

    def _swap(self) -> None:
        former: PgServer
        self._primary, former = self._standby, self._primary
        self._primary.set(synchronized_standby_slots="", primary_conninfo="")
        former.make_standby_of(self._primary)
        self._standby = former

    def close(self) -> None:
        self._watcher.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("kills", 20), ("switches", 10), ("snapshots", 5), ("behind", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, default=Path(".watershed/failover"))
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    asked = parser.parse_args()
    kinds = ["kill"] * asked.kills + ["switch"] * asked.switches + ["snapshot"] * asked.snapshots
    random.Random(asked.seed).shuffle(kinds)
    took: dict[str, list[float]] = {}
    name = f"failover_{secrets.token_hex(3)}"
    folder = asked.folder.absolute() / name
    folder.mkdir(parents=True)
    with servers(asked.folder.absolute() / "stack") as stack, standby_servers(2) as pair:
        kafka = KafkaBroker(stack.start("kafka").bootstrap_servers, stack)
        server = PostgresServer(pair.dsn(), pair.dsn("postgres"), stack)
        with under_capture(server, kafka, pair.dsn(), name, folder, SMALL, [ITEMS]) as captured:
            captured.query(f"INSERT INTO items SELECT g, 'before' FROM generate_series(1, {ROWS}) g")
            captured.start(is_forked=False)
            captured.await_caught_up()
            rounds = Rounds(captured, pair, asked.seed)
            with Writer(pair.dsn()):
                for kind in kinds:
                    took.setdefault(kind, []).append(rounds.promote(kind))
            captured.await_caught_up()
            report = captured.judge()
            first_reads = sum(change.op == "r" for change in report.changes)
            assert asked.snapshots or first_reads == ROWS, f"{first_reads} rows were read"
            with Writer(pair.dsn()):
                gaps = sum(rounds.fall_behind() for _ in range(asked.behind))
            captured.await_caught_up()
            assert captured.unlike([ITEMS]) == {}
            rounds.close()
    everything = [one for some in took.values() for one in some]
    result = {
        "seed": asked.seed,
        "seconds until published": {kind: figures(some) for kind, some in took.items()},
        "all": figures(everything) if everything else {},
        "changes": len(report.changes),
        "epoch": report.epoch,
        "rows read": first_reads,
        "gaps with a range": gaps,
    }
    print(json.dumps(result, indent=1))
    return int(bool(everything) and figures(everything)["p95"] > TARGET_S)


if __name__ == "__main__":
    sys.exit(main())
