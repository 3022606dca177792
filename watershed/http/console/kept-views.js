// Each view: whether it follows its base, what waits, and what it fails for.

import { command, fact, h, pill } from "./dom.js";
import { commandsOf, count, plural, seconds } from "./format.js";
import { state } from "./data.js";
import { viewTone } from "./flow.js";
import { term } from "./glossary.js";

const KINDS = { search: "search index", cache: "cache", sql: "SQL table", warehouse: "warehouse", topic: "topic" };

function card(status, view, announce) {
  const id = `view-${view.view}`;
  const how = viewTone(status, view);
  const note = view.error ? [view] : status.problems.filter((one) => one.part === "view" && one.name === view.view).map((one) => ({ error: one.message, next: one.next }));
  return h("article", { class: `panel store ${how}`, "aria-labelledby": id, "data-key": view.view },
    h("div", { class: "store-head" }, h("div", {}, h("h3", { id }, view.view), h("p", { class: "hint" }, `${KINDS[view.target] ?? view.target}, from `, term("base"), ` ${view.base}`)), pill(how, view.state)),
    h("dl", { class: "facts" },
      view.target === "event log" ? fact("Records behind", count(view.behind_records)) : [
        fact("Oldest change", view.waiting_changes === 0 ? "none waits" : seconds(view.oldest_change_seconds)),
        fact("Changes that wait", count(view.waiting_changes)),
        fact("Keys that wait", count(view.waiting_keys))],
      fact("Rejected rows", count(view.rejected_rows)),
      fact("Last write", view.silent_seconds === null ? "–" : `${seconds(view.silent_seconds)} ago`),
      fact("Kept by a process", view.is_kept === null ? "–" : view.is_kept ? "yes" : "no")),
    note.map((one) => h("div", { class: "row-note" }, h("p", {}, h("b", {}, "Error: "), one.error), one.next && h("p", { class: "next" }, h("b", {}, "Next: "), one.next),
      commandsOf(one.next, view.view).map((text) => command(text, announce)))),
    h("details", {}, h("summary", {}, "Commands"), [`cdc view status ${view.view}`, `cdc view check ${view.view}`, `cdc view rebuild ${view.view}`].map((text) => command(text, announce))));
}

export function keptViews(announce) {
  const { status } = state;
  return [h("section", { "aria-labelledby": "views-title" },
    h("div", { class: "section-head" }, h("h2", { id: "views-title" }, "Views"), h("p", { class: "hint" }, plural(status.views.length, "view"))),
    h("div", { class: "stores" }, status.views.map((view) => card(status, view, announce))))];
}
