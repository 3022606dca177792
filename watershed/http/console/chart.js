// Line charts, drawn by hand: axes with round numbers, lines that differ in dashes as well as in colour, a crosshair.

import { h, s } from "./dom.js";
import { minute, clock } from "./format.js";

const HEIGHT = 172;
const MARGIN = { top: 10, right: 12, bottom: 24, left: 60 };
const DASHES = ["none", "6 3", "2 3", "9 3 2 3", "1 4", "12 4"];
const STYLES = 6;

export const style = (number) => number % STYLES;

function roundUp(value, steps) {
  const power = 10 ** Math.floor(Math.log10(value));
  return steps.map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

/** Round values from 0 to at least `top`. */
export function ticksTo(top, base = 10) {
  const unit = base === 10 ? 1 : base ** Math.max(0, Math.floor(Math.log(top) / Math.log(base)));
  const step = roundUp(Math.max(top / unit, 1e-9) / 4, [1, 2, 2.5, 5, 10]) * unit;
  const found = [];
  for (let value = 0; value < top + step * 0.999; value += step) found.push(value);
  return found;
}

function timeTicks(from, to, width) {
  const wanted = Math.max(2, Math.floor(width / 90));
  const step = [60, 120, 300, 600].find((one) => (to - from) / one <= wanted) ?? 900;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

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
  return `${chart.title}, the last ${Math.round(chart.seconds / 60)} minutes. ${said.join(". ")}.`;
}

function crosshair(svg, place, series, chart) {
  const { x, y, from, to, inner } = place;
  const group = s("g", { class: "crosshair", visibility: "hidden" });
  svg.append(group);
  svg.onpointerleave = () => group.setAttribute("visibility", "hidden");
  svg.onpointermove = (event) => {
    const at = from + ((event.clientX - svg.getBoundingClientRect().left - MARGIN.left) / inner) * (to - from);
    const hits = series.map((one) => [one, nearest(one.points, at)]).filter(([, point]) => point !== null);
    if (!hits.length) return;
    const when = hits[0][1][0];
    const words = [clock(when), ...hits.map(([one, point]) => `${one.name}  ${chart.format(point[1])}`)];
    const width = Math.max(...words.map((word) => word.length)) * 6.6 + 16;
    const left = x(when) + 10 + width > MARGIN.left + inner ? x(when) - 10 - width : x(when) + 10;
    group.replaceChildren(
      s("line", { x1: x(when), x2: x(when), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      ...hits.map(([one, point]) => s("circle", { class: `series-${style(one.number)}`, cx: x(point[0]), cy: y(point[1]), r: 3.5 })),
      s("rect", { class: "tip", x: left, y: MARGIN.top, width, height: words.length * 17 + 8, rx: 6 }),
      ...words.map((word, row) => s("text", { x: left + 8, y: MARGIN.top + 17 + row * 17, class: row ? "" : "strong" }, word)),
    );
    group.setAttribute("visibility", "visible");
  };
}

function nearest(points, at) {
  let found = null;
  for (const point of points) if (point[1] !== null && (!found || Math.abs(point[0] - at) < Math.abs(found[0] - at))) found = point;
  return found;
}

function draw(element, chart) {
  const width = Math.max(240, element.clientWidth);
  const to = chart.now;
  const from = to - chart.seconds;
  const series = chart.series.map((one, number) => ({ ...one, number, points: one.points.filter(([at]) => at >= from) }));
  const tops = series.flatMap((one) => one.points.map((point) => point[1] ?? 0));
  const highest = tops.reduce((a, b) => Math.max(a, b), chart.least);
  const ticks = ticksTo(highest, chart.base);
  const top = ticks.at(-1);
  const inner = width - MARGIN.left - MARGIN.right;
  const x = (at) => MARGIN.left + ((at - from) / (to - from)) * inner;
  const y = (value) => HEIGHT - MARGIN.bottom - (value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const svg = s("svg", { class: "plot", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": summary(chart, series) },
    ...ticks.map((value) => s("g", { class: value ? "grid" : "grid base" },
      s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      s("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, chart.format(value)))),
    ...timeTicks(from, to, inner).map((at) => s("text", { class: "time", x: x(at), y: HEIGHT - 6, "text-anchor": x(at) < MARGIN.left + 18 ? "start" : x(at) > width - 30 ? "end" : "middle" }, minute(at))),
    chart.limit && chart.limit <= top ? s("line", { class: "limit", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(chart.limit), y2: y(chart.limit) }) : null,
    ...series.map((one) => {
      const line = pathOf(one.points, x, y);
      const known = one.points.filter((point) => point[1] !== null);
      const area = series.length === 1 && known.length > 1 ? `${line}L${x(known.at(-1)[0])},${y(0)}L${x(known[0][0])},${y(0)}Z` : "";
      return s("g", { class: `series-${style(one.number)}` },
        area && s("path", { class: "area", d: area }),
        s("path", { class: "line", d: line, "stroke-dasharray": DASHES[style(one.number)] }));
    }));
  crosshair(svg, { x, y, from, to, inner }, series, chart);
  element.replaceChildren(svg);
}

/**
 * A figure. `chart`: title, series ({name, points}), format, seconds that it spans, now, least (the axis reaches at
 * least so far), base (of the units), limit and limitText.
 */
export function figure(chart) {
  const legend = chart.series.map((one, number) => {
    const value = one.points.findLast((point) => point[1] !== null)?.[1] ?? null;
    return h("li", { class: `series-${style(number)}` },
      s("svg", { width: 22, height: 8, "aria-hidden": "true" }, s("line", { class: "line", x1: 1, x2: 21, y1: 4, y2: 4, "stroke-dasharray": DASHES[style(number)] })),
      h("span", { class: "name" }, one.name), h("b", {}, chart.format(value)));
  });
  return h("figure", { class: "chart panel" },
    h("figcaption", {}, h("h3", {}, chart.title), h("p", { class: "hint" }, chart.hint)),
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
