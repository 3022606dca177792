// The picture of the pipeline: source, capture, brokers, stores and the views of bases, joined by pipes that move while records flow.

import { h, s } from "./dom.js";
import { bytesRate, count, plural, rate, seconds } from "./format.js";
import { newest, publishedRates, writtenRates } from "./data.js";
import { link } from "./route.js";

const NODE_HEIGHT = 104;
const STORE_HEIGHT = 82;
const BUS = 14; // where the pipe to the stores runs in the picture from top to bottom
const GAP = 14;
const WIDE = 860; // below this the picture is drawn from top to bottom
const WIDE_WITH_VIEWS = 1040;
const SHOWN_MAX = 12; // stores, and views

const STORES = { search: "search index", cache: "cache", warehouse: "warehouse", sql: "SQL tables" };
const ICONS = {
  source: "M4 5.5C4 3.6 7.6 2 12 2s8 1.6 8 3.5S16.4 9 12 9 4 7.4 4 5.5Zm0 0v13C4 20.4 7.6 22 12 22s8-1.6 8-3.5v-13M4 12c0 1.9 3.6 3.5 8 3.5s8-1.6 8-3.5",
  capture: "M12 3v11m0 0-4.5-4.5M12 14l4.5-4.5M4 15.5V19a2 2 0 0 0 2 2h12a2 2 0 0 0 2-2v-3.5",
  brokers: "M3 6h18M3 12h18M3 18h18M7 4v4M14 10v4M10 16v4",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13ZM15.3 15.3 21 21",
  cache: "M13 2 5 13.5h6L10 22l8.5-12H12.5Z",
  warehouse: "M3 9.5 12 4l9 5.5V21H3ZM8 21v-7.5h8V21M8 17h8",
  view: "M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12ZM12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6",
  sql: "M3.5 5h17v14.5h-17ZM3.5 10h17M3.5 14.8h17M9.5 10v9.5",
};

export const storeName = (type) => STORES[type] ?? (type || "store of another configuration");
export const icon = (name, size = 20) => s("svg", { class: "icon", viewBox: "0 0 24 24", width: size, height: size, "aria-hidden": "true" }, s("path", { d: ICONS[name] ?? ICONS.sql }));

export function captureTone(status) {
  const state = status.capture.state;
  if (status.problems.some((one) => one.part === "capture" && one.severity === "error")) return "error";
  if (["gap", "stopped", "retrying"].includes(state)) return state === "retrying" ? "warning" : "error";
  return state === "streaming" ? "good" : ["not started", "not streaming", "unknown"].includes(state) ? "idle" : "busy";
}

export function storeTone(status, sink) {
  const own = status.problems.filter((one) => one.part === "sink" && one.name === sink.sink);
  if (own.some((one) => one.severity === "error")) return "error";
  return own.length || sink.error ? "warning" : sink.is_catching_up ? "busy" : "good";
}

export function viewTone(status, view) {
  const own = status.problems.filter((one) => one.part === "view" && one.name === view.view);
  if (own.some((one) => one.severity === "error")) return "error";
  if (own.length) return "warning";
  return { serving: "good", filling: "busy", rebuild: "busy" }[view.state] ?? "idle";
}

export const storeState = (status, sink) => ({ good: "in step", busy: "catching up", warning: "needs attention", error: "has an error" })[storeTone(status, sink)];

function nodesOf(status) {
  const { source, capture, brokers } = status;
  const failed = (part) => status.problems.some((one) => one.part === part && one.severity === "error");
  const tables = status.tables.length;
  return {
    source: {
      icon: "source", tone: !source.is_reachable || failed("source") ? "error" : "good", title: source.database ?? "PostgreSQL",
      state: source.is_reachable ? `PostgreSQL ${source.version}` : "does not answer",
      lines: [`${bytesRate(source.slot?.budget.rate_bytes_per_second)} of WAL`, source.lsn ? `LSN ${source.lsn}` : ""],
    },
    capture: {
      icon: "capture", tone: captureTone(status), title: "Capture", state: capture.state,
      lines: [`${seconds(capture.lag_seconds)} behind the source`, capture.epoch === null ? "" : `epoch ${capture.epoch}`],
    },
    brokers: {
      icon: "brokers", tone: !brokers.is_reachable ? "error" : "good", title: "Kafka", state: brokers.is_reachable ? `prefix ${status.prefix}` : "does not answer",
      lines: [`${rate(newest(publishedRates()))} records`, plural(tables, "table")],
    },
    stores: status.sinks.slice(0, SHOWN_MAX).map((sink) => ({
      sink: sink.sink,
      icon: sink.type, tone: storeTone(status, sink), title: sink.sink, state: `${storeName(sink.type)}, ${storeState(status, sink)}`,
      lines: [`${seconds(sink.lag_seconds)} behind, ${rate(newest(writtenRates(sink.sink)))}`], rate: newest(writtenRates(sink.sink)),
    })),
    views: status.views.slice(0, SHOWN_MAX).map((view) => ({
      base: view.base, icon: "view", tone: viewTone(status, view), title: view.view, state: `view, ${view.state}`,
      lines: [view.waiting_changes ? `${plural(view.waiting_changes, "change")} ${view.waiting_changes === 1 ? "waits" : "wait"}` : `from ${view.base}`],
    })),
  };
}

const SIGNS = { good: "M-3.2.2-.9 2.5 3.4-2.4", warning: "M0-3v3.2M0 2.7v.1", error: "M-2.5-2.5l5 5M2.5-2.5l-5 5", busy: "M0-3V0l2 1.5", idle: "M-2.8 0h5.6" };
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function drawNode(node, box) {
  const room = Math.floor((box.width - 28) / 6.9);
  return s("g", { class: `node ${node.tone}`, transform: `translate(${box.x},${box.y})` },
    s("rect", { class: "card", width: box.width, height: box.height, rx: 12 }),
    s("rect", { class: "stripe", x: 0, y: 12, width: 3.5, height: box.height - 24, rx: 1.75 }),
    s("g", { transform: "translate(14,13)", class: "node-icon" }, s("path", { transform: "scale(.8)", d: ICONS[node.icon] ?? ICONS.sql })),
    s("text", { class: "node-title", x: 42, y: 28 }, cut(node.title, room - 7)),
    s("g", { class: "node-sign", transform: `translate(${box.width - 20},22)` }, s("circle", { r: 8 }), s("path", { d: SIGNS[node.tone] })),
    s("text", { class: "node-state", x: 14, y: 51 }, cut(node.state, room)),
    ...node.lines.filter(Boolean).map((line, row) => s("text", { class: row ? "node-line faint" : "node-line", x: 14, y: 71 + row * 19 }, cut(line, room))));
}

function pathBetween(from, to, isDown, isBranch) {
  if (isBranch && isDown) {
    const y = to.y + to.height / 2;
    return `M${from.x + BUS},${from.y + from.height}V${y - 10}Q${from.x + BUS},${y} ${from.x + BUS + 10},${y}H${to.x}`;
  }
  if (isDown) return `M${from.x + from.width / 2},${from.y + from.height}V${to.y}`;
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + from.height / 2, to.x, to.y + to.height / 2];
  const half = (x2 - x1) / 2;
  return `M${x1},${y1}C${x1 + half},${y1} ${x2 - half},${y2} ${x2},${y2}`;
}

function pipe(d, perSecond, tone) {
  const width = Math.min(9, 2.5 + Math.log10(1 + (perSecond ?? 0)) * 1.5);
  const pace = !perSecond || tone === "error" ? "still" : perSecond < 10 ? "slow" : perSecond < 1000 ? "steady" : "fast";
  return s("g", { class: `pipe ${pace} ${tone === "error" ? "broken" : ""}` },
    s("path", { class: "pipe-bed", d, "stroke-width": width + 3 }), s("path", { class: "pipe-flow", d, "stroke-width": Math.max(2, width - 2) }));
}

const column = (number) => number * (STORE_HEIGHT + GAP) - GAP;

/** The boxes of source, capture and brokers, of the stores and of the views. */
function layout(width, stores, views) {
  const isDown = width < (views ? WIDE_WITH_VIEWS : WIDE);
  const rows = (number, x, y, boxWidth) => Array.from({ length: number }, (_, n) => ({ x, y: y + n * (STORE_HEIGHT + GAP), width: boxWidth, height: STORE_HEIGHT }));
  if (isDown) {
    const first = 3 * (NODE_HEIGHT + 26);
    const second = first + column(stores) + (views ? 26 : 0);
    return {
      isDown, height: second + Math.max(0, column(views)),
      boxes: [0, 1, 2].map((row) => ({ x: 0, y: row * (NODE_HEIGHT + 26), width, height: NODE_HEIGHT })),
      stores: rows(stores, 36, first, width - 36), views: rows(views, 72, second, width - 72),
    };
  }
  const height = Math.max(NODE_HEIGHT + 16, column(stores), column(views));
  const store = Math.min(300, Math.max(212, width * (views ? 0.19 : 0.235)));
  const view = views ? store - 12 : 0;
  const node = Math.min(240, Math.max(160, width * (views ? 0.15 : 0.19)));
  const space = (width - 3 * node - store - view) / (views ? 4 : 3);
  return {
    isDown, height,
    boxes: [0, 1, 2].map((n) => ({ x: n * (node + space), y: (height - NODE_HEIGHT) / 2, width: node, height: NODE_HEIGHT })),
    stores: rows(stores, width - store - (views ? view + space : 0), (height - column(stores)) / 2, store),
    views: rows(views, width - view, (height - column(views)) / 2, view),
  };
}

function draw(element, status) {
  const width = Math.max(280, element.clientWidth);
  const nodes = nodesOf(status);
  const place = layout(width, nodes.stores.length, nodes.views.length);
  const [source, capture, brokers] = place.boxes;
  const published = newest(publishedRates());
  const said = [nodes.source, nodes.capture, nodes.brokers, ...nodes.stores, ...nodes.views].map((node) => `${node.title}: ${node.state}, ${node.lines.filter(Boolean).join(", ")}`);
  const bases = nodes.views.map((view) => nodes.stores.findIndex((store) => store.sink === view.base));
  element.replaceChildren(s("svg", { class: "flow", width, height: place.height + 4, viewBox: `-2 -2 ${width + 4} ${place.height + 4}`, role: "img", "aria-label": `From the source to the stores. ${said.join(". ")}.` },
    pipe(pathBetween(source, capture, place.isDown), published, nodes.source.tone),
    pipe(pathBetween(capture, brokers, place.isDown), published, nodes.capture.tone),
    ...place.stores.map((box, n) => pipe(pathBetween(brokers, box, place.isDown, true), nodes.stores[n].rate, nodes.stores[n].tone)),
    ...place.views.map((box, n) => bases[n] >= 0 && pipe(pathBetween(place.stores[bases[n]], box, place.isDown, true), nodes.views[n].tone === "good" ? nodes.stores[bases[n]].rate : 0, nodes.views[n].tone)),
    drawNode(nodes.source, source), drawNode(nodes.capture, capture), drawNode(nodes.brokers, brokers),
    ...nodes.stores.map((node, n) => drawNode(node, place.stores[n])), ...nodes.views.map((node, n) => drawNode(node, place.views[n]))));
}

function more(status) {
  const hidden = [[status.sinks, "store", "stores"], [status.views, "view", "views"]].filter(([all]) => all.length > SHOWN_MAX);
  return hidden.length ? h("p", { class: "hint" }, "and ", hidden.map(([all, one, section], n) => [n ? " and " : "", h("a", { href: link(section) }, `${plural(all.length - SHOWN_MAX, one)} more`)])) : null;
}

export function flow(status) {
  const none = status.sinks.length ? null : h("p", { class: "hint" }, "No sink has published a position yet. Start one: ", h("code", {}, "cdc sink run NAME"));
  return h("section", { class: "panel flow-panel", "aria-labelledby": "flow-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "flow-title" }, "From source to stores"),
      h("p", { class: "hint" }, `${count(status.capture.seq)} records published in epoch ${status.capture.epoch ?? "–"}`)),
    h("div", { class: "canvas", "data-island": true, island: (element) => draw(element, status) }), more(status), none);
}
