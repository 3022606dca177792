"""What must hold for any bytes: they are refused with a named error, or they mean something whole.

`TestOneInput` is the entry for coverage-guided fuzzing, in the form that Atheris and libFuzzer call:

    import atheris
    from tests.fuzz import target
    with atheris.instrument_imports(): ...
    atheris.Setup(sys.argv, target.TestOneInput); atheris.Fuzz()

`python -m tests.fuzz` does that where Atheris is installed, and mutates by itself where it is not.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Final

import orjson

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.formats.records import EnvelopeContext, FinishedRecord, TableEncoder
from cdc.model.errors import GapError, ProtocolError, UnsupportedChangeError, WatershedError
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.codec import RowCodec
from cdc.pgoutput.decoder import decode
from tests.fuzz.seeds import Seeds, TableSeeds, load
from tests.support import wire
from tests.support.holes import without_holes
from tests.support.snapshot_ports import UnfollowedTables, engine_of

CONTEXT: Final = EnvelopeContext("shop", "shop", 1, "0.1.0")
COMMIT_LSN: Final = Lsn(0x16_B374_D848)
PLACE: Final = "16/B374D848#3"
# A byte becomes \u00XX at worst, in `before` and `after` and in a moved key's records; the rest is the envelope.
GROWTH_MAX: Final = 30
ENVELOPE_BYTES_MAX: Final = 20_000


class Finding(AssertionError):  # noqa: N818 - what a campaign looks for
    """Bytes for which something does not hold that must."""


@dataclass(frozen=True)
class Table:
    """A table that bytes are read as rows of."""

    seeds: TableSeeds
    encoder: TableEncoder
    codec: RowCodec

    @property
    def name(self) -> str:
        return str(self.seeds.schema.table)


@cache
def tables() -> tuple[Table, ...]:
    return tuple(map(_table, seeds().tables))


@cache
def seeds() -> Seeds:
    return load()


def _table(found: TableSeeds) -> Table:
    encoder = TableEncoder(found.schema, found.relation, CONTEXT)
    encoder.start_transaction(COMMIT_LSN, 1_767_323_079_990_123, 560, None)
    return Table(found, encoder, RowCodec(found.schema, found.relation))


def check_message(message: bytes) -> bool:
    """Whether it is a message. The error for one that is not names type, offset and position."""
    try:
        decode(message, "16/B374D848")
    except ProtocolError as error:
        if not (error.message.startswith("pgoutput message ") and " at 16/B374D848, byte " in error.message):
            raise Finding(f"an error without type, offset or position: {error.message}") from error
        return False
    return True


def check_row(table: Table, message: bytes) -> bool:
    """Whether it is a row change of the table, which then is whole, valid JSON, and bounded by the message's size."""
    try:
        records = [without_holes(record) for record in table.encoder.encode(message, 0, 24_026_000, 3, 17, 5)]
    except (ProtocolError, UnsupportedChangeError) as error:
        _require_named(error, table)
        return False
    _require_whole(records, len(message))
    return True


def check_line(table: Table, line: bytes) -> bool:
    """The same for a line of COPY."""
    try:
        record = table.encoder.copy_row(line, COMMIT_LSN, 3, 17, 5)
    except (ProtocolError, UnsupportedChangeError) as error:
        _require_named(error, table)
        return False
    _require_whole([record], len(line))
    return True


def check_paths(table: Table, message: bytes) -> None:
    """The generated code takes nothing that the exact path refuses, and gives the same for what it takes."""
    usual = table.codec.usual_change(message, 0)
    if usual is not None and usual != table.codec.exact_change(message, 0, COMMIT_LSN, 3):
        raise Finding("the generated code and the exact path differ")


def check_stream(table: Table, frames: list[bytes]) -> bool:
    """Whether the assembler takes these frames. It refuses them by named errors only, and what it has confirmed
    to have consumed never goes back."""
    schema = table.seeds.schema
    made = Assembler(
        CapturedTables([schema]),
        CONTEXT,
        StreamState(Lsn(1), None, 0, 0),
        engine_of([schema], CONTEXT),
        UnfollowedTables(),
    )
    resume = made.state.resume_lsn
    for frame in frames:
        try:
            records, failure = made.consume([frame], 5)
        except (ProtocolError, GapError):
            return False
        if failure is not None:
            return False
        if made.state.resume_lsn < resume:
            raise Finding("the position went back")
        resume = made.state.resume_lsn
        values = (record.value or b"" for record in records if isinstance(record, TopicRecord))
        if sum(map(len, values)) > _bytes_max(len(frame)):
            raise Finding("more bytes than the frame can mean")
    return True


def stream_of(table: Table, row: bytes) -> list[bytes]:
    """Frames of a transaction with this row, and a keepalive."""
    messages = [
        wire.begin(COMMIT_LSN, 1_767_323_079_990_123, 560),
        wire.relation_bytes(table.seeds.relation),
        row,
        wire.commit(COMMIT_LSN, COMMIT_LSN + 48, 1_767_323_079_990_123),
    ]
    return [*(wire.xlog_data(message, 24_026_000) for message in messages), wire.keepalive(COMMIT_LSN + 96)]


def TestOneInput(data: bytes) -> None:  # noqa: N802 - the name that fuzzers call
    """Any bytes: the first tells as what the rest is read."""
    if not data:
        return
    chosen, rest = data[0], bytes(data[1:])
    table = tables()[chosen % len(tables())]
    check_message(rest)
    check_row(table, rest)
    check_paths(table, rest)
    check_line(table, rest)
    check_stream(table, [rest])
    check_stream(table, [*stream_of(table, rest)[:2], wire.xlog_data(rest, 24_026_000)])


def _require_named(error: WatershedError, table: Table) -> None:
    message = error.message
    if not (PLACE in message and (message.startswith((table.name, "pgoutput message ")))):
        raise Finding(f"an error without table or position: {message}")
    if not error.hint:
        raise Finding(f"an error without a next step: {message}")


def _require_whole(records: list[FinishedRecord], size: int) -> None:
    for key, value, headers in records:
        if len(key) + len(value or b"") + sum(len(v or b"") for _, v in headers or ()) > _bytes_max(size):
            raise Finding(f"{size} bytes became more than they can mean")
        _require_json(key)
        if value is not None:
            _require_json(value)


def _require_json(content: bytes) -> None:
    try:
        orjson.loads(content)
    except orjson.JSONDecodeError as error:
        try:
            json.loads(content)  # takes integers and floats beyond 64 bits
        except ValueError:
            raise Finding("what was published is not JSON") from error


def _bytes_max(size: int) -> int:
    return GROWTH_MAX * size + ENVELOPE_BYTES_MAX
