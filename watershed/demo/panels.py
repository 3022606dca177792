"""The parts of the screen beside the stores' figures: the followed order, the lag chart, the views."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from watershed.demo.beside import BesideNow
from watershed.demo.figures import duration
from watershed.demo.followed import ORDER, PLACES, FollowedNow
from watershed.demo.view_figures import Hour, ViewsNow

LINES_SHOWN: Final = 3  # of an order
NUMBER_AT: Final = "change "


def render_beside(now: BesideNow) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if now.followed:
        parts += [Text(), _followed(now.followed)]
    if now.views:
        parts += [Text(), _views(now.views)]
    if now.lags:
        parts += [Text(), render_lags(now)]
    return parts


def render_lags(now: BesideNow) -> RenderableType:
    """Returns the lag chart, with the kills marked."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row("", Text(now.lag_title, style="dim"), "")
    for line in now.lags:
        grid.add_row(line.name, Text(line.bars, style="cyan", no_wrap=True), Text(f"≤ {duration(line.largest_s)}"))
    parts: list[RenderableType] = [grid]
    if now.marks:
        indent = " " * (max(len(line.name) for line in now.lags) + 2)
        parts.append(Text(indent + now.marks, style="bold yellow", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _followed(now: FollowedNow) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("", Text(f"order {ORDER} in every place", style="dim"))
    for place in PLACES:
        seen = now.places[place]
        style = "green" if now.is_current(place) else "yellow"
        grid.add_row(place, Text("not there yet" if seen is None else str(seen), style=style, no_wrap=True))
    return grid


def _views(now: ViewsNow) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    said = [("document", line) for line in described(now.document)]
    said += [("revenue", hour_text(hour)) for hour in now.hours]
    said += [("alerts", f"{now.alerts:,} orders meet a saved search"), *(("", line) for line in now.changed_alerts)]
    for title, line in said:
        grid.add_row(title, Text(line, no_wrap=True, overflow="ellipsis"))
    return grid


def described(document: Mapping[str, Any] | None) -> list[str]:
    """Returns an order's nested document: the order with its customer, and its lines."""
    if document is None:
        return ["not there yet"]
    customer, lines = document["customer"] or {}, document["lines"]
    items = [f"{line['quantity']} × {line['product']} at {line['unit_price']}" for line in lines[:LINES_SHOWN]]
    more = [f"{len(lines) - LINES_SHOWN} more"] if len(lines) > LINES_SHOWN else []
    head = f"{document['status']}, {document['note']}, of {customer.get('name', 'nobody')}"
    return [f"{head}: {'; '.join(items + more) or 'no lines'}"]


def hour_text(hour: Hour) -> str:
    now = "no revenue any more" if hour.revenue is None else f"{hour.revenue:,}"
    was = "" if hour.before is None else f", corrected from {hour.before:,}"
    return f"{hour.hour:%Y-%m-%d %H:%M}  {now}{was}"


def plain_beside(now: BesideNow) -> list[str]:
    """Returns parts of the plain line."""
    parts = []
    if now.followed:
        seen = ((place, now.followed.places[place]) for place in PLACES)
        notes = ", ".join(f"{place} {one.note.removeprefix(NUMBER_AT) if one else '–'}" for place, one in seen)
        parts.append(f"changes of one order: {notes}")
    if now.views:
        parts.append("document: " + described(now.views.document)[0])
        parts += ["revenue: " + hour_text(hour) for hour in now.views.hours[:2]]
        parts.append(f"{now.views.alerts:,} alerts" + "".join(f"; {line}" for line in now.views.changed_alerts[:1]))
    return parts
