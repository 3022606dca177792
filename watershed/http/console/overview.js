// The first section: the picture, the charts, the WAL budget, and what the tables do.

import { bar, fact, h, redraw, segments } from "./dom.js";
import { OPERATIONS, button } from "./actions.js";
import { figure, shared } from "./chart.js";
import { flow } from "./flow.js";
import { bytes, bytesRate, bytesUnit, count, plural, rate, rateUnit, seconds, secondsUnit } from "./format.js";
import { term } from "./glossary.js";
import { lastHours, lastMinutes, state } from "./data.js";
import { presentProblems, problemItem } from "./problems.js";
import { link } from "./route.js";
import { STATES, progress } from "./tables.js";

const SPANS = [[300, "5 min"], [900, "15 min"], [1800, "30 min"]];
const LONG_SPANS = [[21600, "6 h"], [86400, "24 h"], [604800, "7 days"]]; // of Prometheus
const SHOWN_PROBLEMS = 3;
const SHOWN_SNAPSHOTS = 5;

let span = 900;

function attention(status, announce) {
  if (!status.problems.length) return null;
  const sorted = presentProblems();
  const more = sorted.length - SHOWN_PROBLEMS;
  return h("section", { class: "panel attention", "aria-labelledby": "attention-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "attention-title" }, "Needs attention"), more > 0 && h("a", { href: link("problems") }, `${count(more)} more`)),
    state.status.capture.state === "gap" && h("div", { class: "actions" }, button("Heal the gap…", OPERATIONS.heal())),
    h("ul", { class: "problems" }, sorted.slice(0, SHOWN_PROBLEMS).map((problem) => problemItem(problem, announce))));
}

function budget(status) {
  const slot = status.source.slot;
  if (!slot) return h("section", { class: "panel", "aria-labelledby": "wal-title" }, h("h2", { id: "wal-title" }, "WAL budget"), h("p", { class: "hint" }, "The source does not answer."));
  const { retained_bytes: held, limit_bytes: limit, remaining_bytes: left, rate_bytes_per_second: speed, seconds_left: time } = slot.budget;
  const share = limit && left !== null ? Math.min(1, Math.max(0, 1 - left / limit)) : null;
  const tone = share === null ? "good" : share > 0.8 ? "error" : share > 0.5 ? "warning" : "good";
  return h("section", { class: "panel", "aria-labelledby": "wal-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "wal-title" }, term("WAL budget")), h("p", { class: "hint" }, `slot ${slot.name}, ${slot.exists ? (slot.wal_status ?? "state unknown") : "does not exist"}`)),
    h("p", { class: "figure" }, time === null ? (limit ? "–" : "no limit is set") : seconds(time), h("small", {}, time === null ? "" : "left if capture confirmed nothing from now on")),
    share !== null && h("div", { class: `meter ${tone}`, role: "meter", "aria-label": "WAL budget in use", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(share * 100) },
      bar(share)),
    h("dl", { class: "facts" }, fact("Held for the slot", bytes(held)), fact("Limit", limit ? bytes(limit) : "none"), fact("Left", bytes(left)), fact("Written at", bytesRate(speed))));
}

function tables(status) {
  const states = STATES.map((name) => [name, status.tables.filter((one) => one.state === name).length]);
  const running = status.tables.filter((one) => one.state === "snapshotting" && one.snapshot);
  return h("section", { class: "panel", "aria-labelledby": "tables-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "tables-title" }, "Tables"), h("a", { href: link("tables") }, `All ${plural(status.tables.length, "table")}`)),
    h("dl", { class: "states" }, states.map(([name, number]) => h("div", { class: number ? `state-${name.replace(" ", "-")}` : "none" }, h("dt", {}, name), h("dd", {}, count(number))))),
    running.length ? h("ul", { class: "runs" }, running.slice(0, SHOWN_SNAPSHOTS).map((one) => h("li", {}, h("a", { class: "mono", href: link("tables", one.table) }, one.table), progress(one)))) : h("p", { class: "hint" }, "No snapshot is running."),
    running.length > SHOWN_SNAPSHOTS && h("p", { class: "hint" }, `and ${count(running.length - SHOWN_SNAPSHOTS)} more snapshots`));
}

/** The figures of `from`, which has the series of the time. */
function figures(from, time, limit) {
  const stores = from.sinks();
  return h("div", { class: "charts" },
    figure({ ...time, title: "Behind the source", least: 1, format: seconds, unit: secondsUnit,
      series: [{ name: "capture", points: from.lagOf(null) }, ...stores.map((name) => ({ name, points: from.lagOf(name) }))] }),
    figure({ ...time, title: "Throughput", hint: "records and rows", least: 10, format: rate, unit: rateUnit,
      series: [{ name: "published", points: from.publishedRates() }, ...stores.map((name) => ({ name, points: from.writtenRates(name) }))] }),
    figure({ ...time, title: "WAL held for the slot", least: 1048576, format: bytes, unit: bytesUnit, limit, limitText: `limit ${bytes(limit)}`,
      series: [{ name: "held", points: from.retained() }] }));
}

/** The figures of hours, or why there are none. */
function hoursOf(status, limit) {
  const { value, error } = lastHours(span / 3600);
  const nothing = `Prometheus has nothing of prefix ${status.prefix} in this time. Does it scrape /metrics of these processes, and do http.prometheus.labels fit?`;
  return [error && h("p", { class: "row-note", role: "alert" }, error),
    value?.isEmpty && h("p", { class: "row-note", role: "status" }, nothing),
    value && !value.isEmpty && figures(value, { seconds: span, now: value.now }, limit),
    !value && !error && h("p", { class: "loading" }, "Loading…")];
}

function charts(status) {
  const isLong = LONG_SPANS.some(([length]) => length === span);
  const limit = status.source.slot?.budget.limit_bytes;
  return h("section", { class: "charts-section", "aria-labelledby": "charts-title" },
    h("div", { class: "section-head" }, h("h2", { id: "charts-title" }, "Lag and rate"),
      h("div", { class: "chart-tools" },
        shared.zoom && h("button", { type: "button", class: "text-button", onclick: () => { shared.zoom = null; redraw(); } }, "Whole time"),
        segments("Scale of the charts", [[false, "linear"], [true, "logarithmic"]], shared.isLogarithmic, (isLogarithmic) => { shared.isLogarithmic = isLogarithmic; }),
        segments("Time that the charts show", state.offered?.hours ? [...SPANS, ...LONG_SPANS] : SPANS, shared.zoom ? null : span, (length) => { span = length; shared.zoom = null; }))),
    h("p", { class: "hint charts-hint" }, "Drag across a chart to choose a part of the time.", isLong && " From Prometheus: of lags and WAL the greatest value of each step, of rates the average."),
    isLong ? hoursOf(status, limit) : figures(lastMinutes, { seconds: span, now: status.unix_seconds }, limit));
}

const step = (title, text, code) => h("li", {}, h("h3", {}, title), h("p", {}, text), h("code", {}, code));

function nothingYet() {
  return h("section", { class: "panel empty", "aria-labelledby": "empty-title" },
    h("h2", { id: "empty-title" }, "Nothing is captured yet"),
    h("p", {}, "Capture has never run with this prefix. Three commands bring the first row into a store:"),
    h("ol", { class: "steps" },
      step("Check", "Are source, brokers and stores ready? Each finding has its remedy.", "cdc check"),
      step("Capture", "Publishes the rows that exist, then every change.", "cdc run"),
      step("Fill a store", "Applies the topics to a store of the configuration.", "cdc sink run NAME")));
}

export function overview(announce) {
  const { status } = state;
  if (status.capture.state === "not started" && !status.sinks.length) return [attention(status, announce), nothingYet(), flow(status)];
  return [attention(status, announce), flow(status), charts(status), h("div", { class: "pair" }, budget(status), tables(status))];
}
