// One table: what it is, where it is in every store, its last changes, and the form that asks for one key.

import { fact, grid, h, pill } from "./dom.js";
import { count, plural, seconds } from "./format.js";
import { OPERATIONS, button } from "./actions.js";
import { state, watched } from "./data.js";
import { icon, storeName, storeState, storeTone } from "./flow.js";
import { term } from "./glossary.js";
import { keyForm, oneKey } from "./one-key.js";
import { link } from "./route.js";
import { leftOut, notes, progress, tableState } from "./tables.js";
import { lastMinute, tailPanel } from "./tail.js";

const DESCRIPTION_MS = 10000;

function actions(table) {
  const names = [table.table];
  const rows = table.snapshot?.rows_total || table.snapshot?.rows;
  const status = table.snapshot?.status;
  return h("div", { class: "actions" },
    table.state === "stopped" ? button("Start capture…", OPERATIONS.start(names, rows)) : [
      ["running", "waiting"].includes(status) ? button("Pause the snapshot…", OPERATIONS.pause(names)) : null,
      status === "paused" ? button("Resume the snapshot…", OPERATIONS.resume(names)) : null,
      ["running", "waiting", "paused"].includes(status) ? button("Cancel the snapshot…", OPERATIONS.cancel(names)) : button("Snapshot…", OPERATIONS.snapshot(names, rows)),
      button("Stop capture…", OPERATIONS.stop(names, rows))],
    button("Compare…", OPERATIONS.verify([], names, rows)), button("Repair…", OPERATIONS.repair([], names, rows)));
}

const nameRows = (names) => h("dl", { class: "names-of" }, Object.entries(names).map(([kind, name]) => h("div", {}, h("dt", {}, kind), h("dd", { class: "mono" }, name))));

function stores(description) {
  const { status } = state;
  const columns = ["Store", "State", "Generation", "Names", "Columns"].map((label) => ({ label }));
  const whole = description.columns.map((one) => one.name);
  const rows = description.stores.map((store) => {
    const sink = status.sinks.find((one) => one.sink === store.sink);
    const here = [h("div", { class: "place" }, icon(store.type, 18), h("span", {}, h("b", {}, store.sink), h("small", {}, ` ${storeName(store.type)}`)))];
    if (!store.is_held) return { key: store.sink, cells: [here, h("span", { class: "faint" }, "does not hold the table"), "–", "–", "–"] };
    return { key: store.sink, cells: [here,
      sink ? [pill(storeTone(status, sink), storeState(status, sink)), h("small", {}, ` ${seconds(sink.lag_seconds)} behind`)] : h("span", { class: "faint" }, "has never run"),
      [store.generation === null ? "none yet" : String(store.generation), store.building.map((number) => h("small", {}, ` ${number} is being built`))],
      nameRows(store.names),
      [store.columns.join(" ") === whole.join(" ") ? "all" : h("span", { class: "mono" }, store.columns.join(", ")), store.where && h("p", {}, "rows where ", h("span", { class: "mono" }, store.where))]] };
  });
  return h("section", { class: "panel", "aria-labelledby": "places-title" }, h("div", { class: "panel-head" }, h("h2", { id: "places-title" }, "Where it is"), h("p", { class: "hint" }, "as readers find it")),
    rows.length ? h("div", { class: "scroll", role: "region", "aria-labelledby": "places-title", tabindex: "0" }, grid("The table in each store", columns, rows)) : h("p", { class: "empty-line" }, "No sink is configured."));
}

function columnsOf(description) {
  const columns = ["Column", "Type", "Rules", "Mask"].map((label) => ({ label }));
  const rows = description.columns.map((one) => ({ key: one.name, cells: [h("span", { class: "mono" }, one.name), h("span", { class: "mono" }, one.type),
    [description.key.includes(one.name) && h("b", {}, "key "), !one.nullable && "not null"], one.mask ? h("span", { class: "mask" }, one.mask) : h("span", { class: "faint" }, "none")] }));
  const versions = description.schema_versions ?? [];
  return h("section", { class: "panel", "aria-labelledby": "columns-title" }, h("div", { class: "panel-head" }, h("h2", { id: "columns-title" }, "Columns"), h("p", { class: "hint" }, `schema version ${description.schema_version}`)),
    h("div", { class: "scroll", role: "region", "aria-labelledby": "columns-title", tabindex: "0" }, grid("Columns of the table", columns, rows)),
    versions.length > 1 && h("details", {}, h("summary", {}, plural(versions.length, "schema version")), h("ol", { class: "periods" }, versions.map((one) => h("li", {}, h("b", {}, `${one.version}: `), h("span", { class: "mono" }, one.columns.join(", ")))))));
}

function summary(table, description, announce) {
  return h("section", { class: "panel", "aria-labelledby": "table-title", "data-key": table.table },
    h("div", { class: "panel-head" }, h("h2", { id: "table-title", class: "mono" }, table.table), h("div", { class: "place" }, tableState(table))),
    h("dl", { class: "facts wide" },
      fact("Topic", description ? h("span", { class: "mono" }, description.topic) : "–"), fact("Partitions", description ? count(description.partitions) : "–"),
      fact("Key", description ? (description.key.length ? h("span", { class: "mono" }, description.key.join(", ")) : "none") : "–"),
      fact(term("snapshot", "Snapshot"), progress(table)), fact("Changes in the last minute", description ? lastMinute(table.table) : "–"), fact(term("dead letter", "Left out by capture"), leftOut(table))),
    notes(table, announce), actions(table),
    description?.key.length ? keyForm(table.table) : description && h("p", { class: "hint" }, "The table has no key: its topic is a log, and no store holds it."));
}

const crumbs = (name, isRow) => h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("ol", {}, h("li", {}, h("a", { href: link("tables") }, "Tables")),
  h("li", {}, isRow ? h("a", { class: "mono", href: link("tables", name) }, name) : h("span", { class: "mono", "aria-current": "page" }, name)), isRow && h("li", {}, h("span", { "aria-current": "page" }, "One key"))));

/** `rest`: of the address, [table] or [table, "row", key]. */
export function oneTable(announce, [name, page, key]) {
  const table = state.status.tables.find((one) => one.table === name);
  if (!table) return [crumbs(name, false), h("section", { class: "panel empty" }, h("h2", {}, "No such table"), h("p", {}, `The configuration names no table ${name}. `, h("a", { href: link("tables") }, "All tables")))];
  if (page === "row" && key !== undefined) return [crumbs(name, true), oneKey(name, key, announce)];
  const { value: description, error } = watched(`tables/${encodeURIComponent(name)}`, DESCRIPTION_MS);
  return [crumbs(name, false), summary(table, description, announce), error && h("p", { class: "row-note", role: "alert" }, error),
    description && [stores(description), columnsOf(description), tailPanel(name, description.key.length > 0)]];
}
