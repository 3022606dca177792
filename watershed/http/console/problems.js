// What is wrong now, and what was in the last half hour; each with its remedy and the commands that it names.

import { command, h, pill } from "./dom.js";
import { clock, commandsOf, plural, seconds } from "./format.js";
import { state } from "./data.js";

const PARTS = { source: "Source", brokers: "Kafka", capture: "Capture", table: "Table", sink: "Store", view: "View" };
const toneOf = (problem) => (problem.severity === "error" ? "error" : "warning");

export function problemItem(problem, announce, when) {
  const commands = commandsOf(problem.next, problem.name);
  return h("li", { class: `problem ${toneOf(problem)}`, "data-key": `${problem.part}/${problem.name}/${problem.message.slice(0, 24)}` },
    h("div", { class: "problem-head" }, pill(toneOf(problem), problem.severity === "error" ? "Error" : "Warning"),
      h("span", { class: "part" }, PARTS[problem.part] ?? problem.part), problem.name && h("span", { class: "mono name" }, problem.name), when && h("span", { class: "when" }, when)),
    h("p", { class: "message" }, problem.message),
    problem.next && h("p", { class: "next" }, h("b", {}, "Next: "), problem.next),
    commands.map((text) => command(text, announce)));
}

function since(seen) {
  const lasted = seconds(seen.last_unix_seconds - seen.first_unix_seconds);
  return seen.is_over ? `${clock(seen.first_unix_seconds)}, for ${lasted}` : `since ${clock(seen.first_unix_seconds)}`;
}

export function problems(announce) {
  const now = [...state.status.problems].sort((a, b) => (toneOf(a) === toneOf(b) ? 0 : toneOf(a) === "error" ? -1 : 1));
  const over = state.problems.filter((seen) => seen.is_over);
  const began = (problem) => {
    const known = state.problems.find(({ problem: one, is_over: isOver }) => !isOver && one.part === problem.part && one.name === problem.name && one.severity === problem.severity);
    return known && since(known);
  };
  return [
    h("section", { class: "panel", "aria-labelledby": "now-title" },
      h("div", { class: "panel-head" }, h("h2", { id: "now-title" }, "Now"), h("p", { class: "hint" }, plural(now.length, "problem"))),
      now.length ? h("ul", { class: "problems" }, now.map((problem) => problemItem(problem, announce, began(problem))))
        : h("p", { class: "empty-line" }, pill("good", "No problems"), " Source, brokers, capture and stores do their work.")),
    h("section", { class: "panel", "aria-labelledby": "over-title" },
      h("div", { class: "panel-head" }, h("h2", { id: "over-title" }, "Over"), h("p", { class: "hint" }, "the last half hour, while this process ran")),
      over.length ? h("ul", { class: "problems over" }, over.map((seen) => problemItem(seen.problem, announce, since(seen))))
        : h("p", { class: "empty-line" }, "No problem has ended in this time.")),
  ];
}
