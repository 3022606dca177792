"""Settings of the topics that are created, by kind of topic. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pydantic import Field, model_validator

from cdc.config.section import Section
from cdc.model.topics import DELETES_KEPT_S

TopicKind = Literal[
    "table",
    "view",
    "log",
    "event",
    "state",
    "progress",
    "control",
    "signals",
    "audit",
    "dead_letter",
    "sink_dead_letter",
    "heartbeat",
    "metadata",
]
KINDS: Final[tuple[TopicKind, ...]] = get_args(TopicKind)

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest record of a new topic. The large managed services allow no more without a request to their support."""

SEGMENT_BYTES: Final = 50 * 1024 * 1024  # the least that the large managed services allow
_DAY_MS: Final = 86_400_000
_POLICY: Final = "cleanup.policy"
_DELETES: Final = "delete.retention.ms"
_INTACT: Final = "min.compaction.lag.ms"
_BROKERS_DELETES_KEPT_S: Final = 86_400  # Kafka's default of delete.retention.ms
_WITH_DELETES: Final[tuple[TopicKind, ...]] = ("table", "control")

_COMPACTED: Final = {_POLICY: "compact", "max.message.bytes": str(RECORD_BYTES_MAX)}
# Records that do not replace each other, deleted by the brokers' retention. Compacted topics refuse records without a
# key.
_DELETED: Final = {_POLICY: "delete", "max.message.bytes": str(RECORD_BYTES_MAX)}
# A reader may be offline for a week and still see every delete; the last day is not compacted.
_KEPT: Final = {_DELETES: str(DELETES_KEPT_S * 1000), _INTACT: str(_DAY_MS)}
# Of these records only the last of each key counts, and some are written for each Kafka transaction: they are cleaned
# soon.
_RECORDS: Final = _COMPACTED | {
    "segment.bytes": str(SEGMENT_BYTES),
    "segment.ms": str(600_000),
    "min.cleanable.dirty.ratio": "0.2",
}


@dataclass(frozen=True, slots=True)
class KindOfTopic:
    """What new topics of a kind get."""

    settings: Mapping[str, str]  # ours, which the configuration may replace
    # Settings without which readers would be wrong. Of others that the brokers refuse, they keep their default.
    required: frozenset[str] = frozenset({_POLICY})
    has_partitions: bool = False  # topics.partitions; otherwise one
    policies: tuple[str, ...] = ()  # values of cleanup.policy that work; empty: all


_ROWS: Final = frozenset({_POLICY, _DELETES, _INTACT})
_COMPACT: Final = ("compact",)
_DELETE: Final = ("delete",)
KIND: Final[Mapping[TopicKind, KindOfTopic]] = {
    "table": KindOfTopic(_COMPACTED | _KEPT, _ROWS, has_partitions=True, policies=_COMPACT),
    "view": KindOfTopic(_COMPACTED | _KEPT, has_partitions=True, policies=_COMPACT),
    "log": KindOfTopic(_DELETED, policies=_DELETE),
    "event": KindOfTopic(_DELETED, has_partitions=True),
    "state": KindOfTopic(_RECORDS, policies=_COMPACT),
    "progress": KindOfTopic(_RECORDS, policies=_COMPACT),
    # Sweeps and rows share one series of numbers, so readers that count them need both for the same time.
    "control": KindOfTopic(_RECORDS | _KEPT, _ROWS, policies=_COMPACT),
    # Read within seconds, by one reader that records its offset.
    "signals": KindOfTopic({_POLICY: "delete", "retention.ms": str(7 * _DAY_MS)}, policies=_DELETE),
    "audit": KindOfTopic({_POLICY: "delete", "retention.ms": str(90 * _DAY_MS)}, policies=_DELETE),
    "dead_letter": KindOfTopic(_DELETED, policies=_DELETE),
    "sink_dead_letter": KindOfTopic(_RECORDS, policies=_COMPACT),
    "heartbeat": KindOfTopic(_RECORDS, policies=_COMPACT),
    "metadata": KindOfTopic(_DELETED, policies=_DELETE),
}


Given = dict[str, str | int | float | bool | None]
"""Setting → value, in place of ours; null: the brokers' default."""


def _text(value: str | float | bool | None) -> str | None:
    """Returns the value as brokers write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


class TopicSettings(Section):
    """Settings of Kafka for new topics of each kind, in place of Watershed's. `null`: the brokers' default."""

    table: Given = Field(default_factory=dict)
    view: Given = Field(default_factory=dict)
    log: Given = Field(default_factory=dict)
    event: Given = Field(default_factory=dict)
    state: Given = Field(default_factory=dict)
    progress: Given = Field(default_factory=dict)
    control: Given = Field(default_factory=dict)
    signals: Given = Field(default_factory=dict)
    audit: Given = Field(default_factory=dict)
    dead_letter: Given = Field(default_factory=dict)
    sink_dead_letter: Given = Field(default_factory=dict)
    heartbeat: Given = Field(default_factory=dict)
    metadata: Given = Field(default_factory=dict)

    @model_validator(mode="after")
    def _policies_work(self) -> "TopicSettings":
        for kind in KINDS:
            policies, policy = KIND[kind].policies, self.given(kind).get(_POLICY, "")
            if policies and policy != "" and policy not in policies:
                raise ValueError(
                    f"{kind}: {_POLICY} can't be {policy}: topics of this kind work with {policies[0]} only"
                )
        return self

    @model_validator(mode="after")
    def _times_are_numbers(self) -> "TopicSettings":
        for kind in _WITH_DELETES:
            value = self.given(kind).get(_DELETES)
            if value is not None and not value.isdecimal():
                raise ValueError(f"{kind}: {_DELETES} must be a number of milliseconds")
        return self

    def given(self, kind: TopicKind) -> Mapping[str, str | None]:
        found: Given = getattr(self, kind)
        return {name: _text(value) for name, value in found.items()}

    def of(self, kind: TopicKind) -> dict[str, str]:
        """Returns what a new topic of the kind is created with."""
        merged = {**KIND[kind].settings, **self.given(kind)}
        return {name: value for name, value in merged.items() if value is not None}

    def may_be_left_out(self, kind: TopicKind) -> frozenset[str]:
        """Returns those of our settings for which the brokers' default will do. What the configuration asks for is not
        among them."""
        return frozenset(KIND[kind].settings).difference(KIND[kind].required, self.given(kind))

    @property
    def deletes_kept_s(self) -> float:
        """How long the topics keep deletes: a reader that was away for longer may never see some of them."""
        kept = (self.of(kind).get(_DELETES) for kind in _WITH_DELETES)
        return min(_BROKERS_DELETES_KEPT_S if value is None else int(value) / 1000 for value in kept)
