"""State GAP, on topics that a test plays: what is asked, what is answered, brokers that are away."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from structlog.testing import capture_logs

from cdc.daemon.gap_state import CHECK_S, GRACE_S, POLL_S, Gap, Heal
from cdc.model.control import PositionRecord, SignalAnswer, SignalRecord, SignalsRecord, SourceIdentity
from cdc.model.errors import GapError, OldPrimaryError, OtherDatabaseError, UnreachableError
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import Signal

TOPICS = Topics("shop")
NOW_US = 1_800_000_000_000_000
DAY_US = 86_400_000_000
SOURCE = SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed")
POSITION = PositionRecord(
    phase="streaming", epoch=3, seq=9, resume_lsn=100, source=SOURCE, publication="p", protocol="proto_version=1"
)
GONE = GapError("slot watershed can't be used any more", "heal it")
OLD = OldPrimaryError("the server is on timeline 1, the position on 2", "name the other one")
OTHER = OtherDatabaseError("the source is a different database", "cdc source move", ("8", "shop"))
LOST = UnreachableError("Kafka: no broker answers")


@dataclass
class World:
    """Topics, clock, and what happens at each moment."""

    now: float = 0.0
    position: PositionRecord | None = POSITION
    offset: int = 5
    answers: dict[str, SignalAnswer] = field(default_factory=dict)
    coming: list[Signal] = field(default_factory=list)
    is_away: bool = False  # the brokers
    happens: dict[float, Callable[[], None]] = field(default_factory=dict)
    ends_at: float = 60.0
    opened_at: int | None = None

    # cdc.daemon.gap_state.GapTopics

    def known(self) -> tuple[PositionRecord | None, int]:
        self._reached()
        return self.position, self.offset

    def answered(self) -> Collection[str]:
        self._reached()
        return self.answers.keys()

    def signals(self, offset: int) -> "World":
        self.opened_at = offset
        return self

    def answer(self, record: TopicRecord) -> None:
        self._reached()
        self.answers[record.key.decode().removeprefix("signal/")] = SignalAnswer.decode(record.value or b"", "control")

    def _reached(self) -> None:
        if self.is_away:
            raise LOST

    # cdc.ports.stream.Signals

    def poll(self) -> list[Signal]:
        came, self.coming = self.coming, []
        return came

    def close(self) -> None:
        self.opened_at = None

    # cdc.ports.stream.Clock

    def monotonic(self) -> float:
        return self.now

    def now_us(self) -> int:
        return NOW_US

    # ---- the test

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        for at in sorted(self.happens):
            if at <= self.now:
                self.happens.pop(at)()
        return self.now >= self.ends_at

    def sent(self, action: str, identity: str = "s", *, offset: int = 5, age_us: int = 0, **fields: object) -> None:
        record = SignalRecord.model_validate({"action": action, "requested_us": NOW_US - age_us} | fields)
        self.coming.append(Signal(identity, offset, record, ""))

    def run(
        self, *, heals_itself: bool = False, has_events: bool = False, error: GapError = GONE, is_repeated: bool = False
    ) -> Heal | None:
        gap = Gap(
            error,
            TOPICS,
            self,  # type: ignore[arg-type]
            self,
            self.wait,
            has_events=has_events,
            is_repeated=is_repeated,
        )
        with capture_logs() as self.logs:
            return gap.await_heal(heals_itself=heals_itself)


def answers_of(heal: Heal | None) -> dict[str, SignalAnswer]:
    assert heal is not None
    return {
        record.key.decode(): SignalAnswer.decode(record.value or b"", "control")
        for record in heal.records
        if record.topic == TOPICS.control
    }


def test_it_waits_until_asked_to_heal_and_tells_so_with_the_new_epoch() -> None:
    world = World()
    world.happens[10.0] = lambda: world.sent("heal", offset=7, epoch=12)
    heal = world.run()
    assert world.now < 10.0 + 2 * POLL_S
    assert heal is not None
    assert (heal.found_in, heal.epoch) == (3, 12)
    assert answers_of(heal)["signal/s"].is_accepted
    (offset,) = [record for record in heal.records if record.topic == TOPICS.state]
    assert SignalsRecord.decode(offset.value or b"", "state").offset == 8
    assert world.opened_at is None


def test_that_all_rows_are_wanted_is_passed_on() -> None:
    world = World()
    world.happens[1.0] = lambda: world.sent("heal", all_rows=True)
    heal = world.run()
    assert heal is not None
    assert heal.all_rows


def test_where_events_are_published_it_says_that_healing_does_not_bring_them() -> None:
    world = World()
    world.happens[1.0] = lambda: world.sent("heal")
    message = answers_of(world.run(has_events=True))["signal/s"].message
    lost = "events that committed from 0/64 on are not published by healing"
    assert message == f"healing under a new epoch; {lost}: see cdc check"
    assert lost in [line["event"] for line in world.logs]
    world = World(position=None)
    world.run(heals_itself=True, has_events=True)
    assert "events that committed are not published by healing" in [line["event"] for line in world.logs]


def test_where_it_is_configured_it_heals_itself() -> None:
    world = World()
    assert world.run(heals_itself=True) == Heal(3)


def test_without_a_position_the_epoch_is_not_known() -> None:
    assert World(position=None).run(heals_itself=True) == Heal(0)


def test_asked_to_stop_it_does() -> None:
    assert World(ends_at=1.0).run() is None


# ---- what else is asked


def test_what_can_not_be_done_in_state_gap_is_refused_with_the_next_step() -> None:
    world = World()
    world.happens[1.0] = lambda: world.sent("pause")
    assert world.run() is None
    answer = world.answers["s"]
    assert (answer.is_accepted, answer.next) == (False, "cdc snapshot heal")
    assert answer.message == "capture is in state GAP: slot watershed can't be used any more"


def test_what_is_no_signal_is_refused_too() -> None:
    world = World()
    world.coming.append(Signal("s", 5, None, "no JSON"))
    assert world.run() is None
    assert (world.answers["s"].is_accepted, world.answers["s"].message) == (False, "no JSON")


def test_what_somebody_else_answers_is_left_to_him() -> None:
    """For another instance there may be no gap, and it streams."""
    world = World()
    world.happens[1.0] = lambda: world.sent("pause")
    accepted = SignalAnswer(is_accepted=True, message="paused")
    world.happens[1.0 + GRACE_S / 2] = lambda: world.answers.update(s=accepted)
    assert world.run() is None
    assert world.answers == {"s": accepted}


def test_when_somebody_else_has_gone_on_it_is_looked_at_anew() -> None:
    world = World()
    world.happens[1.0] = lambda: world.sent("pause")

    def goes_on() -> None:
        world.position = POSITION.model_copy(update={"epoch": 4})

    world.happens[2.0] = goes_on
    assert world.run() is None
    assert world.answers == {}
    assert world.now < world.ends_at


def test_healing_answers_what_came_before_it() -> None:
    world = World()

    def both() -> None:
        world.sent("pause", "before")
        world.sent("heal", "heal", offset=6)
        world.sent("pause", "after", offset=7)

    world.happens[1.0] = both
    found = answers_of(world.run())
    assert {key: answer.is_accepted for key, answer in found.items()} == {"signal/before": False, "signal/heal": True}


def test_a_signal_of_another_gap_heals_nothing() -> None:
    """Where the state was lost, signals come again from the first on."""
    world = World(answers={"answered": SignalAnswer(is_accepted=True, message="healing")})
    world.sent("heal", "answered")
    world.sent("heal", "of long ago", age_us=2 * DAY_US)
    assert world.run() is None
    assert not world.answers["of long ago"].is_accepted


# ---- brokers that are away


def test_brokers_that_are_away_when_the_gap_is_found_are_waited_for() -> None:
    world = World(is_away=True)

    def back() -> None:
        world.is_away = False

    world.happens[20.0] = back
    assert world.run(heals_itself=True) == Heal(3)
    assert world.now >= 20.0


def test_asked_to_stop_while_the_brokers_are_away_it_does() -> None:
    assert World(is_away=True, ends_at=10.0).run() is None


def test_an_outage_in_state_gap_loses_no_signal() -> None:
    for action in ("pause", "heal"):
        world = World()

        def away(world: World = world, action: str = action) -> None:
            world.is_away = True
            world.sent(action)

        def back(world: World = world) -> None:
            world.is_away = False

        world.happens |= {5.0: away, 30.0: back}
        heal = world.run()
        if action == "heal":
            assert answers_of(heal)["signal/s"].is_accepted
        else:
            assert not world.answers["s"].is_accepted
        assert any("brokers are away" in line["event"] for line in world.logs)


def test_where_an_old_primary_answers_the_right_one_is_looked_for_and_nothing_is_healed_unasked() -> None:
    world = World()
    assert world.run(heals_itself=True, error=OLD) is None
    assert CHECK_S <= world.now <= CHECK_S + 2 * POLL_S
    assert [entry["log_level"] for entry in world.logs] == ["error"]
    assert world.run(heals_itself=True, error=OLD, is_repeated=True) is None
    assert world.logs == []


def test_an_operator_may_decide_for_the_old_primary() -> None:
    world = World()
    world.happens[1.0] = lambda: world.sent("heal")
    assert world.run(error=OLD) is not None


# ---- another database


def test_another_database_is_never_healed_unasked_and_the_right_one_is_looked_for() -> None:
    """Seen: with `source.on_gap: heal` a wrong DSN deleted every row that the other database did not have."""
    world = World()
    assert world.run(heals_itself=True, error=OTHER) is None
    assert CHECK_S <= world.now <= CHECK_S + 2 * POLL_S


def test_healing_is_no_decision_for_another_database() -> None:
    world = World()
    world.sent("heal")
    assert world.run(error=OTHER) is None
    assert (world.answers["s"].is_accepted, world.answers["s"].next) == (False, "cdc source move")


def test_a_move_to_this_database_is_one_and_says_whether_the_slot_there_is_replaced() -> None:
    for replaces in (False, True):
        world = World()
        world.sent("move", server=("8", "shop"), replaces_slot=replaces, all_rows=replaces)
        heal = world.run(error=OTHER)
        assert answers_of(heal)["signal/s"].is_accepted
        assert heal is not None
        assert (heal.moves_to, heal.replaces_slot, heal.all_rows, heal.epoch) == (
            ("8", "shop"),
            replaces,
            replaces,
            None,
        )


def test_a_move_waits_until_an_instance_that_streams_from_the_former_server_would_have_refused_it() -> None:
    world = World()
    world.sent("move", server=("8", "shop"))
    assert world.run(error=OTHER) is not None
    assert world.now >= GRACE_S
    world = World()
    world.sent("move", server=("8", "shop"))
    world.happens[1.0] = lambda: world.answers.update(s=SignalAnswer(is_accepted=False, message="it streams"))
    assert world.run(error=OTHER) is None


def test_a_move_to_another_server_or_in_another_gap_is_refused() -> None:
    for error, server in ((OTHER, ("9", "shop")), (OTHER, ("8", "test")), (GONE, ("8", "shop"))):
        world = World()
        world.sent("move", server=server)
        assert world.run(error=error) is None
        assert not world.answers["s"].is_accepted
