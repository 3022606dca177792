"""Names of the topics that one prefix owns, and of the tables' topics."""

from collections.abc import Iterable, Sequence
from typing import Final

from cdc.model.errors import SourceError
from cdc.model.events import TableId

# The tables' topics keep deletes for so long: who reads a delete later than that may never see it.
DELETES_KEPT_S: Final = 7 * 86_400
NAME_CHARS_MAX: Final = 249  # Kafka's, of a topic


class Topics:
    """Names of the topics of one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.state = f"{prefix}.state"
        self.control = f"{prefix}.control"
        self.progress = f"{prefix}.progress"
        self.signals = f"{prefix}.signals"
        self.audit = f"{prefix}.audit"
        self.dead_letter = f"{prefix}.dead-letter"
        # Debezium's names. These topics exist only if something is written to them.
        self.transaction = f"{prefix}.transaction"
        self.message = f"{prefix}.message"
        self.heartbeat = f"__debezium-heartbeat.{prefix}"
        self.outbox_dead_letters = f"{prefix}.outbox_dead_letters"  # for messages
        written_when_asked = (self.dead_letter, self.transaction, self.message, self.heartbeat)
        self.written = (self.state, self.control, self.progress, *written_when_asked)  # by capture, beside tables'
        self.own = (*self.written, self.signals, self.audit)

    def sink_dead_letter(self, sink: str) -> str:
        """The topic of rows that the sink's store rejected."""
        return f"{self.dead_letter}.{sink}"

    def view(self, view: str) -> str:
        """The topic of a view whose target is one, unless its target has another name."""
        return f"{self.prefix}.view.{view}"

    def table(self, table: TableId) -> str:
        """The table's topic. Kafka allows letters, digits, `.`, `_` and `-`; anything else becomes `_`."""
        safe = "".join(
            c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in f"{table.schema}.{table.name}"
        )
        return f"{self.prefix}.{safe}"


def prefixes_of(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the prefixes on which capture has run, by the topics that it creates first."""
    known = frozenset(names)
    prefixes = sorted(name.removesuffix(".state") for name in known if name.endswith(".state"))
    return tuple(prefix for prefix in prefixes if known.issuperset(Topics(prefix).written[:3]))


def unknown_slot(slot: str, prefix: str, prefixes: Sequence[str]) -> SourceError:
    """Returns the error for a slot that exists although its prefix has no position. `prefixes`: those that the brokers
    have. The slot is probably that of a running pipeline, so that to drop it is never the first step."""
    others = ", ".join(other for other in prefixes if other != prefix)
    hint = (
        f"topics.prefix is probably mistyped; topics of these prefixes exist: {others}. Correct it; or choose another "
        "source.slot, for a pipeline beside that one"
        if others
        else "check topics.prefix and kafka.bootstrap_servers: these brokers have no topics of any prefix. If the "
        "topics are lost, choose another source.slot, and all rows are read again; the old slot retains WAL until it "
        "is dropped, which ends every pipeline that streams from it"
    )
    return SourceError(f"slot {slot} exists, but the topics of prefix {prefix} hold no position for it", hint)
