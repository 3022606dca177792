// All tables: filter, order, pages.

import { bar, command, grid, h, pill, redraw } from "./dom.js";
import { Filter } from "./filters.js";
import { commandsOf, count, seconds } from "./format.js";
import { state } from "./data.js";
import { term } from "./glossary.js";
import { link } from "./route.js";

export const STATES = ["streaming", "not streaming", "snapshotting", "stopped", "not captured"];
const TONES = { streaming: "good", snapshotting: "busy", stopped: "error", "not streaming": "idle", "not captured": "idle" };
const ORDERS = {
  table: (one) => one.table,
  state: (one) => STATES.length - STATES.indexOf(one.state),
  rows: (one) => one.snapshot?.rows ?? -1,
  letters: (one) => one.dead_letters + one.skipped,
};

const filter = new Filter("table", STATES);
const wanted = { order: "table", isDown: false };

export const tableState = (table) => pill(TONES[table.state], table.state);

/** How far a snapshot is: a bar and words. */
export function progress(table) {
  const { snapshot } = table;
  if (!snapshot) return h("span", { class: "faint" }, "–");
  if (snapshot.status === "done") return h("span", {}, `${count(snapshot.rows)} rows, done`);
  const share = snapshot.rows_total ? Math.min(1, snapshot.rows / snapshot.rows_total) : 0;
  const words = [snapshot.rows_total ? `${count(snapshot.rows)} of about ${count(snapshot.rows_total)} rows` : `${count(snapshot.rows)} rows`];
  if (snapshot.status !== "running") words.push(snapshot.status);
  else if (snapshot.seconds_left !== null) words.push(`${seconds(snapshot.seconds_left)} left`);
  return h("div", { class: "progress" },
    snapshot.rows_total ? h("div", { class: "meter busy", role: "progressbar", "aria-label": `Snapshot of ${table.table}`, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.floor(share * 100) }, bar(share)) : null,
    h("small", {}, words.join(", ")));
}

/** Why a table is stopped, why its snapshot failed, and which rows are owed, with the next steps. */
export function notes(table, announce) {
  return [
    table.message && h("div", { class: "row-note" }, h("p", {}, table.message), table.next && h("p", { class: "next" }, h("b", {}, "Next: "), table.next),
      commandsOf(table.next, table.table).map((text) => command(text, announce)), table.starts_by_itself && h("p", { class: "hint" }, "It starts by itself when the cause is gone.")),
    table.snapshot?.message && h("div", { class: "row-note" }, h("p", {}, table.snapshot.message)),
    table.owed && h("div", { class: "row-note" }, h("p", {}, "Rows are ", term("owed"), `: ${table.owed}`)),
  ];
}

export const leftOut = (table) => (table.dead_letters + table.skipped ? h("span", {}, `${count(table.dead_letters)} dead letters, ${count(table.skipped)} skipped`) : h("span", { class: "faint" }, "0"));

function heading(name, label, isNumber) {
  const isOrder = wanted.order === name;
  const click = () => {
    Object.assign(wanted, { order: name, isDown: isOrder ? !wanted.isDown : name !== "table" });
    filter.page = 0;
    redraw();
  };
  const head = h("th", { scope: "col", role: "columnheader", class: isNumber ? "number" : "", "aria-sort": isOrder ? (wanted.isDown ? "descending" : "ascending") : "none" },
    h("button", { type: "button", onclick: click }, label, h("span", { class: "arrow", "aria-hidden": "true" }, isOrder ? (wanted.isDown ? "↓" : "↑") : "")));
  return { label, head, isNumber };
}

export function tables(announce) {
  const found = filter.found(state.status.tables, (one) => one.table, (one) => one.state);
  const key = ORDERS[wanted.order];
  const sign = wanted.isDown ? -1 : 1;
  found.sort((a, b) => (key(a) < key(b) ? -sign : key(a) > key(b) ? sign : a.table < b.table ? -1 : 1));
  const columns = [heading("table", "Table"), heading("state", "State"), heading("rows", "Snapshot"), heading("letters", "Left out", true)];
  const rows = filter.shown(found).map((one) => ({
    key: one.table,
    cells: [[h("a", { class: "mono", href: link("tables", one.table) }, one.table), notes(one, announce)], tableState(one), progress(one), leftOut(one)],
  }));
  return [h("section", { class: "panel", "aria-labelledby": "tables-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "tables-title" }, "Tables"), h("p", { class: "hint" }, "as the configuration names them")),
    filter.form(),
    h("div", { class: "scroll", role: "region", "aria-labelledby": "tables-title", tabindex: "0" }, grid("Tables, their states and snapshots", columns, rows)),
    filter.pages(found.length))];
}
