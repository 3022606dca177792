// The changes of a table as they arrive in its topic: the newest lines, which can be paused, and filtered by key.

import { grid, h, redraw } from "./dom.js";
import { count, moment, plural } from "./format.js";
import { follow } from "./data.js";
import { link } from "./route.js";

const LINES_MAX = 200;
const FIRST = 20; // of the last changes
const AGAIN_MS = 2000;
const DRAW_MS = 250;
const VALUE_CHARS = 60;

/** The stream of a table's changes, of all keys or of one. Lines are the newest first. */
class Tail {
  constructor(table, key, first) {
    Object.assign(this, { table, key, first, lines: [], waiting: [], places: new Set(), isPaused: false, error: "", end: null, timer: null, drawing: null });
    this.open();
  }

  reopen() {
    this.close();
    this.open();
  }

  open() {
    this.timer = null;
    const query = new URLSearchParams({ last: String(this.first), ...(this.key !== null && { key: this.key }) });
    this.end = follow(`tables/${encodeURIComponent(this.table)}/changes?${query}`, (...one) => this.receive(...one), (error) => {
      this.error = error;
      this.timer = setTimeout(() => this.open(), AGAIN_MS);
      redraw();
    });
  }

  receive(change, isNew) {
    this.error = "";
    // A topic that was created again has the same offsets, and other versions.
    const place = [change.op, change.partition, change.offset, JSON.stringify(change.version)].join("/");
    // After the stream broke off, the last changes are sent again. A tombstone follows a delete that was shown.
    if (this.places.has(place) || change.op === "tombstone") return;
    this.places.add(place);
    if (this.places.size > 10 * LINES_MAX) this.places.delete(this.places.values().next().value);
    const lines = this.isPaused ? this.waiting : this.lines;
    lines.unshift({ place, change, isNew, key: keyText(change.key) });
    lines.splice(LINES_MAX);
    this.drawing ??= setTimeout(() => {
      this.drawing = null;
      redraw();
    }, DRAW_MS);
  }

  pause() {
    this.isPaused = !this.isPaused;
    if (!this.isPaused) {
      this.lines = [...this.waiting, ...this.lines].slice(0, LINES_MAX);
      this.waiting = [];
    }
    redraw();
  }

  close() {
    clearTimeout(this.timer);
    this.timer = null;
    this.end();
  }
}

// A server has few streams: a page that nobody sees gives its stream back. What it missed are the last changes when it is seen again.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) current?.close();
  else current?.reopen();
});

let current = null;

/** The tail of this table and key, which is opened if it is not; the one before is closed. */
export function tailOf(table, key, first = FIRST) {
  if (current?.table !== table || current.key !== key) {
    current?.close();
    current = new Tail(table, key, first);
  }
  return current;
}

export function closeTail() {
  current?.close();
  current = null;
}

const short = (value) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > VALUE_CHARS ? `${text.slice(0, VALUE_CHARS - 1)}…` : text;
};

/** A key in the form in which it is asked for. */
export function keyText(key) {
  const values = key !== null && typeof key === "object" ? Object.values(key) : [key];
  if (values.length !== 1) return JSON.stringify(values);
  return typeof values[0] === "string" ? values[0] : JSON.stringify(values[0]);
}

/** What changed, if the record says what was before; otherwise the columns. */
function columns({ op, key, row, before }) {
  if (op === "sweep") return h("span", { class: "faint" }, "rows with lower versions are gone");
  const known = key !== null && typeof key === "object" ? key : {};
  if (row && before && op === "update") {
    const changed = Object.keys(row).filter((name) => name in before && JSON.stringify(row[name]) !== JSON.stringify(before[name]));
    return changed.length ? changed.map((name) => h("span", { class: "change" }, h("b", {}, name), ` ${short(before[name])} → ${short(row[name])} `)) : h("span", { class: "faint" }, "no change");
  }
  return Object.entries(row ?? {}).filter(([name]) => !(name in known)).map(([name, value]) => h("span", { class: "change" }, h("b", {}, name), ` ${short(value)} `));
}

const cells = (table, { change, key }) => [
  change.commit_us === null ? "–" : moment(change.commit_us / 1e6), h("span", { class: `op ${change.op}` }, change.op || "other"),
  change.key === null ? "–" : h("a", { class: "mono", href: link("tables", table, "row", key) }, short(key)), h("span", { class: "mono" }, change.commit_lsn ?? "–"), h("div", { class: "mono changes" }, columns(change))];

const MINUTE_S = 60;

const wanted = { table: null, key: null }; // what the reader filters by
const wantedTail = (table) => tailOf(table, wanted.table === table ? wanted.key : null);

/** How many changes of the table that this page has seen were committed in the last minute. */
export function lastMinute(table) {
  const tail = wantedTail(table);
  if (tail.key !== null) return "–";
  const since = (Date.now() / 1000 - MINUTE_S) * 1e6;
  const found = [...tail.waiting, ...tail.lines].filter(({ change }) => (change.commit_us ?? 0) >= since && change.op !== "read").length;
  return found >= LINES_MAX ? `${count(LINES_MAX)} or more` : count(found);
}

export function tailPanel(table, hasKey) {
  const tail = wantedTail(table);
  const choose = (event) => {
    event.preventDefault();
    const given = document.getElementById("tail-key").value.trim();
    Object.assign(wanted, { table, key: given || null });
    redraw();
  };
  const held = tail.waiting.length;
  return h("section", { class: "panel", "aria-labelledby": "tail-title", "data-key": `tail/${table}` },
    h("div", { class: "panel-head" }, h("h2", { id: "tail-title" }, "Changes"), h("p", { class: "hint" }, `as they arrive in the topic, ${plural(tail.lines.length, "line")} of at most ${LINES_MAX}`)),
    h("div", { class: "filters" },
      hasKey && h("form", { class: "key-form", onsubmit: choose }, h("label", { for: "tail-key" }, "Only the key"), h("input", { id: "tail-key", "data-own": true, value: tail.key ?? "", autocomplete: "off", spellcheck: "false", placeholder: "all keys" }), h("button", { type: "submit", class: "text-button" }, "Show")),
      h("button", { type: "button", class: "text-button", "aria-pressed": String(tail.isPaused), onclick: () => tail.pause() }, tail.isPaused ? `Continue${held ? `, ${count(held)} new` : ""}` : "Pause")),
    tail.error && h("p", { class: "row-note", role: "status" }, tail.error),
    tail.lines.length ? h("div", { class: "scroll tail", role: "region", "aria-labelledby": "tail-title", tabindex: "0" },
      grid(`Changes of ${table}`, ["Committed", "Operation", "Key", "LSN", "Columns"].map((label) => ({ label })), tail.lines.map((line) => ({ key: line.place, cells: cells(table, line) }))))
      : h("p", { class: "empty-line" }, "No change has arrived yet."));
}
