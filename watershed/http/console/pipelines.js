// This pipeline and the others that the configuration names, one line each. The server asks the others.

import { command, grid, h, pill } from "./dom.js";
import { clock, commandsOf, count, plural, seconds } from "./format.js";
import { watched } from "./data.js";

const ASK_MS = 5000;

function condition({ error, summary }) {
  if (error) return ["error", "No answer"];
  if (!summary) return ["idle", "Being asked"];
  if (summary.errors) return ["error", plural(summary.errors, "error")];
  if (summary.warnings) return ["warning", plural(summary.warnings, "warning")];
  return summary.capture === "not started" ? ["idle", "Not started"] : ["good", "All in step"];
}

const nextStep = (text) => text && h("p", { class: "next" }, h("b", {}, "Next: "), text);

/** Why it does not answer, or its worst problems. Commands are for its own machine: those of this page's pipeline can be copied. */
function notes({ name, error, next, summary }, announce) {
  if (error) return h("div", { class: "row-note" }, h("p", {}, error), nextStep(next), summary && h("p", { class: "hint" }, `What is shown is its state of ${clock(summary.unix_seconds)}.`));
  return (summary?.problems ?? []).map((one) => h("div", { class: "row-note" }, h("p", {}, one.name && h("b", { class: "mono" }, `${one.name}: `), one.message), nextStep(one.next), !name && commandsOf(one.next, one.name).map((text) => command(text, announce))));
}

function row(one, announce) {
  const { name, console, summary } = one;
  const title = name ? h("a", { href: console, rel: "noreferrer" }, name) : h("b", {}, "this one");
  const where = summary && h("small", { class: "hint" }, [summary.prefix, summary.database && `database ${summary.database}`].filter(Boolean).join(" · "));
  const known = (text) => (summary ? text(summary) : "–");
  return { key: `pipeline/${name}`, cells: [
    [h("div", {}, title, " ", where), notes(one, announce)], pill(...condition(one)), known((its) => its.capture),
    known((its) => (its.lag_seconds === null ? "–" : [seconds(its.lag_seconds), " ", h("small", { class: "hint" }, its.furthest)])),
    known((its) => [count(its.tables), its.stopped ? `, ${count(its.stopped)} stopped` : ""]), known((its) => count(its.stores)), known((its) => count(its.dead_letters))] };
}

export function pipelines(announce) {
  const { value, error } = watched("pipelines", ASK_MS);
  const columns = ["Pipeline", "State", "Capture", "Furthest behind", "Tables", "Stores", "Dead letters"].map((label, number) => ({ label, isNumber: number > 4 }));
  return [h("section", { class: "panel", "aria-labelledby": "pipelines-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "pipelines-title" }, "Pipelines"), h("p", { class: "hint" }, "asked by this server every five seconds")),
    error && h("p", { class: "row-note", role: "alert" }, error),
    value ? h("div", { class: "scroll", role: "region", "aria-labelledby": "pipelines-title", tabindex: "0" }, grid("Pipelines and their states", columns, value.pipelines.map((one) => row(one, announce))))
      : !error && h("p", { class: "loading" }, "Loading…"))];
}
