// What is wrong now, and what was in the last half hour: each problem once, with how often, since when, and its history.

import { command, h, pill } from "./dom.js";
import { clock, commandsOf, count, plural, seconds } from "./format.js";
import { state } from "./data.js";
import { link } from "./route.js";

const PARTS = { source: "Source", brokers: "Kafka", capture: "Capture", table: "Table", sink: "Store", view: "View" };
const NAMED_MAX = 20;
const RUNS_MAX = 20;
const toneOf = (problem) => (problem.severity === "error" ? "error" : "warning");
// What differs only by the name of a table or store, or by a number, is one problem.
const kindOf = ({ part, name, severity, message }) => [part, severity, (name ? message.replaceAll(name, "…") : message).replace(/\d[\d.,]*/g, "#").split(" ").slice(0, 8).join(" ")].join("/");

/** Problems of one kind: {problem, names, seen}. `seen`: what the history has of them, the newest first. */
function kinds() {
  const found = new Map();
  const of = (problem) => found.get(kindOf(problem)) ?? found.set(kindOf(problem), { problem, names: new Set(), seen: [], isNow: false }).get(kindOf(problem));
  for (const problem of state.status.problems) {
    const kind = of(problem);
    kind.isNow = true;
    kind.names.add(problem.name);
  }
  for (const one of state.problems) {
    const kind = of(one.problem);
    kind.seen.push(one);
    if (!kind.isNow) kind.names.add(one.problem.name);
  }
  return [...found.values()];
}

const worstFirst = (all) => all.sort((a, b) => (toneOf(a.problem) === toneOf(b.problem) ? 0 : toneOf(a.problem) === "error" ? -1 : 1));

export const presentProblems = () => worstFirst(kinds().filter((kind) => kind.isNow));

function nameLink(part, name) {
  if (part === "table") return h("a", { class: "mono name", href: link("tables", name) }, name);
  return h("span", { class: "mono name" }, name);
}

function period(one) {
  const lasted = seconds(Math.max(0, one.last_unix_seconds - one.first_unix_seconds));
  return one.is_over ? `${clock(one.first_unix_seconds)} to ${clock(one.last_unix_seconds)}, ${lasted}` : `since ${clock(one.first_unix_seconds)}, ${lasted}`;
}

/** When it was seen: how often, first and last. */
function when({ seen, isNow }) {
  if (!seen.length) return "just now";
  const first = seen.reduce((least, one) => Math.min(least, one.first_unix_seconds), Infinity);
  const last = seen.reduce((most, one) => Math.max(most, one.last_unix_seconds), 0);
  return [plural(seen.length, "time"), `first ${clock(first)}`, isNow ? "still there" : `last ${clock(last)}`].join(", ");
}

export function problemItem(kind, announce) {
  const { problem, names, seen } = kind;
  const listed = [...names].filter(Boolean);
  const commands = listed.length > 1 ? [] : commandsOf(problem.next, problem.name);
  return h("li", { class: `problem ${toneOf(problem)}`, "data-key": kindOf(problem) },
    h("div", { class: "problem-head" }, pill(toneOf(problem), problem.severity === "error" ? "Error" : "Warning"),
      h("span", { class: "part" }, PARTS[problem.part] ?? problem.part), listed.length === 1 ? nameLink(problem.part, listed[0]) : listed.length > 1 && h("b", {}, count(listed.length)), h("span", { class: "when" }, when(kind))),
    h("p", { class: "message" }, problem.message),
    problem.next && h("p", { class: "next" }, h("b", {}, "Next: "), problem.next),
    commands.map((text) => command(text, announce)),
    listed.length > 1 && h("details", {}, h("summary", {}, "Of which"), h("ul", { class: "names" }, listed.slice(0, NAMED_MAX).map((name) => h("li", {}, nameLink(problem.part, name)))), listed.length > NAMED_MAX && h("p", { class: "hint" }, `and ${count(listed.length - NAMED_MAX)} more`)),
    seen.length > 1 && h("details", {}, h("summary", {}, "History"), h("ul", { class: "periods" }, seen.slice(0, RUNS_MAX).map((one) => h("li", {}, listed.length > 1 && h("span", { class: "mono" }, `${one.problem.name} `), period(one))))));
}

export function problems(announce) {
  const now = presentProblems();
  const over = kinds().filter((kind) => !kind.isNow);
  return [
    h("section", { class: "panel", "aria-labelledby": "now-title" },
      h("div", { class: "panel-head" }, h("h2", { id: "now-title" }, "Now"), h("p", { class: "hint" }, plural(now.length, "problem"))),
      now.length ? h("ul", { class: "problems" }, now.map((kind) => problemItem(kind, announce)))
        : h("p", { class: "empty-line" }, pill("good", "No problems"), " Source, brokers, capture and stores do their work.")),
    h("section", { class: "panel", "aria-labelledby": "over-title" },
      h("div", { class: "panel-head" }, h("h2", { id: "over-title" }, "Over"), h("p", { class: "hint" }, "the last half hour, while this process ran")),
      over.length ? h("ul", { class: "problems over" }, over.map((kind) => problemItem(kind, announce)))
        : h("p", { class: "empty-line" }, "No problem has ended in this time.")),
  ];
}
