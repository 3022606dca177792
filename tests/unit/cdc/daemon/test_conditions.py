"""What the parts of a process say of themselves."""

from cdc.daemon.conditions import Conditions
from tests.support.status_facts import condition


def test_the_last_condition_of_each_part_counts() -> None:
    conditions = Conditions()
    assert conditions.all() == ()
    conditions.report(condition(state="starting"))
    conditions.report(condition("sink", name="cache"))
    conditions.report(condition(state="streaming"))
    assert [(one.part, one.name, one.state) for one in conditions.all()] == [
        ("capture", "", "streaming"),
        ("sink", "cache", "retrying"),
    ]
