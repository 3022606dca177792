// One key: its row in the source, in the topic and in every store, side by side, asked for each second.

import { command, grid, h, pill, redraw, sign } from "./dom.js";
import { clock, commandsOf, moment } from "./format.js";
import { get, sentence, state, watched } from "./data.js";
import { icon } from "./flow.js";
import { term } from "./glossary.js";
import { link } from "./route.js";
import { keyText, tailOf } from "./tail.js";

const EVERY_MS = 1000;
const ROW_MS = 20000; // a store that does not answer is waited for so long
const SETTLED_MS = 5000;
const TOPIC_MS = 60000;
const TOPIC_RECORDS = 20;
const FRESH_MS = 4000;
const ARRIVALS_MAX = 12;
const TONES = { equal: "good", excluded: "idle", expired: "idle", behind: "busy", differs: "error", pending: "busy", undecided: "warning", "not compared": "warning" };
const WORDS = { pending: "differs now" };

const rowPath = (table, key, fields) => `tables/${encodeURIComponent(table)}/row?${new URLSearchParams({ key, ...fields })}`;

/** What the page remembers of the key that it shows: values and when they changed, arrivals, and the topic's records. */
let shown = null;

function memory(table, key) {
  if (shown?.table !== table || shown.key !== key) shown = { table, key, cells: new Map(), places: new Map(), arrivals: [], pendingSinceMs: null, topic: null };
  return shown;
}

/** Whether the cell has changed in the last seconds. */
function isFresh(place, text) {
  const known = shown.cells.get(place);
  if (known?.text === text) return Date.now() - known.atMs < FRESH_MS;
  shown.cells.set(place, { text, atMs: known ? Date.now() : 0 });
  if (known) setTimeout(redraw, FRESH_MS + 50);
  return known !== undefined;
}

/** Notes that a place shows another row or version than before. `isNew`: also if nothing was known of the place. */
function noteArrival(place, text, isNew = false) {
  const known = shown.places.get(place);
  shown.places.set(place, text);
  if (known === text || (known === undefined && !isNew)) return;
  shown.arrivals.unshift({ place, at: Date.now() / 1000, number: (shown.arrivals[0]?.number ?? 0) + 1 });
  shown.arrivals.splice(ARRIVALS_MAX);
}

/** A value as text. `why`: what is wrong with it; `tone`: how bad that is. */
function value(place, given, why = "", tone = "differs") {
  const isNone = given === undefined || given === null;
  const text = given === undefined ? "absent" : given === null ? "null" : typeof given === "string" ? given : JSON.stringify(given);
  const classes = ["value", isNone && "faint", why && tone, isFresh(place, text) && "fresh"].filter(Boolean).join(" ");
  return h("div", { class: classes }, why && sign(tone === "differs" ? "error" : "busy"), h("span", { class: "mono" }, text), why && h("small", {}, why));
}

const SEQ_BITS = 48n;
const isKnown = (version) => version !== null && version !== undefined;
const big = (version) => BigInt(JSON.stringify(version)); // versions have 63 bits
const versionText = (version) => (isKnown(version) ? `${big(version) >> SEQ_BITS}.${big(version) & ((1n << SEQ_BITS) - 1n)}` : "–");
const isOlder = (version, other) => isKnown(version) && isKnown(other) && big(version) < big(other);

function verdictOf(store, settled) {
  const later = settled?.stores.find((one) => one.sink === store.sink);
  return store.verdict === "pending" && later ? { ...store, verdict: later.verdict, why: later.why, next: later.next, differences: later.differences } : store;
}

function topicHead(place, newest) {
  const { topic } = shown;
  const read = async () => {
    const own = shown;
    own.topic = { isReading: true, records: [], error: "" };
    redraw();
    try {
      own.topic = { isReading: false, error: "", ...(await get(rowPath(own.table, own.key, { records: TOPIC_RECORDS }), TOPIC_MS)).topic };
    } catch (error) {
      own.topic = { isReading: false, records: [], error: sentence(error) };
    }
    redraw();
  };
  return [h("div", { class: "place" }, icon("brokers", 18), h("span", {}, "Topic")),
    !newest && h("small", {}, topic && !topic.isReading && !topic.error ? "no record of this key" : "no recent change"),
    h("button", { type: "button", class: "text-button", disabled: topic?.isReading, onclick: read }, topic?.isReading ? "Reading…" : "Read the topic")];
}

function storeHead(store, type) {
  return [h("div", { class: "place" }, icon(type, 18), h("span", {}, store.sink)), pill(TONES[store.verdict] ?? "warning", WORDS[store.verdict] ?? store.verdict)];
}

/** What a store's column should hold, if it differs. */
function expected(store, column) {
  const difference = store.differences?.find((one) => one.column === column);
  return difference ? `expected ${difference.expected}` : "";
}

/** The rows of the comparison: a line for each column of the table, and of a store that has more. */
function lines(found, newest, stores) {
  const names = [...new Set([...Object.keys(found.source ?? {}), ...Object.keys(newest?.row ?? {})])];
  const nameIn = (store, name) => (store.names ? store.names[name] : name);
  const isGone = newest && ["delete", "tombstone"].includes(newest.op);
  const result = [
    { name: term("version", "Version"), key: "version", cells: ["", value("topic version", newest ? versionText(newest.version) : null),
      ...stores.map((store) => value(`${store.sink} version`, versionText(store.version), isOlder(store.version, newest?.version) ? "older than the topic's" : "", "behind"))] },
    { name: "LSN", key: "lsn", cells: ["", value("topic lsn", newest?.commit_lsn ?? null), ...stores.map((store) => h("div", { class: "value" }, h("span", { class: "mono" }, store.applied_lsn ?? "–"), h("small", {}, term("applied LSN", "applied"))))] },
  ];
  for (const name of names) {
    result.push({ name, key: `column/${name}`, cells: [
      value(`source ${name}`, found.source?.[name]),
      newest && !isGone ? value(`topic ${name}`, newest.row?.[name]) : isGone ? value(`topic ${name}`, undefined) : "",
      ...stores.map((store) => {
        const stored = nameIn(store, name);
        if (stored === undefined) return h("small", {}, Object.keys(store.names ?? {}).length ? "left out" : "–");
        const renamed = stored === name ? "" : h("small", {}, stored);
        return [value(`${store.sink} ${name}`, store.row?.[stored], expected(store, stored)), renamed];
      })] });
  }
  stores.forEach((store, number) => {
    const known = new Set(names.map((name) => nameIn(store, name)));
    for (const [name, given] of Object.entries(store.row ?? {})) {
      if (!known.has(name)) result.push({ name, key: `${store.sink}/${name}`, cells: ["", "", ...stores.map((_, n) => (n === number ? value(`${store.sink} ${name}`, given, expected(store, name)) : ""))] });
    }
  });
  return result;
}

function comparison(found, newest, stores) {
  const types = new Map(state.status.sinks.map((one) => [one.sink, one.type]));
  const head = (children) => h("th", { scope: "col" }, children);
  return h("div", { class: "scroll comparison", role: "region", "aria-labelledby": "row-title", tabindex: "0" },
    h("table", { class: "grid-table" }, h("caption", { class: "unseen" }, "The row in the source, in the topic and in the stores"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Column"), head(h("div", { class: "place" }, icon("source", 18), "Source")), head(topicHead("topic", newest)), stores.map((store) => head(storeHead(store, types.get(store.sink)))))),
      h("tbody", {}, lines(found, newest, stores).map(({ name, key, cells }) => h("tr", { "data-key": key }, h("th", { scope: "row", class: "mono" }, name), cells.map((cell) => h("td", {}, cell)))))));
}

function reasons(table, stores, announce) {
  const said = stores.filter((store) => store.why || store.next);
  return said.length ? h("ul", { class: "problems reasons" }, said.map((store) => h("li", { class: `problem ${TONES[store.verdict] === "error" ? "" : "warning"}`, "data-key": store.sink },
    h("div", { class: "problem-head" }, pill(TONES[store.verdict] ?? "warning", WORDS[store.verdict] ?? store.verdict), h("span", { class: "mono name" }, store.sink)),
    store.why && h("p", { class: "message" }, store.why), store.next && h("p", { class: "next" }, h("b", {}, "Next: "), store.next),
    commandsOf(store.next ?? "", store.sink).map((text) => command(text, announce))))) : null;
}

function arrivals() {
  return h("section", { class: "panel", "aria-labelledby": "arrivals-title" }, h("div", { class: "panel-head" }, h("h2", { id: "arrivals-title" }, "Arrivals"), h("p", { class: "hint" }, "since this page was opened; by this page's clock")),
    shown.arrivals.length ? h("ol", { class: "arrivals" }, shown.arrivals.map(({ place, at, number }) => h("li", { "data-key": String(number) }, h("span", { class: "mono" }, clock(at)), ` ${place} shows another row`)))
      : h("p", { class: "empty-line" }, "Nothing has changed. A change appears here when it reaches the source, the topic and each store."));
}

function topicRecords() {
  const { topic } = shown;
  if (!topic || topic.isReading) return null;
  const columns = ["Committed", "Operation", "Version", "LSN", "Place", "Row"].map((label) => ({ label }));
  const rows = [...topic.records].reverse().map((one) => ({ key: `${one.partition}/${one.offset}`, cells: [
    one.commit_us === null ? "–" : moment(one.commit_us / 1e6), `${one.op}${one.is_swept ? ", swept since" : ""}`, h("span", { class: "mono" }, versionText(one.version)), h("span", { class: "mono" }, one.commit_lsn ?? "–"),
    `partition ${one.partition}, offset ${one.offset}`, h("div", { class: "mono changes" }, one.row ? JSON.stringify(one.row) : "–")] }));
  return h("section", { class: "panel", "aria-labelledby": "records-title" }, h("div", { class: "panel-head" }, h("h2", { id: "records-title" }, "Records in the topic"), h("p", { class: "hint" }, "the newest first; older ones may be compacted away")),
    topic.error ? h("p", { class: "row-note" }, topic.error) : rows.length ? h("div", { class: "scroll plain", role: "region", "aria-labelledby": "records-title", tabindex: "0" }, grid("Records of this key", columns, rows)) : h("p", { class: "empty-line" }, "The topic has no record of this key."));
}

/** The form that asks for a key of this table. */
export function keyForm(table, key = "") {
  const send = (event) => {
    event.preventDefault();
    location.hash = link("tables", table, "row", document.getElementById("key").value.trim());
  };
  return h("form", { class: "key-form", onsubmit: send }, h("label", { for: "key" }, "Key"),
    h("input", { id: "key", "data-own": true, value: key, required: true, autocomplete: "off", spellcheck: "false", placeholder: "7, or of several columns [\"eu\", 7]" }),
    h("button", { type: "submit", class: "do-button" }, "Find in source, topic and stores"));
}

export function oneKey(table, key, announce) {
  memory(table, key);
  const { value: found, error } = watched(rowPath(table, key, { records: 0, wait: false }), EVERY_MS, ROW_MS);
  const title = h("div", { class: "panel-head" }, h("h2", { id: "row-title" }, "One key: ", h("span", { class: "mono" }, found ? keyText(found.key) : key)), h("p", { class: "hint" }, "asked for each second while this page is visible"));
  const form = h("div", { class: "filters" }, keyForm(table, key));
  if (!found) return [h("section", { class: "panel", "aria-labelledby": "row-title", "data-key": `row/${table}/${key}` }, title, form, error ? h("p", { class: "row-note", role: "alert" }, error) : h("p", { class: "loading" }, "Reading the source and the stores…"))];

  const isPending = found.stores.some((store) => store.verdict === "pending");
  shown.pendingSinceMs = isPending ? (shown.pendingSinceMs ?? Date.now()) : null;
  const settled = isPending && Date.now() - shown.pendingSinceMs > SETTLED_MS ? watched(rowPath(table, key, { records: 0 }), SETTLED_MS, TOPIC_MS).value : null;
  const stores = found.stores.map((store) => verdictOf(store, settled));
  const last = tailOf(table, key, 1).lines.find(({ change }) => change.op !== "sweep");
  const newest = last?.change ?? shown.topic?.records?.at(-1);
  noteArrival("the source", JSON.stringify(found.source));
  if (newest) noteArrival("the topic", versionText(newest.version), last?.isNew);
  for (const store of stores) noteArrival(store.sink, `${versionText(store.version)} ${JSON.stringify(store.row)}`);
  const isNowhere = !found.source && !newest && stores.every((store) => !store.row);
  return [
    h("section", { class: "panel", "aria-labelledby": "row-title", "data-key": `row/${table}/${key}` }, title, form,
      error && h("p", { class: "row-note", role: "alert" }, error), isNowhere && h("p", { class: "row-note" }, "Neither the source nor a store has a row with this key."),
      found.stores.length ? null : h("p", { class: "hint" }, "No sink holds this table."),
      found.not_held.length ? h("p", { class: "hint" }, `Without the table, by tables or exclude_tables in their options: ${found.not_held.join(", ")}.`) : null, comparison(found, newest, stores), reasons(table, stores, announce)),
    arrivals(), topicRecords()];
}
