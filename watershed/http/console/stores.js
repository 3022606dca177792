// Each store: how far and how fresh it is, what it wrote, and what comparisons with the source found.

import { command, fact, h, pill, sign } from "./dom.js";
import { OPERATIONS, button } from "./actions.js";
import { spark } from "./chart.js";
import { Filter } from "./filters.js";
import { commandsOf, count, moment, plural, rate, seconds } from "./format.js";
import { canOperate, lagOf, newest, state, writtenRates } from "./data.js";
import { icon, storeName, storeState, storeTone } from "./flow.js";
import { term } from "./glossary.js";
import { link } from "./route.js";

const SPAN_S = 900;
const SHOWN_RUNS = 4;
const FILTERED_FROM = 7; // fewer need no filter

const filter = new Filter("store", ["in step", "catching up", "needs attention", "has an error"], 24);

function number(name, value, series, now, row) {
  return h("div", { class: "measure" }, h("dt", {}, name), h("dd", {}, h("b", {}, value), spark(series, now, SPAN_S, row)));
}

function run(one) {
  const drift = Object.values(one.drift).reduce((sum, rows) => sum + rows, 0);
  const skipped = Object.keys(one.not_compared).length;
  const found = [drift ? `${plural(drift, "row")} ${one.is_repair ? "left different" : "differed"}` : `${plural(one.rows, "row")} equal`];
  if (one.repaired) found.push(`${count(one.repaired)} repaired`);
  if (one.undecided) found.push(`${count(one.undecided)} undecided`);
  if (skipped) found.push(`${plural(skipped, "table")} not compared`);
  const kind = [one.is_scheduled ? "scheduled" : "by hand", one.is_sample ? "sample" : "", one.is_repair ? "repair" : ""].filter(Boolean).join(", ");
  return h("li", {}, sign(drift ? "error" : one.undecided || skipped ? "warning" : "good"), h("span", {}, found.join(", ")),
    h("span", { class: "when" }, `${moment(one.begun_unix_seconds)}, ${kind}, ${seconds(one.seconds)}`));
}

/** What comparisons of the store with the source found, the newest first. */
function comparisons(sink) {
  if (!("comparison" in sink)) return null;
  const { comparison } = sink;
  const title = h("h4", {}, "Compared with the source");
  if (!comparison?.runs.length) return h("div", { class: "comparisons" }, title, h("p", { class: "hint" }, "Never yet. ", h("code", {}, `cdc verify --sink ${sink.sink}`), " compares every row."));
  const drift = comparison.drift_rows ? pill("error", `${plural(comparison.drift_rows, "row")} differ`) : pill("good", "equal");
  return h("div", { class: "comparisons" }, h("div", { class: "comparisons-head" }, title, drift),
    h("ol", {}, comparison.runs.slice(0, SHOWN_RUNS).map(run)));
}

function card(status, sink, announce) {
  const tone = storeTone(status, sink);
  const id = `store-${sink.sink}`;
  const written = writtenRates(sink.sink);
  return h("article", { class: `panel store ${tone}`, "aria-labelledby": id, "data-key": sink.sink },
    h("div", { class: "store-head" }, icon(sink.type, 24), h("div", {}, h("h3", { id }, sink.sink), h("p", { class: "hint" }, `${storeName(sink.type)}, `, term("generation"), ` ${sink.generation}, `, term("epoch"), ` ${sink.epoch}`)), pill(tone, storeState(status, sink))),
    h("dl", { class: "measures" },
      number("Behind the source", seconds(sink.lag_seconds), lagOf(sink.sink), status.unix_seconds, 0),
      number("Rows written", rate(newest(written)), written, status.unix_seconds, 1)),
    h("dl", { class: "facts" },
      fact("Commit to readable", seconds(sink.freshness_seconds)),
      fact("Records that wait", count(sink.lag_records)),
      fact("Rows written by its job", count(sink.written)),
      fact("Met again or older", count(sink.stale)),
      fact(term("dead letter", "Dead letters"), sink.dead_letters ? h("a", { href: link("letters") }, count(sink.dead_letters)) : "0"),
      fact(term("applied LSN", "Applied up to"), h("span", { class: "mono" }, sink.applied_lsn))),
    comparisons(sink),
    sink.error && h("div", { class: "row-note" }, h("p", {}, h("b", {}, "Last error: "), sink.error), sink.next && h("p", { class: "next" }, h("b", {}, "Next: "), sink.next),
      commandsOf(sink.next, sink.sink).map((text) => command(text, announce))),
    canOperate() && h("div", { class: "actions" }, button("Compare…", OPERATIONS.verify([sink.sink])), button("Repair…", OPERATIONS.repair([sink.sink])), button("Rebuild…", OPERATIONS.rebuild(sink.sink)),
      button("Roll back…", OPERATIONS.rollback(sink.sink)), button("Cancel a rebuild…", OPERATIONS.cancelRebuild(sink.sink))),
    h("details", {}, h("summary", {}, "Commands"), [`cdc verify --sink ${sink.sink}`, `cdc dlq list ${sink.sink}`, `cdc rebuild --sink ${sink.sink}`].map((text) => command(text, announce))));
}

export function stores(announce) {
  const { status } = state;
  if (!status.sinks.length) {
    return [h("section", { class: "panel empty", "aria-labelledby": "stores-title" }, h("h2", { id: "stores-title" }, "Stores"),
      h("p", {}, "No sink has published a position yet. A sink of the configuration starts with:"), command("cdc sink run NAME", announce))];
  }
  const isLong = status.sinks.length >= FILTERED_FROM;
  const found = isLong ? filter.found(status.sinks, (sink) => `${sink.sink} ${storeName(sink.type)}`, (sink) => storeState(status, sink)) : status.sinks;
  const shown = isLong ? filter.shown(found) : found;
  return [h("section", { "aria-labelledby": "stores-title" },
    h("div", { class: "section-head" }, h("h2", { id: "stores-title" }, "Stores"), h("p", { class: "hint" }, `${plural(status.sinks.length, "store")}; lines span 15 minutes`)),
    isLong && h("div", { class: "panel" }, filter.form()),
    h("div", { class: "stores" }, shown.map((sink) => card(status, sink, announce))), isLong && filter.pages(found.length))];
}
