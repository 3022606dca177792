"""Points of the code at which tests kill or freeze the process. The loop passes their names to its probe, which the
environment arms: `CDC_FAILPOINT=kafka.after-commit:3` kills the process with SIGKILL when it reaches this point for the
third time, and with `:3:stop` SIGSTOP freezes it there.
"""

import os
import re
import signal
from collections.abc import Mapping

from cdc.model.errors import ConfigError
from cdc.ports.stream import Probe, unarmed

FAILPOINTS = {
    "load.rows-produced": "existing rows are in an open Kafka transaction",
    "load.part-committed": "a part of the existing rows is committed",
    "load.before-end": "all existing rows are committed, the stream has not started",
    "bootstrap.before-commit": "the slot exists, the record from which streaming begins is not committed",
    "join.published": "a new table is in the publication, its records are not committed",
    "join.recorded": "a new table's records are committed, none of its rows are read",
    "promotion.recorded": "the position is recorded on a promoted server's timeline, nothing of it is published",
    "chunk.read": "a chunk is read, its watermark is not written",
    "chunk.marked": "a chunk's watermark is in the log",
    "transaction.part-committed": "a part of a large PostgreSQL transaction is committed to Kafka",
    "kafka.before-commit": "records and position are produced, not committed",
    "kafka.after-commit": "the Kafka transaction is committed, its position is not confirmed to the server",
    "left-open.recorded": "a hanging transaction is about to be aborted and written again",
    "left-open.aborted": "a hanging transaction is aborted, and not yet written again",
    "status.sent": "a newer LSN was confirmed to the server",
}
VARIABLE = "CDC_FAILPOINT"
_WANTED = re.compile(r"(?P<name>[a-z.-]+)(?::(?P<count>0*[1-9][0-9]*)(?::(?P<action>kill|stop))?)?")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def armed_probe(environment: Mapping[str, str]) -> Probe:
    """Returns the probe that the environment requests. Raises ConfigError for a name that does not exist."""
    wanted = environment.get(VARIABLE)
    if not wanted:
        return unarmed
    asked = _WANTED.fullmatch(wanted)
    if asked is None or asked["name"] not in FAILPOINTS:
        raise ConfigError(f"{VARIABLE}={wanted!r} names no failpoint", f"one of {', '.join(FAILPOINTS)}")
    name, left, number = asked["name"], int(asked["count"] or 1), _SIGNALS[asked["action"] or "kill"]

    def probe(passed: str) -> None:
        nonlocal left
        if passed == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    return probe
