"""Operations that are signals to capture: the same that `cdc snapshot`, `cdc table` and `cdc reload` send. The signal
names the user."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from pydantic import Field

from cdc.config.config_file import Config
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.topics import Topics
from watershed.client.signal_sender import await_answer, send_signal
from watershed.http.access import Caller
from watershed.http.operations import Operation, OperationAnswer, RefusedOperationError, Wanted, WantedTables

ANSWER_S_MAX: Final = 20.0
HEAL_ANSWER_S_MAX: Final = 120.0  # a slot is created first, which waits for open transactions
Action = Literal["snapshot", "pause", "resume", "cancel", "stop_table", "start_table", "reload", "heal"]

Send = Callable[[SignalRecord], SignalAnswer]
"""Sends a signal and returns capture's answer. Raises WatershedError."""


class NamedTables(WantedTables):
    """Tables that have to be named."""

    def refusal(self) -> str:
        return "" if self.tables else "tables: none is named"


class SnapshotRequest(NamedTables):
    """The tables whose rows are published again."""

    where: str | None = Field(default=None, max_length=10_000)  # a condition, as in `cdc snapshot start`

    def refusal(self) -> str:
        if self.where is not None and len(self.tables) > 1:
            return "where: it is for exactly one table"
        return super().refusal()


class HealRequest(WantedTables):
    """How a gap is healed."""

    all: bool = False  # publish every row, not only those that differ from the topics

    def refusal(self) -> str:
        return "tables: a gap is healed as a whole, so leave them out" if self.tables else ""


def to_capture(config: Config) -> Send:
    """Sends signals to this pipeline's capture."""
    topics = Topics(config.topics.prefix)

    def send(record: SignalRecord) -> SignalAnswer:
        answer_s = HEAL_ANSWER_S_MAX if record.action == "heal" else ANSWER_S_MAX
        return await_answer(config.kafka, topics, send_signal(config.kafka, topics, record), answer_s)

    return send


def signal_operations(send: Send) -> Sequence[Operation[Wanted]]:
    def operation(path: str, action: Action, summary: str, wanted: type[Wanted]) -> Operation[Wanted]:
        def do(caller: Caller, asked: Wanted, place: Mapping[str, str]) -> OperationAnswer:
            del place
            record = SignalRecord(
                action=action,
                tables=getattr(asked, "tables", ()),
                where=getattr(asked, "where", None),
                all_rows=getattr(asked, "all", False),
                requested_us=time.time_ns() // 1000,
                requested_by=caller.name,
            )
            answer = send(record)
            if not answer.is_accepted:
                hint = answer.next or "GET /v1/tables shows the tables"
                raise RefusedOperationError(f"refused: {answer.message}", hint)
            return OperationAnswer(answer=answer.message, tables=answer.tables)

        return Operation(path, action, summary, wanted, do)

    return [
        operation(
            "/v1/snapshots/start",
            "snapshot",
            "Publish the rows of these tables again, or those that fulfil `where`.",
            SnapshotRequest,
        ),
        operation("/v1/snapshots/pause", "pause", "Pause snapshots; without tables all that run.", WantedTables),
        operation("/v1/snapshots/resume", "resume", "Continue paused snapshots; without tables all.", WantedTables),
        operation("/v1/snapshots/cancel", "cancel", "Cancel snapshots; without tables all of them.", WantedTables),
        operation(
            "/v1/snapshots/heal", "heal", "Leave state GAP: begin a new epoch, publish what differs.", HealRequest
        ),
        operation("/v1/tables/stop", "stop_table", "Stop publishing changes of these tables.", NamedTables),
        operation("/v1/tables/start", "start_table", "Capture stopped tables again; all rows are read.", NamedTables),
        operation("/v1/reload", "reload", "Let capture and sinks read their configuration files again.", Wanted),
    ]
