// Line charts, drawn by hand: round numbers of one unit on each axis, lines that differ in dashes as well as in colour, a cursor that all
// charts share, a linear or logarithmic scale, and a part of the time that is chosen by dragging.

import { h, redraw, s } from "./dom.js";
import { axisNumber, clock, day, dayMinute, minute } from "./format.js";

const HEIGHT = 188;
const MARGIN = { top: 26, right: 12, bottom: 24, left: 52 };
const DASHES = ["none", "6 3", "2 3", "9 3 2 3", "1 4", "12 4"];
const STYLES = 6;
const LEAST_DRAG = 8; // pixels; less is a click

// What all charts of the page share: the scale, the time that was chosen by dragging, and the plots that are drawn.
export const shared = { isLogarithmic: false, zoom: null };
const plots = new Map(); // element → (time or null) → shows the cursor there

export const style = (number) => number % STYLES;

function roundUp(value, steps) {
  const power = 10 ** Math.floor(Math.log10(value));
  return steps.map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

/** Round values from 0 to at least `top`. */
export function ticksTo(top) {
  const step = roundUp(Math.max(top, 1e-9) / 4, [1, 2, 2.5, 5, 10]);
  const found = [];
  for (let number = 0; (number - 1) * step < top - step * 0.001; number += 1) found.push(Number((number * step).toPrecision(12)));
  return found;
}

/** Powers of ten that enclose all values between `least` and `top`, eight at most. */
export function powersTo(least, top) {
  const high = Math.ceil(Math.log10(Math.max(top, 1e-9)) - 1e-9);
  const low = Math.max(high - 7, Math.min(high - 1, Math.floor(Math.log10(Math.max(least, 1e-9)) + 1e-9)));
  return Array.from({ length: high - low + 1 }, (_, number) => Number((10 ** (low + number)).toPrecision(12)));
}

const STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];
const DAY = 86400;

/** Round times of this time zone, with their texts. */
function timeTicks(from, to, width) {
  const wanted = Math.max(2, Math.floor(width / 90));
  const step = STEPS.find((one) => (to - from) / one <= wanted) ?? STEPS.at(-1);
  const shift = new Date(from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push([at, step < DAY ? minute(at) : day(at)]);
  return found;
}

const LONG = 43200; // seconds; a longer time needs the day
/** A time in a chart that spans so many seconds. */
const timeIn = (at, span) => (span > LONG ? dayMinute(at) : clock(at));
const lasting = (span) => (span > 7200 ? `${Math.round(span / 3600)} hours` : `${Math.round(span / 60)} minutes`);

function pathOf(points, x, y) {
  let path = "";
  let isDown = false;
  for (const [at, value] of points) {
    if (value === null) {
      isDown = false;
      continue;
    }
    path += `${isDown ? "L" : "M"}${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    isDown = true;
  }
  return path;
}

function summary(chart, series) {
  const said = series.map((one) => {
    const values = one.points.map((point) => point[1]).filter((value) => value !== null);
    if (!values.length) return `${one.name}: no values yet`;
    return `${one.name}: now ${chart.format(values.at(-1))}, at most ${chart.format(values.reduce((a, b) => Math.max(a, b)))}`;
  });
  const time = shared.zoom ? `from ${timeIn(shared.zoom[0], chart.seconds)} to ${timeIn(shared.zoom[1], chart.seconds)}` : `the last ${lasting(chart.seconds)}`;
  return `${chart.title}, ${time}. ${said.join(". ")}.`;
}

/** The time at a pointer's place. */
const timeAt = (event, svg, { from, to, inner }) => from + Math.min(1, Math.max(0, (event.clientX - svg.getBoundingClientRect().left - MARGIN.left) / inner)) * (to - from);

function pointAll(at) {
  pointed = at;
  for (const [element, point] of plots) {
    if (element.isConnected) point(at);
    else plots.delete(element);
  }
}

/** Lets the pointer show the values at one time in all charts, and choose a part of the time by dragging. */
function interact(svg, place, series, chart) {
  const { x, y } = place;
  const group = s("g", { class: "crosshair", visibility: "hidden" });
  const chosen = s("rect", { class: "chosen", y: MARGIN.top, height: HEIGHT - MARGIN.top - MARGIN.bottom, visibility: "hidden" });
  svg.append(chosen, group);
  let begun = null;
  svg.onpointerleave = () => pointAll(null);
  svg.onpointerdown = (event) => {
    if (event.button || event.pointerType === "touch") return; // a finger scrolls the page
    begun = timeAt(event, svg, place);
    svg.setPointerCapture(event.pointerId);
    isDragging = true;
  };
  svg.onpointermove = (event) => {
    const at = timeAt(event, svg, place);
    pointAll(at);
    if (begun === null) return;
    const [left, right] = [x(Math.min(begun, at)), x(Math.max(begun, at))];
    for (const [name, value] of [["x", left], ["width", right - left], ["visibility", "visible"]]) chosen.setAttribute(name, value);
  };
  svg.onpointerup = (event) => {
    isDragging = false;
    const at = timeAt(event, svg, place);
    if (begun !== null && Math.abs(x(at) - x(begun)) >= LEAST_DRAG) shared.zoom = [Math.min(begun, at), Math.max(begun, at)];
    begun = null;
    redraw();
  };
  svg.onpointercancel = () => {
    isDragging = false;
    begun = null;
    redraw();
  };
  return (at) => {
    const hits = at === null ? [] : series.map((one) => [one, nearest(one.points, at)]).filter(([, point]) => point !== null);
    group.setAttribute("visibility", hits.length ? "visible" : "hidden");
    if (hits.length) group.replaceChildren(...tip(hits, place, chart, y));
  };
}

function tip(hits, { x, inner }, chart, y) {
  const when = hits[0][1][0];
  const words = [timeIn(when, chart.seconds), ...hits.map(([one, point]) => `${one.name}  ${chart.format(point[1])}`)];
  const width = Math.max(...words.map((word) => word.length)) * 6.6 + 16;
  const left = x(when) + 10 + width > MARGIN.left + inner ? x(when) - 10 - width : x(when) + 10;
  return [
    s("line", { x1: x(when), x2: x(when), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
    ...hits.map(([one, point]) => s("circle", { class: `series-${style(one.number)}`, cx: x(point[0]), cy: y(point[1]), r: 3.5 })),
    s("rect", { class: "tip-box", x: left, y: MARGIN.top, width, height: words.length * 17 + 8, rx: 6 }),
    ...words.map((word, row) => s("text", { x: left + 8, y: MARGIN.top + 17 + row * 17, class: row ? "" : "strong" }, word)),
  ];
}

let isDragging = false; // a plot that is drawn again would lose the drag
let pointed = null;

function nearest(points, at) {
  let found = null;
  for (const point of points) if (point[1] !== null && (!found || Math.abs(point[0] - at) < Math.abs(found[0] - at))) found = point;
  return found;
}

/** The values of the axis with their texts, all in one unit. */
function axis(values, chart) {
  const highest = values.reduce((a, b) => Math.max(a, b), chart.least);
  const unit = chart.unit(highest);
  const least = values.reduce((a, b) => (b > 0 ? Math.min(a, b) : a), highest);
  const ticks = shared.isLogarithmic ? powersTo(least / unit.size, highest / unit.size) : ticksTo(highest / unit.size);
  return { ticks: ticks.map((tick) => ({ value: tick * unit.size, text: axisNumber(tick) })), unit: unit.name };
}

function draw(element, chart) {
  if (isDragging && element.firstChild) return;
  const width = Math.max(240, element.clientWidth);
  const [from, to] = shared.zoom ?? [chart.now - chart.seconds, chart.now];
  const series = chart.series.map((one, number) => ({ ...one, number, points: one.points.filter(([at]) => at >= from && at <= to) }));
  const { ticks, unit } = axis(series.flatMap((one) => one.points.map((point) => point[1] ?? 0)), chart);
  const [bottom, top] = [ticks[0].value, ticks.at(-1).value];
  const inner = width - MARGIN.left - MARGIN.right;
  const x = (at) => MARGIN.left + ((at - from) / (to - from)) * inner;
  const share = (value) => (shared.isLogarithmic ? Math.log(Math.max(value, bottom) / bottom) / Math.log(top / bottom) : value / top);
  const y = (value) => HEIGHT - MARGIN.bottom - share(value) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const svg = s("svg", { class: "plot", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": summary(chart, series) },
    ...ticks.map(({ value, text }, number) => s("g", { class: number ? "grid" : "grid base" },
      s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      s("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, text))),
    s("text", { class: "unit", x: MARGIN.left - 8, y: 12, "text-anchor": "end" }, unit),
    ...timeTicks(from, to, inner).map(([at, text]) => s("text", { class: "time", x: x(at), y: HEIGHT - 6, "text-anchor": x(at) < MARGIN.left + 18 ? "start" : x(at) > width - 30 ? "end" : "middle" }, text)),
    chart.limit && chart.limit >= bottom && chart.limit <= top ? s("line", { class: "limit", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(chart.limit), y2: y(chart.limit) }) : null,
    ...series.map((one) => {
      const line = pathOf(one.points, x, y);
      const known = one.points.filter((point) => point[1] !== null);
      const area = series.length === 1 && known.length > 1 ? `${line}L${x(known.at(-1)[0])},${y(bottom)}L${x(known[0][0])},${y(bottom)}Z` : "";
      return s("g", { class: `series-${style(one.number)}` },
        area && s("path", { class: "area", d: area }),
        s("path", { class: "line", d: line, "stroke-dasharray": DASHES[style(one.number)] }));
    }));
  const point = interact(svg, { x, y, from, to, inner }, series, chart);
  plots.set(element, point);
  element.replaceChildren(svg);
  if (pointed !== null) point(pointed);
}

/**
 * A figure. `chart`: title, series ({name, points}), format, unit (of a highest value: {size, name}), seconds that it spans, now, least
 * (the axis reaches at least so far), limit and limitText.
 */
export function figure(chart) {
  const legend = chart.series.map((one, number) => {
    const value = one.points.findLast((point) => point[1] !== null)?.[1] ?? null;
    return h("li", { class: `series-${style(number)}` },
      s("svg", { width: 22, height: 8, "aria-hidden": "true" }, s("line", { class: "line", x1: 1, x2: 21, y1: 4, y2: 4, "stroke-dasharray": DASHES[style(number)] })),
      h("span", { class: "name" }, one.name), h("b", {}, chart.format(value)));
  });
  return h("figure", { class: "chart panel" },
    h("figcaption", {}, h("h3", {}, chart.title), chart.hint && h("p", { class: "hint" }, chart.hint)),
    h("div", { class: "canvas", "data-island": true, island: (element) => draw(element, chart) }),
    h("ul", { class: "legend" }, legend, chart.limit ? h("li", { class: "limit-key" }, chart.limitText) : null));
}

/** A small line without axes, beside a number that says what it shows. */
export function spark(points, now, seconds, number = 0) {
  const width = 132;
  const height = 34;
  const from = now - seconds;
  const shown = points.filter(([at]) => at >= from);
  const top = shown.reduce((most, point) => Math.max(most, point[1] ?? 0), 1e-9);
  const line = pathOf(shown, (at) => ((at - from) / seconds) * (width - 4) + 2, (value) => height - 3 - (value / top) * (height - 8));
  return s("svg", { class: `spark series-${style(number)}`, width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    s("line", { class: "floor", x1: 0, x2: width, y1: height - 2.5, y2: height - 2.5 }), s("path", { class: "line", d: line }));
}
