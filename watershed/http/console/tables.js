// All tables: filter, order, pages. A page has few rows, so that a thousand tables cost what fifty do.

import { bar, command, h, pill } from "./dom.js";
import { commandsOf, count, plural, seconds } from "./format.js";
import { state } from "./data.js";

const PAGE = 50;
const STATES = ["streaming", "not streaming", "snapshotting", "stopped", "not captured"];
const TONES = { streaming: "good", snapshotting: "busy", stopped: "error", "not streaming": "idle", "not captured": "idle" };
const ORDERS = {
  table: (one) => one.table,
  state: (one) => STATES.length - STATES.indexOf(one.state),
  rows: (one) => one.snapshot?.rows ?? -1,
  letters: (one) => one.dead_letters + one.skipped,
};

const wanted = { text: "", state: "", order: "table", isDown: false, page: 0 };
const redraw = () => document.dispatchEvent(new Event("redraw"));

function change(fields) {
  Object.assign(wanted, { page: 0 }, fields);
  redraw();
}

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

function header(name, text, isNumber) {
  const isOrder = wanted.order === name;
  const click = () => change({ order: name, isDown: isOrder ? !wanted.isDown : name !== "table" });
  return h("th", { scope: "col", class: isNumber ? "number" : "", "aria-sort": isOrder ? (wanted.isDown ? "descending" : "ascending") : "none" },
    h("button", { type: "button", onclick: click }, text, h("span", { class: "arrow", "aria-hidden": "true" }, isOrder ? (wanted.isDown ? "↓" : "↑") : "")));
}

function row(table, announce) {
  const note = table.message && h("div", { class: "row-note" }, h("p", {}, table.message), table.next && h("p", { class: "next" }, h("b", {}, "Next: "), table.next),
    commandsOf(table.next, table.table).map((text) => command(text, announce)), table.starts_by_itself && h("p", { class: "hint" }, "It starts by itself when the cause is gone."));
  const failed = table.snapshot?.message && h("div", { class: "row-note" }, h("p", {}, table.snapshot.message));
  const owed = table.owed && h("div", { class: "row-note" }, h("p", {}, `Rows are owed: ${table.owed}`));
  return h("tr", { "data-key": table.table },
    h("th", { scope: "row", class: "mono" }, table.table, note, failed, owed),
    h("td", { "data-label": "State" }, pill(TONES[table.state], table.state)),
    h("td", { "data-label": "Snapshot" }, progress(table)),
    h("td", { "data-label": "Left out", class: "number" }, table.dead_letters + table.skipped ? h("span", {}, `${count(table.dead_letters)} dead letters, ${count(table.skipped)} skipped`) : h("span", { class: "faint" }, "0")));
}

function pages(total) {
  const last = Math.max(0, Math.ceil(total / PAGE) - 1);
  wanted.page = Math.min(wanted.page, last);
  const from = wanted.page * PAGE;
  const go = (page) => () => { change({ page }); document.getElementById("tables-title").scrollIntoView({ block: "nearest" }); };
  return h("nav", { class: "pages", "aria-label": "Pages of tables" },
    h("button", { type: "button", disabled: wanted.page === 0, onclick: go(wanted.page - 1) }, "Previous"),
    h("p", { role: "status" }, total ? `${count(from + 1)}–${count(Math.min(total, from + PAGE))} of ${plural(total, "table")}` : "no table matches"),
    h("button", { type: "button", disabled: wanted.page === last, onclick: go(wanted.page + 1) }, "Next"));
}

export function tables(announce) {
  const all = state.status.tables;
  const text = wanted.text.trim().toLowerCase();
  const named = text ? all.filter((one) => one.table.toLowerCase().includes(text)) : all;
  const found = wanted.state ? named.filter((one) => one.state === wanted.state) : [...named];
  const key = ORDERS[wanted.order];
  const sign = wanted.isDown ? -1 : 1;
  found.sort((a, b) => (key(a) < key(b) ? -sign : key(a) > key(b) ? sign : a.table < b.table ? -1 : 1));
  const filter = (name, label, number) => h("button", { type: "button", "aria-pressed": String(wanted.state === name), onclick: () => change({ state: name }) }, label, h("span", { class: "badge" }, count(number)));
  const bottom = pages(found.length);
  return [h("section", { class: "panel", "aria-labelledby": "tables-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "tables-title" }, "Tables"), h("p", { class: "hint" }, "as the configuration names them")),
    h("div", { class: "filters" },
      h("label", { class: "search" }, h("span", { class: "unseen" }, "Filter by name"),
        h("input", { id: "filter", type: "search", placeholder: "Filter by name", autocomplete: "off", spellcheck: "false", value: wanted.text, oninput: (event) => change({ text: event.target.value }) })),
      h("div", { class: "segments", role: "group", "aria-label": "State" }, filter("", "all", named.length), STATES.map((name) => filter(name, name, named.filter((one) => one.state === name).length)))),
    h("div", { class: "scroll", role: "region", "aria-labelledby": "tables-title", tabindex: "0" },
      h("table", { class: "grid-table" }, h("caption", { class: "unseen" }, "Tables, their states and snapshots"),
        h("thead", {}, h("tr", {}, header("table", "Table"), header("state", "State"), header("rows", "Snapshot"), header("letters", "Left out", true))),
        h("tbody", {}, found.slice(wanted.page * PAGE, (wanted.page + 1) * PAGE).map((one) => row(one, announce))))),
    bottom)];
}
