// What runs here: the configuration that is in effect, the last lines of the log, and who did what.

import { grid, h, pill } from "./dom.js";
import { Filter } from "./filters.js";
import { moment, plural } from "./format.js";
import { OPERATIONS, button } from "./actions.js";
import { watched } from "./data.js";
import { link } from "./route.js";

const PAGES = [["configuration", "Configuration"], ["log", "Log"], ["audit", "Audit"]];
const LOG_MS = 2000;
const LOG_LINES = 200;
const AUDIT_MS = 5000;
const CONFIGURATION_MS = 10000;
const LEVELS = { error: "error", warning: "warning", info: "good", debug: "idle" };

const options = new Filter("option", ["changed", "default"], 100);
const lines = new Filter("line", ["error", "warning", "info", "debug"], 100);
const records = new Filter("record", ["accepted", "refused"], 50);
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** A list with a filter, or what is to be said instead. */
function list(id, title, hint, answer, filter, found, columns, row, tools) {
  const body = answer.value === null ? [answer.error ? h("p", { class: "row-note", role: "alert" }, answer.error) : h("p", { class: "loading" }, "Loading…")] : [
    filter.form(), answer.error && h("p", { class: "row-note", role: "alert" }, answer.error),
    h("div", { class: "scroll plain", role: "region", "aria-labelledby": id, tabindex: "0" }, grid(title, columns.map((label) => ({ label })), filter.shown(found).map(row))), filter.pages(found.length)];
  return h("section", { class: "panel", "aria-labelledby": id, "data-key": id }, h("div", { class: "panel-head" }, h("h2", { id }, title), h("p", { class: "hint" }, hint), tools), body);
}

function configuration() {
  const answer = watched("config", CONFIGURATION_MS);
  const all = Object.entries(answer.value?.options ?? {}).map(([name, one]) => ({ name, ...one }));
  const found = options.found(all, (one) => `${one.name} ${textOf(one.value)}`, (one) => (one.from === "default" ? "default" : "changed"));
  return list("configuration-title", "Configuration", answer.value?.file ?? "", answer, options, found, ["Option", "Value", "From"],
    (one) => ({ key: one.name, cells: [h("span", { class: "mono" }, one.name), h("span", { class: "mono" }, textOf(one.value)), one.from] }), button("Read the file again…", OPERATIONS.reload()));
}

const LINE = /^(\S+Z) \[(\w+) *\] (.*)$/s;

/** The lines of a log: {key, at, level, text}. */
function parsed(all) {
  const times = new Map(); // how often a line has been met: equal ones are different lines
  return all.map((line) => {
    times.set(line, (times.get(line) ?? 0) + 1);
    const [, at, level, text] = LINE.exec(line) ?? [null, null, "info", line];
    return { key: `${times.get(line)}/${line}`, at: at ? moment(Date.parse(at) / 1000) : "–", level: level === "critical" ? "error" : level, text };
  });
}

function log() {
  const answer = watched(`log?lines=${LOG_LINES}`, LOG_MS);
  const all = parsed(answer.value?.lines ?? []).reverse();
  const found = lines.found(all, (one) => one.text, (one) => one.level);
  return list("log-title", "Log", `the last ${plural(all.length, "line")} of this process`, answer, lines, found, ["Time", "Level", "Line"],
    (one) => ({ key: one.key, cells: [one.at, pill(LEVELS[one.level] ?? "idle", one.level), h("span", { class: "mono line" }, one.text)] }));
}

/** The answer's sentence, of a record that has its code and body. */
function resultText(result) {
  const [, code, body] = /^(\d{3}): (.*)$/s.exec(result) ?? [];
  if (!code) return result;
  try {
    const said = JSON.parse(body);
    return `${code}: ${said.error ?? said.answer ?? body}`;
  } catch {
    return result; // it was cut
  }
}

function audit() {
  const answer = watched("audit?last=100", AUDIT_MS);
  const all = answer.value?.operations ?? [];
  const isRefused = (one) => /^[45]\d\d: /.test(one.result);
  const found = records.found(all, (one) => `${one.who} ${one.action} ${textOf(one.arguments)} ${textOf(one.result)} ${one.address}`, (one) => (isRefused(one) ? "refused" : "accepted"));
  return list("audit-title", "Audit", "who asked for what, the newest first", answer, records, found, ["Time", "Who", "Role", "Action", "Arguments", "Result", "Address"],
    (one) => ({ key: `${one.at}/${one.action}/${one.path}/${one.who}`, cells: [moment(Date.parse(one.at) / 1000), one.who, one.role, h("span", { class: "mono" }, one.action || one.path), h("span", { class: "mono" }, textOf(one.arguments)), resultText(one.result), h("span", { class: "mono" }, one.address)] }));
}

export function system(announce, [chosen]) {
  const page = PAGES.some(([name]) => name === chosen) ? chosen : "configuration";
  return [h("nav", { class: "crumbs tabs", "aria-label": "Pages of this section" }, h("ul", {}, PAGES.map(([name, text]) => h("li", {}, h("a", { href: link("system", name), "aria-current": name === page ? "page" : null }, text))))),
    { configuration, log, audit }[page]()];
}
