"""The status for people."""

from dataclasses import replace

from rich.console import Console

from cdc.model.errors import UnreachableError
from tests.support.status_facts import Clock, applied, config, full_status, reading, source, topics
from watershed.status.model import Status
from watershed.status.screen import screen, seconds, size, span


def shown(status: Status) -> str:
    console = Console(width=160, record=True, file=None, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(screen(status))
    return captured.get()


def test_everything_is_said_with_its_unit() -> None:
    message = shown(full_status())
    for text in (
        "shop, PostgreSQL 18.1, timeline 1, at 0/7D0",
        "watershed, active, WAL reserved, confirmed 0/3E8",
        "1.1 KiB retained, 10.0 MiB left of 10.0 MiB, 1,000 B/s written",
        "streaming, epoch 1, 0 records, at 0/3E8, 1,000 B and 0.00 s behind",
        "running, 50 rows, 25 % of about 200, 10/s, 15 s left",
        "1970-01-12 13:46:40Z  0/1F4         1     9       0  4.00 s  scheduled",
        "warning sink search: search differs from the source: 5 rows at the last comparison (5 of public.orders)",
        "documents  serving       30  2.25 s     4         1  1.50 s",
        "warning view documents: 1 rows are rejected by the target",
        "warning table public.orders: 3 changes of public.orders could not be published",
    ):
        assert text in message, message
    assert "  next: read the dead letters" in message


def test_a_pipeline_that_is_well_says_so() -> None:
    message = shown(Clock().status(reading()))
    assert "no problems" in message
    assert "no sink has published a position yet" in message
    assert "no limit: the disk can fill" in message


def test_rows_that_are_owed_are_listed() -> None:
    topics_found = topics(sinks=(applied(owed={"public.orders": "a heal", "public.notes": "it is stopped"}),))
    assert topics_found.progress is not None
    topics_found = replace(
        topics_found, progress=topics_found.progress.model_copy(update={"owed": {"public.orders": "a heal"}})
    )
    message = shown(Clock().status(reading(topics_found=topics_found)))
    assert "\nrows are owed: public.orders: a heal\nrows are owed: search: public.notes: it is stopped\n" in message


def test_a_store_that_has_applied_nothing_says_so() -> None:
    assert "nothing yet" in shown(Clock().status(reading(topics_found=topics(sinks=(applied(0, epoch=0),)))))


def test_servers_that_are_away_and_slots_that_are_gone() -> None:
    away = UnreachableError("no broker at [::1]", "start it")
    message = shown(Clock().status(reading(source(slot=None), topics_error=away)))
    assert "do not answer" in message
    assert "watershed does not exist" in message
    assert "error brokers: no broker at [::1]" in message, "brackets are no markup"
    assert "does not answer" in shown(Clock().status(reading(source_error=away, topics_found=topics())))


def test_sizes_and_times_are_short() -> None:
    assert [size(count) for count in (None, 0, 1023, 1536, 5 * 1024**3)] == [
        "?",
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
    assert [seconds(value) for value in (None, 0.25, 42.0, 185.0)] == ["?", "0.25 s", "42 s", "3 m 05 s"]
    assert [span(0.4), span(59.6), span(185), span(7800)] == ["0 s", "1 m 00 s", "3 m 05 s", "2 h 10 m"]


def test_a_view_of_which_nothing_is_known_has_question_marks() -> None:
    away = UnreachableError("the base of the view does not answer", "start it")
    message = shown(Clock(config(views=("documents",))).status(reading(views={"documents": away})))
    assert "documents  unreachable  ?        ?       ?     ?         ?" in message
    assert "warning view documents: the base of the view does not answer" in message
